"""Holds changes back until every copy of their vbucket has them on disk.

What only an active node has is lost when it dies, and a reader that has seen it must roll back. A
reader that can wait instead asks all copies in intervals how far they are, and sees nothing that
is not everywhere; what is rolled back before that, it never hears of. Held rows keep their place
in the flow-control window, so a copy that does not follow slows the reading down and memory stays
bounded. It knows no sockets: questions go through the bearings.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ..errors import ConnectionFailed, ProtocolError, StatusError
from ..session.events import RolledBack, Rows, StreamOpened
from ..wire import kv
from .bearings import Bearings
from .delivery import Delivery, Finished
from .node import NodeConnection
from .source import Address

__all__ = ["PersistenceGate"]

_log = logging.getLogger(__name__)

#: An answer for a branch that a copy does not know counts as nothing persisted.
_NOTHING: Final = 0


class PersistenceGate:
    """What lies between the sessions and a reader that wants only what is safe."""

    def __init__(
        self,
        bearings: Bearings,
        interval: float,
        connections: Callable[[], Sequence[NodeConnection]],
        deliver: Callable[[Delivery], None],
    ) -> None:
        self._bearings = bearings
        self._interval = interval
        self._connections = connections
        self._deliver = deliver
        self._held: dict[int, deque[Delivery]] = {}
        self._vbuuids = {vb: p.offset.vbuuid for vb, p in bearings.positions.items()}
        #: Up to where each vbucket was let through.
        self._passed = {vb: p.seqno for vb, p in bearings.positions.items()}
        self._safe: dict[int, int] = {}
        #: The end of the reading, which must not come before what is held.
        self._end: Delivery | None = None

    def take(self, delivery: Delivery) -> None:
        """Takes what a session tells, in place of the reader."""
        event = delivery.event
        if isinstance(event, Rows):
            for vbucket, piece in _by_vbucket(event):
                held = self._held.setdefault(vbucket, deque())
                held.append(replace(delivery, event=piece))
                self._release(vbucket)
        elif isinstance(event, RolledBack):
            self._roll_back(delivery, event)
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
        """What was held is gone without anybody having seen it."""
        for held in self._held.pop(event.vbucket, ()):
            if held.carrier is not None and isinstance(held.event, Rows):
                held.carrier.give_back(held.event.counted)
        self._safe.pop(event.vbucket, None)
        if event.to.seqno < self._passed[event.vbucket]:
            self._passed[event.vbucket] = event.to.seqno
            self._deliver(delivery)

    # ---- asking --------------------------------------------------------------------------

    async def run(self) -> None:
        """Asks in intervals, for as long as the reading goes on."""
        while True:
            await asyncio.sleep(self._interval)
            waiting = [vbucket for vbucket, held in self._held.items() if held]
            if waiting:
                await self._ask(waiting)

    async def _ask(self, vbuckets: Iterable[int]) -> None:
        by_node: dict[Address, list[int]] = {}
        copies = {vb: self._bearings.map.copies(vb) for vb in vbuckets}
        for vbucket, nodes in copies.items():
            for node in nodes:
                by_node.setdefault(node.address, []).append(vbucket)
        answers = await asyncio.gather(*(self._ask_node(*item) for item in by_node.items()))
        told: dict[int, list[int]] = {}
        for answer in answers:
            for vbucket, persisted in answer.items():
                told.setdefault(vbucket, []).append(persisted)
        for vbucket, nodes in copies.items():
            everywhere = told.get(vbucket, [])
            if nodes and len(everywhere) == len(nodes) and vbucket in self._held:
                self._safe[vbucket] = min(everywhere)
                self._release(vbucket)
        self._finish()

    async def _ask_node(self, address: Address, vbuckets: list[int]) -> dict[int, int]:
        """How far a node has each vbucket on disk, as far as it can be asked."""
        try:
            async with self._bearings.asking(address, self._connections()) as connection:
                found = await asyncio.gather(*(self._observe(connection, vb) for vb in vbuckets))
        except (ConnectionFailed, ProtocolError, StatusError) as problem:
            _log.warning("cannot ask what is persisted: %s", problem)
            return {}
        return dict(zip(vbuckets, found, strict=True))

    async def _observe(self, connection: NodeConnection, vbucket: int) -> int:
        """Up to where a node has the branch that is read on disk."""
        request = kv.ObserveSeqno(vbucket=vbucket, vbuuid=self._vbuuids[vbucket])
        answer = await connection.ask(request)
        if not isinstance(answer, kv.ObserveSeqnoResponse):
            return _NOTHING
        if answer.old_seqno is not None:  # that branch ended there; what came after is another's
            return min(answer.persisted_seqno, answer.old_seqno)
        return answer.persisted_seqno

    # ---- letting through -----------------------------------------------------------------

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
        """Lets the first rows through, if they are safe, and holds the others."""
        delivery = held[0]
        seqnos = event.batch.column("seqno").to_numpy()
        rows = int(np.searchsorted(seqnos, safe, "right"))
        if not rows:
            return
        step = event.steps[-1]
        counted = event.counted * rows // len(seqnos)
        reached = step._replace(stop=rows, seqno=int(seqnos[rows - 1]), closes=False)
        first = Rows(event.batch.slice(0, rows), (reached,), counted)
        rest = Rows(
            event.batch.slice(rows),
            (step._replace(stop=step.stop - rows),),
            event.counted - counted,
        )
        held[0] = replace(delivery, event=rest)
        self._passed[step.vbucket] = reached.seqno
        self._deliver(replace(delivery, event=first))


def _by_vbucket(rows: Rows) -> Iterator[tuple[int, Rows]]:
    """The rows cut into pieces of one step each."""
    start, left = 0, rows.counted
    for number, step in enumerate(rows.steps):
        size = step.stop - start
        last = number == len(rows.steps) - 1
        counted = left if last else rows.counted * size // max(1, rows.batch.num_rows)
        left -= counted
        piece = Rows(rows.batch.slice(start, size), (step._replace(stop=size),), counted)
        start = step.stop
        yield step.vbucket, piece
