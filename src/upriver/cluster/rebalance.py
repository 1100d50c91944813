"""Rebalance: moves vbuckets between nodes according to a plan.

    copy where there is none ──caught up──> announce the new row ──caught up──>
        takeover, if the active one moves ──> note the new row

While a new row is announced, the active copy commits a durable write only if a majority of the old
row and a majority of the new one have it: whichever row counts when the active copy is lost, its
replicas have what was acknowledged. What was acknowledged before is there when all copies of the
new row have caught up once more.

Each vbucket's move is noted as soon as it is done, and what is under way when a move is broken off
leaves only copies that nobody counts on, so that a plan can be begun again at any time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol

from ..errors import ConnectionFailed, Status, StatusError, UpriverError
from ..model import VBucketState
from ..wire.protocol_enums import StreamFlag
from .best_copy import Copy
from .command_queue import ProgressDeadline, RunningCommand
from .node_link import NodeLink
from .placement import Row
from .raw_connection import Endpoint
from .replication_relay import ReplicationRelay

logger = logging.getLogger("upriver.cluster")

#: Vbuckets that move at once.
_AT_ONCE: Final = 4
_POLL_SECONDS: Final = 0.02
#: Seconds without any progress after which a move is given up.
_PATIENCE: Final = 60.0
#: Seconds for a takeover, of which writers are kept waiting the last part.
_TAKEOVER_PATIENCE: Final = 60.0
#: How often a takeover is tried.
_TRIES: Final = 5


class Cluster(Protocol):
    """What moves need of their manager."""

    def endpoint(self, name: str) -> Endpoint: ...
    def link(self, name: str) -> NodeLink: ...
    def begin_copies(self, vbucket: int, nodes: set[str]) -> None: ...
    async def announce(self, vbucket: int, row: Row) -> None: ...
    def end_copies(self, vbucket: int) -> None: ...
    def alone(self, vbucket: int, target: str) -> AbstractAsyncContextManager[Any]: ...
    async def commit(self, vbucket: int, row: Row) -> None: ...


class Moving:
    """One plan being carried out. It reports how many vbuckets are where they shall be."""

    def __init__(self, cluster: Cluster, turn: RunningCommand) -> None:
        self._cluster = cluster
        self._turn = turn
        self._moved = 0

    async def run(self, rows: tuple[Row, ...], target: tuple[Row, ...]) -> None:
        """Moves what is elsewhere; the first failure is raised when the others are through.

        What was not begun when the turn is broken off is left.
        """
        moves = [
            vbucket
            for vbucket, (now, then) in enumerate(zip(rows, target, strict=True))
            if now != then
        ]
        self._turn.report(0, len(moves), "vbuckets moved")
        places = asyncio.Semaphore(_AT_ONCE)
        failed: list[UpriverError] = []

        async def move(vbucket: int) -> None:
            async with places:
                if failed:
                    return
                try:
                    self._turn.check()
                    await self._move(vbucket, rows[vbucket], target[vbucket])
                except UpriverError as problem:
                    failed.append(problem)
                    return
                self._moved += 1
                self._turn.report(self._moved, len(moves), "vbuckets moved")

        await asyncio.gather(*map(move, moves))
        if failed:
            raise failed[0]

    async def _move(self, vbucket: int, now: Row, then: Row) -> None:
        cluster = self._cluster
        source, target = now[0], then[0]
        assert source is not None
        assert target is not None
        fresh = {node for node in then if node is not None and node not in now}
        try:
            cluster.begin_copies(vbucket, fresh)
            await self._caught_up(vbucket, source, fresh | ({target} - {source}))
            if set(now) != set(then):
                await cluster.announce(vbucket, then)
                copies = {node for node in then if node is not None}
                await self._caught_up(vbucket, source, copies - {source})
            if source == target:
                await cluster.commit(vbucket, then)
            else:
                async with cluster.alone(vbucket, target):
                    await self._take_over(vbucket, source, target)
                    await cluster.commit(vbucket, then)
        finally:
            cluster.end_copies(vbucket)
        for node in now:
            if node is not None and node not in then:
                with contextlib.suppress(UpriverError):  # it costs nothing but room
                    await cluster.link(node).delete(vbucket)

    async def _caught_up(self, vbucket: int, source: str, nodes: set[str]) -> None:
        """Returns when copies have what the active one had a moment ago."""
        progress = ProgressDeadline(_PATIENCE)
        while True:
            wanted = await self._copy(source, vbucket)
            has = [await self._copy(node, vbucket) for node in nodes]
            there = all(c.state is VBucketState.REPLICA and c.seqno >= wanted.seqno for c in has)
            if there and await self._same_branch(vbucket, source, nodes):
                return
            if progress.is_over(sum(copy.seqno for copy in has)):
                raise ConnectionFailed(
                    f"makes no progress with vbucket {vbucket}",
                    "see the logs of the nodes, and rebalance again",
                    where=source,
                )
            self._turn.check()
            await asyncio.sleep(_POLL_SECONDS)

    async def _same_branch(self, vbucket: int, source: str, nodes: set[str]) -> bool:
        """Whether copies follow the history of the active one: an old copy may have high seqnos."""
        link = self._cluster.link
        logs = [(await link(node).logs([vbucket]))[vbucket] for node in (source, *nodes)]
        return len({log.newest for log in logs}) == 1

    async def _copy(self, node: str, vbucket: int) -> Copy:
        copies = await self._cluster.link(node).copies()
        return copies.get(vbucket, Copy(VBucketState.DEAD))

    # ---- takeover ------------------------------------------------------------------------

    async def _take_over(self, vbucket: int, source: str, target: str) -> None:
        for left in reversed(range(_TRIES)):
            try:
                await self._unless_broken_off(self._try(vbucket, source, target))
            except UpriverError as problem:
                if (await self._copy(target, vbucket)).is_active:
                    return  # only the word of it was lost
                # in this order: there must never be two
                await self._cluster.link(target).set_state(vbucket, VBucketState.REPLICA)
                await self._cluster.link(source).set_state(vbucket, VBucketState.ACTIVE)
                self._turn.check()
                if not left:
                    raise
                logger.info("vbucket %d from %s to %s: %s", vbucket, source, target, problem)
                await asyncio.sleep(_POLL_SECONDS)
            else:
                return

    async def _unless_broken_off(self, work: Coroutine[Any, Any, None]) -> None:
        """Does what may take long, for as long as nobody has something urgent."""
        doing = asyncio.create_task(work)
        broken_off = asyncio.create_task(self._turn.broken_off.wait())
        try:
            await asyncio.wait({doing, broken_off}, return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                self._turn.check()
            await doing
        finally:
            doing.cancel()
            broken_off.cancel()
            await asyncio.gather(doing, broken_off, return_exceptions=True)

    async def _try(self, vbucket: int, source: str, target: str) -> None:
        cluster = self._cluster
        over = asyncio.Event()
        name = f"takeover:{source}->{target}:{vbucket}"
        relay = await ReplicationRelay.open(
            cluster.endpoint(source), cluster.endpoint(target), name, lambda ended: over.set()
        )
        passing = asyncio.create_task(relay.run())
        try:
            await self._add(relay, vbucket)
            ended = asyncio.create_task(over.wait())
            await asyncio.wait(
                {passing, ended},
                timeout=_TAKEOVER_PATIENCE,
                return_when=asyncio.FIRST_COMPLETED,
            )
            ended.cancel()
            if not (await self._copy(target, vbucket)).is_active:
                raise ConnectionFailed(
                    f"did not take over vbucket {vbucket}", "it is tried again", where=target
                )
        finally:
            relay.close()
            passing.cancel()
            await asyncio.gather(passing, return_exceptions=True)

    async def _add(self, relay: ReplicationRelay, vbucket: int) -> None:
        """Begins the stream, once the one that kept the copy up to date has ended."""
        deadline = asyncio.get_running_loop().time() + _PATIENCE
        while True:
            status = await relay.add(vbucket, StreamFlag.TAKEOVER)
            if status is Status.SUCCESS:
                return
            if status is not Status.EXISTS or asyncio.get_running_loop().time() > deadline:
                raise StatusError(status, request=f"the takeover of vbucket {vbucket}")
            await asyncio.sleep(_POLL_SECONDS)
