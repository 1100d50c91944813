"""Persistence gate: holds changes back until every copy of their vbucket has them on disk.

A change that only the active node has is lost when that node fails, and a consumer that has seen it
must roll back. With the gate, the consumer asks all copies at intervals for their persisted seqno,
and hands out only changes that all copies have persisted. The application does not see a rollback
of changes that were still held.

Held rows stay counted in the flow-control window. So a replica that lags slows streaming down, and
memory stays bounded. The gate opens no connections itself; it asks through `AsyncNodes`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np

from ...session.consumer_events import Flushed, RolledBack, Rows, StreamOpened
from ...session.stream_position import Position
from ...wire.columns.result import numbers
from ..topology.questions import persisted_seqno
from ..topology.request_routing import ask_copies
from ..transport.async_pool import AsyncNodes
from .inbox import Delivery, Finished


class PersistenceGate:
    """Queues deliveries per vbucket and releases those whose rows are persisted everywhere."""

    def __init__(
        self,
        nodes: AsyncNodes,
        positions: Mapping[int, Position],
        interval: float,
        deliver: Callable[[Delivery], None],
    ) -> None:
        self._nodes = nodes
        self._interval = interval
        self._deliver = deliver
        self._held: dict[int, deque[Delivery]] = {}
        self._vbuuids = {vb: p.offset.vbuuid for vb, p in positions.items()}
        #: The last seqno released, per vbucket.
        self._passed = {vb: p.seqno for vb, p in positions.items()}
        self._safe: dict[int, int] = {}
        #: The `Finished` delivery, kept back until no rows are held.
        self._end: Delivery | None = None

    def begin(self, positions: Mapping[int, Position]) -> None:
        """More vbuckets are streamed, from these positions."""
        for vbucket, position in positions.items():
            self._vbuuids[vbucket] = position.offset.vbuuid
            self._passed[vbucket] = position.seqno

    def forget(self, vbuckets: Iterable[int]) -> None:
        """Discards the held rows of vbuckets that are no longer streamed."""
        for vbucket in vbuckets:
            self._discard(vbucket)

    def hold_back(self, delivery: Delivery) -> None:
        """Delivers what may be delivered now, and holds back the rest."""
        event = delivery.event
        if isinstance(event, Rows):
            start = 0
            for step in event.steps:
                piece = event.slice(start, step.stop, (step,))
                start = step.stop
                held = self._held.setdefault(step.vbucket, deque())
                held.append(replace(delivery, event=piece))
                self._release(step.vbucket)
        elif isinstance(event, RolledBack):
            self._roll_back(delivery, event)
        elif isinstance(event, Flushed):
            self._discard(event.vbucket)
            self._passed[event.vbucket] = 0
            self._deliver(delivery)
        elif isinstance(event, Finished):
            self._end = delivery
            self._finish()
        else:
            if isinstance(event, StreamOpened) and len(event.log):
                self._vbuuids[event.vbucket] = event.log.newest.vbuuid
            self._pass_on(delivery)

    def _pass_on(self, delivery: Delivery) -> None:
        vbucket = getattr(delivery.event, "vbucket", None)
        held = self._held.get(vbucket) if vbucket is not None else None
        if held:
            held.append(delivery)
        else:
            self._deliver(delivery)

    def _roll_back(self, delivery: Delivery, event: RolledBack) -> None:
        """Discards the held rows; delivers the rollback only if it undoes released rows."""
        self._discard(event.vbucket)
        if event.to.seqno < self._passed[event.vbucket]:
            self._passed[event.vbucket] = event.to.seqno
            self._deliver(delivery)

    def _discard(self, vbucket: int) -> None:
        for held in self._held.pop(vbucket, ()):
            held.release()
        self._safe.pop(vbucket, None)

    # ---- asking the nodes ----------------------------------------------------------------

    async def run(self) -> None:
        """Asks for persisted seqnos at intervals, until cancelled."""
        while True:
            await asyncio.sleep(self._interval)
            waiting = [vbucket for vbucket, held in self._held.items() if held]
            if waiting:
                await self._ask(waiting)

    async def _ask(self, vbuckets: Iterable[int]) -> None:
        asked = ask_copies(
            self._nodes.topology, vbuckets, lambda vb: persisted_seqno(vb, self._vbuuids[vb])
        )
        for vbucket, persisted in (await self._nodes.run(asked)).items():
            if vbucket in self._held:
                self._safe[vbucket] = min(persisted)
                self._release(vbucket)
        self._finish()

    # ---- releasing -----------------------------------------------------------------------

    def _finish(self) -> None:
        if self._end is not None and not any(self._held.values()):
            self._deliver(self._end)
            self._end = None

    def _release(self, vbucket: int) -> None:
        held, safe = self._held[vbucket], self._safe.get(vbucket, 0)
        while held:
            event = held[0].event
            if isinstance(event, Rows):
                last = event.steps[-1].seqno
                if last > safe:
                    self._release_part(held, event, safe)
                    return
                self._passed[vbucket] = last
            self._deliver(held.popleft())

    def _release_part(self, held: deque[Delivery], event: Rows, safe: int) -> None:
        """Releases the leading rows up to seqno ``safe``, and keeps the others held."""
        delivery = held[0]
        seqnos = numbers(event.batch.column("seqno"))
        rows = int(np.searchsorted(seqnos, safe, "right"))
        if not rows:
            return
        step = event.steps[-1]
        reached = step._replace(stop=rows, seqno=int(seqnos[rows - 1]), closes=False)
        held[0] = replace(delivery, event=event.slice(rows, len(seqnos), (step,)))
        self._passed[step.vbucket] = reached.seqno
        self._deliver(replace(delivery, event=event.slice(0, rows, (reached,))))
