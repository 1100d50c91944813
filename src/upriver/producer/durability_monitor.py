"""Durability monitor: commits the prepares that enough copies have, and aborts those that time out.

    prepared ──acknowledged by a majority──────────────> committed
           └──its time is over────────────────────────> aborted
           └──the vbucket is not active here any more──> left to its new active copy

It handles all prepares of active vbuckets: those of connected clients, those of clients that have
disconnected, those that were pending when the node was stopped, and those that a replica had when
it became active. For the last two kinds, another node may already have confirmed that the write
succeeded, so they never time out. The monitor runs on the server's event loop; only the threads of
the store write.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, Protocol

from ..errors import Status, StoreError, StoreRefusal
from ..model import VBucketState
from ..store import AbortPrepared, Applied, Bucket, CommitPrepared, Outcome, PendingPrepare
from .keyvalue.durability_requirements import DEFAULT_SECONDS, CopyNames

logger = logging.getLogger("upriver.producer")

#: Seconds between two checks of prepares that clients wait for, at first and at most, and of all
#: other prepares.
_FIRST_PAUSE: Final = 0.001
_LAST_PAUSE: Final = 0.02
_IDLE_PAUSE: Final = 0.25
#: The lowest durability level for which this node must have the prepare on its own disk.
_PERSISTED_LEVEL: Final = 2

#: Identifies a prepare: the bucket's name, the vbucket and the seqno.
_Place = tuple[str, int, int]
_Completion = CommitPrepared | AbortPrepared


class _Node(Protocol):
    """What the monitor needs of its node."""

    @property
    def leased(self) -> bool: ...
    def open_buckets(self) -> list[Bucket]: ...
    def copies(self, bucket: Bucket, vbucket: int) -> CopyNames | None: ...


@dataclass(slots=True)
class _Waiting:
    """A client that waits for the result of its prepare."""

    bucket: Bucket
    vbucket: int
    #: The vbuuid under which the prepare was made.
    vbuuid: int
    deadline: float
    future: Future[Applied | Status] = field(default_factory=Future)


class DurabilityMonitor:
    """Completes the prepares of one server."""

    def __init__(self, node: _Node, copied: Callable[[Bucket, int], Mapping[str, int]]) -> None:
        """``copied`` returns the seqno up to which each other node has acknowledged a vbucket."""
        self._node = node
        self._copied = copied
        self._waiting: dict[_Place, _Waiting] = {}
        #: When prepares that no client waits for are aborted.
        self._deadlines: dict[_Place, float] = {}
        self._completing: set[_Place] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._pause = _FIRST_PAUSE
        self._next_round = 0.0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._schedule(0)

    def stop(self) -> None:
        """Stops the monitor. Waiting clients are answered that their writes are ambiguous."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._loop = None
        for place in list(self._waiting):
            self._tell(place, Status.SYNC_WRITE_AMBIGUOUS)

    def wait(self, bucket: Bucket, prepared: Applied, deadline: float) -> Future[Applied | Status]:
        """Returns a future of the result of a prepare: its commit, or an error status."""
        place = (bucket.name, prepared.vbucket, prepared.seqno)
        vbuuid = bucket.failover_log(prepared.vbucket).newest.vbuuid
        waiting = self._waiting[place] = _Waiting(bucket, prepared.vbucket, vbuuid, deadline)
        self._pause = _FIRST_PAUSE
        self._schedule(0)
        return waiting.future

    def woken(self) -> None:
        """Called when a vbucket changed: it may have prepares, or have become active with some."""
        if self._timer is None:
            self._schedule(_IDLE_PAUSE)

    # ---- checking prepares ---------------------------------------------------------------

    def _schedule(self, seconds: float) -> None:
        if self._loop is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._loop is None:
            return
        now = self._loop.time()
        try:
            if now >= self._next_round:
                self._next_round = now + _IDLE_PAUSE
                self._look_everywhere(now)
            else:
                for bucket, vbucket in self._awaited():
                    self._look_at(bucket, vbucket, now)
            self._resolve_lost()
            is_pending = self._is_pending
        except StoreError as error:
            logger.warning("durable writes wait: %s", error)
            is_pending = True  # for all that is known
        if self._waiting:
            self._schedule(self._pause)
            self._pause = min(2 * self._pause, _LAST_PAUSE)
        elif is_pending:
            self._schedule(_IDLE_PAUSE)

    def _awaited(self) -> list[tuple[Bucket, int]]:
        """Returns the vbuckets with prepares that clients wait for."""
        found = {
            (waiting.bucket.name, waiting.vbucket): waiting for waiting in self._waiting.values()
        }
        return [(waiting.bucket, waiting.vbucket) for waiting in found.values()]

    @property
    def _is_pending(self) -> bool:
        """Whether any bucket has prepares. If none has, the monitor sets no timer."""
        return any(bucket.vbuckets_with_prepares() for bucket in self._node.open_buckets())

    def _look_everywhere(self, now: float) -> None:
        seen: set[_Place] = set()
        for bucket in self._node.open_buckets():
            for vbucket in bucket.vbuckets_with_prepares():
                self._look_at(bucket, vbucket, now)
                seen |= {(bucket.name, vbucket, one.seqno) for _, one in bucket.prepares(vbucket)}
        self._deadlines = {place: at for place, at in self._deadlines.items() if place in seen}

    def _look_at(self, bucket: Bucket, vbucket: int, now: float) -> None:
        """Commits or aborts the prepares of a vbucket that are due, oldest first."""
        names = self._node.copies(bucket, vbucket)
        stats = bucket.vbucket_stats(vbucket)
        if names is None or not self._node.leased or stats.state is not VBucketState.ACTIVE:
            return
        acknowledged = self._copied(bucket, vbucket)
        changes: list[tuple[_Place, _Completion]] = []
        for key, pending in bucket.prepares(vbucket):
            place = (bucket.name, vbucket, pending.seqno)
            if place in self._completing:
                continue
            persists = pending.level >= _PERSISTED_LEVEL or not names.needed
            is_on_disk = stats.persisted_seqno >= pending.seqno or not persists
            if is_on_disk and names.have(acknowledged, pending.seqno):
                changes.append((place, CommitPrepared(vbucket, key, pending.seqno)))
            elif now >= self._deadline(place, pending, now):
                changes.append((place, AbortPrepared(vbucket, key, pending.seqno)))
        if changes:
            self._complete(bucket, changes)

    def _deadline(self, place: _Place, pending: PendingPrepare, now: float) -> float:
        waiting = self._waiting.get(place)
        if waiting is not None:
            return waiting.deadline
        if pending.maybe_committed:
            return float("inf")
        return self._deadlines.setdefault(place, now + DEFAULT_SECONDS)

    # ---- completing prepares -------------------------------------------------------------

    def _complete(self, bucket: Bucket, changes: list[tuple[_Place, _Completion]]) -> None:
        future = bucket.submit([change for _, change in changes])
        self._completing.update(place for place, _ in changes)
        loop = self._loop

        def notify(done: Future[list[Outcome]]) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                assert loop is not None
                loop.call_soon_threadsafe(self._completed, bucket, changes, done)

        future.add_done_callback(notify)

    def _completed(
        self,
        bucket: Bucket,
        changes: list[tuple[_Place, _Completion]],
        done: Future[list[Outcome]],
    ) -> None:
        self._completing.difference_update(place for place, _ in changes)
        if done.exception() is not None:
            return  # the store has logged the error; it is retried
        gone: list[tuple[_Place, _Completion]] = []
        for (place, change), outcome in zip(changes, done.result(), strict=True):
            if isinstance(outcome, Applied):
                commits = isinstance(change, CommitPrepared)
                self._tell(place, outcome if commits else Status.SYNC_WRITE_AMBIGUOUS)
            elif isinstance(change, CommitPrepared) and _is_dropped(outcome):
                # The collection was dropped after the prepare, and the document with it.
                gone.append((place, AbortPrepared(*change)))
                self._tell(place, Status.UNKNOWN_COLLECTION)
        if gone:
            with contextlib.suppress(StoreError):
                self._complete(bucket, gone)

    def _resolve_lost(self) -> None:
        """Answers clients whose prepare is gone, or belongs to another node now, as ambiguous."""
        for place, waiting in list(self._waiting.items()):
            if place in self._completing:
                continue
            stats = waiting.bucket.vbucket_stats(waiting.vbucket)
            pending = waiting.bucket.prepares(waiting.vbucket)
            is_pending = any(one.seqno == place[2] for _, one in pending)
            same = stats.state is VBucketState.ACTIVE and stats.vbuuid == waiting.vbuuid
            if not same or not is_pending or not self._node.leased:
                self._tell(place, Status.SYNC_WRITE_AMBIGUOUS)

    def _tell(self, place: _Place, outcome: Applied | Status) -> None:
        waiting = self._waiting.pop(place, None)
        if waiting is not None and waiting.future.set_running_or_notify_cancel():
            waiting.future.set_result(outcome)


def _is_dropped(outcome: Outcome) -> bool:
    return isinstance(outcome, StoreRefusal) and outcome.status is Status.UNKNOWN_COLLECTION
