"""Keeps the replicas that one node has of another's vbuckets up to date, through one relay.

    wanted, not there ──Add Stream──> there ──ended by either side──> wanted, not there
    there, not wanted ──Close Stream──> gone

A lost connection or stream is opened again, with pauses that grow while that fails. No fault ends
a replicator, because the replicas of a node would then fall behind without anybody noticing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable
from typing import Final

from ..consumer.topology.cluster_view import Backoff
from ..errors import Status, UpriverError
from .raw_connection import Endpoint
from .replication_relay import ReplicationRelay

logger = logging.getLogger("upriver.cluster")

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0
#: Streams that are asked for at once.
_AT_ONCE: Final = 64


class Replicator:
    """The streams from one node to another."""

    def __init__(self, source: Endpoint, target: Endpoint, name: str) -> None:
        self.name = name
        self._source = source
        self._target = target
        self._wanted: frozenset[int] = frozenset()
        self._there: set[int] = set()
        self._ends: Counter[int] = Counter()
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    @property
    def flowing(self) -> frozenset[int]:
        """The vbuckets with a stream."""
        return frozenset(self._there)

    def want(self, vbuckets: Iterable[int]) -> None:
        """Sets the vbuckets that have a stream: these and no others."""
        wanted = frozenset(vbuckets)
        if wanted != self._wanted:
            self._wanted = wanted
            self._changed.set()

    def restrict(self, vbuckets: Iterable[int]) -> None:
        """Ends the streams of all vbuckets but these."""
        self.want(self._wanted & frozenset(vbuckets))

    def leave(self, vbucket: int) -> None:
        """Ends the stream of one vbucket."""
        self.want(self._wanted - {vbucket})

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            try:
                relay = await ReplicationRelay.open(
                    self._source, self._target, self.name, self._ended
                )
            except UpriverError as problem:
                logger.info("%s: %s", self.name, problem)
            except Exception:
                logger.exception("%s: the relay cannot be opened", self.name)
            else:
                try:
                    await self._keep(relay, backoff)
                except UpriverError as problem:
                    logger.info("%s: %s", self.name, problem)
                except Exception:
                    logger.exception("%s: the relay failed", self.name)
                finally:
                    relay.close()
                    self._there.clear()
            await asyncio.sleep(backoff.next_pause())

    async def _keep(self, relay: ReplicationRelay, backoff: Backoff) -> None:
        """Keeps the streams of one connection until it is lost."""
        passing = asyncio.create_task(relay.run())
        try:
            while not passing.done():
                self._changed.clear()
                settled = await self._adjust(relay)
                if settled:
                    backoff.reset()
                changed = asyncio.create_task(self._changed.wait())
                pause = None if settled else backoff.next_pause()
                await asyncio.wait(
                    {passing, changed}, timeout=pause, return_when=asyncio.FIRST_COMPLETED
                )
                changed.cancel()
            await passing
        finally:
            passing.cancel()
            (outcome,) = await asyncio.gather(passing, return_exceptions=True)
            if isinstance(outcome, Exception) and not isinstance(outcome, UpriverError):
                raise outcome  # the cause, where only a lost connection was seen here

    async def _adjust(self, relay: ReplicationRelay) -> bool:
        """Closes and adds streams; false if some could not be added yet."""
        for vbucket in sorted(self._there - self._wanted):
            await relay.close_stream(vbucket)
            self._there.discard(vbucket)
        missing = sorted(self._wanted - self._there)
        settled = True
        for first in range(0, len(missing), _AT_ONCE):
            some = missing[first : first + _AT_ONCE]
            outcomes = await asyncio.gather(*(self._add(relay, vbucket) for vbucket in some))
            settled = settled and all(outcomes)
        return settled

    async def _add(self, relay: ReplicationRelay, vbucket: int) -> bool:
        if vbucket not in self._wanted:
            return True  # it was taken back while earlier streams were being added
        ends = self._ends[vbucket]
        status = await relay.add(vbucket)
        if status is Status.SUCCESS and ends == self._ends[vbucket]:
            self._there.add(vbucket)
        elif status is not Status.SUCCESS:
            logger.info("%s: vbucket %d: %s", self.name, vbucket, status.name)
        return vbucket in self._there

    def _ended(self, vbucket: int) -> None:
        self._ends[vbucket] += 1
        self._there.discard(vbucket)
        self._changed.set()
