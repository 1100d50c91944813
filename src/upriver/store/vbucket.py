"""In-memory state of a vbucket, and its stored form.

`Progress` changes with every write, and only the holder of the write lock may change it. Other
threads may read its counts, which can be one write group ahead. `Standing` and the published high
seqno change only when a group is committed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from .. import _entropy
from ..model import FailoverLog, Snapshot, VBucketState
from .rocksdb_layout import NO_COLLECTION

_NOTHING_YET = Snapshot(0, 0)

#: The most seqno ranges that a vbucket remembers as consistent. The recent ranges are all kept; of
#: the older ones every second is dropped when there are too many.
_MOST_RANGES: Final = 32
_RECENT_RANGES: Final = 16


def new_vbuuid() -> int:
    """Returns a random vbuuid for a new branch: 48 bits as on Couchbase servers, never 0."""
    return _entropy.randbelow(2**48 - 1) + 1


class PendingPrepare(NamedTuple):
    """A prepare that is neither committed nor aborted."""

    seqno: int
    level: int
    #: Whether another node, or this node before a restart, may have committed it. Its document
    #: cannot be read until the prepare is completed.
    maybe_committed: bool = False


class Progress:
    """The high seqnos of a vbucket and its collections, and its counts at that seqno."""

    __slots__ = (
        "hidden",
        "high",
        "highs",
        "history_bytes",
        "items",
        "last_collection",
        "last_completed",
        "prepared_seqno",
        "prepares",
        "purged_rev",
        "sync_seqno",
        "tombstones",
    )

    def __init__(
        self,
        high: int = 0,
        items: int = 0,
        tombstones: int = 0,
        history_bytes: int = 0,
        purged_rev: int = 0,
    ) -> None:
        self.high = high
        self.items = items
        self.tombstones = tombstones
        self.history_bytes = history_bytes
        #: The highest revision among purged tombstones. A key written again continues from it.
        self.purged_rev = purged_rev
        #: The collection of the change at ``high``; ``high`` is the high seqno of this collection.
        self.last_collection = NO_COLLECTION
        #: The high seqnos of the other collections. Other threads read the dictionary after its
        #: group is committed, so each group that changes it copies it first.
        self.highs: dict[int, int] = {}
        #: Pending prepares by the paths of their documents in keys. Each change creates a new
        #: dictionary, because other threads read it.
        self.prepares: dict[bytes, PendingPrepare] = {}
        #: The highest seqno of a prepare, of a completed prepare, and of any prepare or abort. For
        #: the time before the bucket was opened, only entries still on disk count.
        self.prepared_seqno = self.last_completed = self.sync_seqno = 0
        #: The last visible seqno, and the high seqno for which it is valid. The changes between
        #: the two are prepares and aborts.
        self.hidden = (0, 0)

    @property
    def visible(self) -> int:
        """The highest seqno of a change that is neither a prepare nor an abort."""
        visible, until = self.hidden
        return visible if until == self.high else self.high

    @property
    def completed_seqno(self) -> int:
        """The seqno up to which every prepare is committed or aborted."""
        lowest = min((pending.seqno for pending in self.prepares.values()), default=None)
        return self.last_completed if lowest is None else min(self.last_completed, lowest - 1)

    def hide(self, seqno: int) -> None:
        """Records that the change at ``seqno``, the new high seqno, is a prepare or an abort."""
        self.hidden = (self.visible, seqno)
        self.sync_seqno = seqno

    def add_prepare(self, path: bytes, pending: PendingPrepare) -> None:
        self.prepares = {**self.prepares, path: pending}
        self.prepared_seqno = max(self.prepared_seqno, pending.seqno)
        self.sync_seqno = max(self.sync_seqno, pending.seqno)

    def drop_prepare(self, path: bytes) -> None:
        known = self.prepares.get(path)
        if known is None:
            return
        self.last_completed = max(self.last_completed, known.seqno)
        self.prepares = {one: known for one, known in self.prepares.items() if one != path}

    def doubt_prepares(self) -> None:
        """Marks all pending prepares as possibly committed by another copy."""
        self.prepares = {
            path: pending._replace(maybe_committed=True) for path, pending in self.prepares.items()
        }

    def collection_highs(self) -> dict[int, int]:
        """Returns the high seqno of each collection that ever had a change."""
        return collection_highs((self.high, self.last_collection, self.highs))


#: A vbucket's high seqno, the collection of that change, and the high seqnos of the other
#: collections. It is one tuple, so that a thread that reads it without a lock gets matching values.
Reach = tuple[int, int, dict[int, int]]


def collection_highs(reach: Reach) -> dict[int, int]:
    """Returns the high seqno of each collection."""
    high, last_collection, others = reach
    highs = {**others, last_collection: high}
    highs.pop(NO_COLLECTION, None)
    return highs


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The state of a vbucket, its failover log, and the seqnos at which it was consistent."""

    state: VBucketState
    failover: FailoverLog
    #: The last snapshot that a replica received a marker for. It is complete at its end seqno.
    snapshot: Snapshot = _NOTHING_YET
    #: The end of the last complete snapshot before that one.
    whole_before: int = 0
    #: The seqno at which an active vbucket became active. It was consistent at every seqno since
    #: then. A replica is consistent only at the ends of snapshots.
    active_from: int = 0
    #: Earlier ranges of seqnos at which it was consistent, as first and last seqno, ascending.
    consistent: tuple[tuple[int, int], ...] = ()
    #: The highest seqno of a purged tombstone.
    purge_seqno: int = 0
    #: The lowest seqno to which the vbucket can be rolled back exactly.
    history_floor: int = 0

    @classmethod
    def fresh(cls, state: VBucketState) -> Standing:
        """Returns the standing of a vbucket that never had a change."""
        return cls(state=state, failover=FailoverLog.of((new_vbuuid(), 0)))

    def whole_until(self, high: int) -> int:
        """Returns the end of the last snapshot that was received completely."""
        return self.snapshot.end if high >= self.snapshot.end else self.whole_before

    def remembering(self, start: int, end: int) -> tuple[tuple[int, int], ...]:
        """Returns `consistent` with another range. Older ranges may be dropped."""
        ranges = (*self.consistent, (start, end))
        if len(ranges) > _MOST_RANGES:
            ranges = ranges[:-_RECENT_RANGES:2] + ranges[-_RECENT_RANGES:]
        return ranges

    def consistent_until(self, seqno: int, high: int) -> int:
        """Returns the newest seqno at most ``seqno`` at which the vbucket was consistent, or 0.

        Within a snapshot, a replica may lack the older version of a key that was written again
        before the snapshot's end. So it cannot be rolled back to such a seqno.
        """
        ranges = list(self.consistent)
        if self.state is VBucketState.ACTIVE:
            ranges.append((self.active_from, high))
        else:
            whole = self.whole_until(high)
            ranges.append((whole, whole))
        for start, end in reversed(ranges):
            if seqno >= start:
                return min(seqno, end)
        return 0

    def forgetting(self, above: int) -> tuple[tuple[int, int], ...]:
        """Returns `consistent` without the seqnos above ``above``."""
        return tuple((start, min(end, above)) for start, end in self.consistent if start <= above)


@dataclass(frozen=True, slots=True, kw_only=True)
class VBucketStats:
    """The statistics of a vbucket at one moment."""

    vbucket: int
    state: VBucketState
    items: int
    tombstones: int
    high_seqno: int
    persisted_seqno: int
    purge_seqno: int
    #: The lowest seqno to which the vbucket can be rolled back exactly.
    history_floor: int
    history_bytes: int
    vbuuid: int
    #: The highest seqno that consumers see; prepares and aborts are sent to replicas only.
    visible_seqno: int = 0
    high_prepared_seqno: int = 0
    high_completed_seqno: int = 0


class VBucket:
    """One vbucket, as all threads see it."""

    __slots__ = ("counted", "held", "high", "id", "progress", "reach", "standing", "synced")

    def __init__(self, vbucket: int, standing: Standing, progress: Progress) -> None:
        self.id = vbucket
        self.standing = standing
        self.progress = progress
        #: The highest committed seqno.
        self.high = progress.high
        #: The committed high seqnos of all collections.
        self.reach: Reach = (progress.high, progress.last_collection, progress.highs)
        #: The highest seqno that is known to be on disk; None if that is ``high``.
        self.synced: int | None = None
        #: Whether writes are refused with TEMPORARY_FAILURE.
        self.held = False
        #: The counts of this vbucket that `Totals` includes.
        self.counted = (0, 0, 0)

    def stats(self) -> VBucketStats:
        standing, progress, high, synced = self.standing, self.progress, self.high, self.synced
        return VBucketStats(
            vbucket=self.id,
            state=standing.state,
            items=progress.items,
            tombstones=progress.tombstones,
            high_seqno=high,
            persisted_seqno=high if synced is None else min(synced, high),
            purge_seqno=standing.purge_seqno,
            history_floor=max(standing.history_floor, standing.purge_seqno),
            history_bytes=progress.history_bytes,
            vbuuid=standing.failover.newest.vbuuid,
            visible_seqno=min(progress.visible, high),
            high_prepared_seqno=min(progress.prepared_seqno, high),
            high_completed_seqno=min(progress.completed_seqno, high),
        )


class Totals:
    """The committed counts of all vbuckets together, updated with every group."""

    __slots__ = ("_state_of", "history_bytes", "items", "states", "tombstones")

    def __init__(self, vbuckets: Iterable[VBucket]) -> None:
        self.items = self.tombstones = self.history_bytes = 0
        self.states: dict[VBucketState, int] = {}
        self._state_of: dict[int, VBucketState] = {}
        for vbucket in vbuckets:
            vbucket.counted = (0, 0, 0)
            self.count(vbucket)
            self.count_state(vbucket)

    def count(self, vbucket: VBucket) -> None:
        """Replaces the counts of a vbucket in the totals."""
        progress, (items, tombstones, history_bytes) = vbucket.progress, vbucket.counted
        self.items += progress.items - items
        self.tombstones += progress.tombstones - tombstones
        self.history_bytes += progress.history_bytes - history_bytes
        vbucket.counted = (progress.items, progress.tombstones, progress.history_bytes)

    def count_state(self, vbucket: VBucket) -> None:
        """Replaces the state of a vbucket in the totals."""
        state, before = vbucket.standing.state, self._state_of.get(vbucket.id)
        if state is not before:
            self._state_of[vbucket.id] = state
            self.states[state] = self.states.get(state, 0) + 1
            if before is not None:
                self.states[before] -= 1


def dump(standing: Standing, progress: Progress) -> bytes:
    """Returns a vbucket's stored form."""
    return json.dumps(
        {
            "state": standing.state.name,
            "failover": [[entry.vbuuid, entry.seqno] for entry in standing.failover],
            "snapshot": [standing.snapshot.start, standing.snapshot.end],
            "whole_before": standing.whole_before,
            "active_from": standing.active_from,
            "consistent": standing.consistent,
            "purge_seqno": standing.purge_seqno,
            "history_floor": standing.history_floor,
            "high": progress.high,
            "items": progress.items,
            "tombstones": progress.tombstones,
            "history_bytes": progress.history_bytes,
            "purged_rev": progress.purged_rev,
        }
    ).encode()


def load(raw: bytes) -> tuple[Standing, Progress]:
    """Parses `dump`. Raises ValueError if it is invalid."""
    try:
        stored: dict[str, Any] = json.loads(raw)
        failover = FailoverLog.of(*(tuple(pair) for pair in stored["failover"])).sanitised()
        if not len(failover):
            raise ValueError("its failover log has no branch with a name")
        standing = Standing(
            state=VBucketState[stored["state"]],
            failover=failover,
            snapshot=Snapshot(*stored["snapshot"]),
            whole_before=stored["whole_before"],
            active_from=stored["active_from"],
            consistent=tuple((start, end) for start, end in stored["consistent"]),
            purge_seqno=stored["purge_seqno"],
            history_floor=stored["history_floor"],
        )
        progress = Progress(
            stored["high"],
            stored["items"],
            stored["tombstones"],
            stored["history_bytes"],
            stored["purged_rev"],
        )
    except (KeyError, TypeError) as problem:
        raise ValueError(f"its entry cannot be read: {problem!r}") from None
    return standing, progress
