"""What is known of a vbucket without asking the disk, and how that is kept.

`Progress` changes with every write and belongs to whoever holds the write lock; others may look
at its counts, which can be a group ahead. `Standing` and the high seqno that others see change
only when a group is committed.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import Any, Final

from ..model import FailoverLog, Snapshot, VBucketState
from .layout import NO_COLLECTION

__all__ = ["Progress", "Standing", "VBucket", "VBucketStats", "dump", "load", "new_vbuuid"]


_NOTHING_YET = Snapshot(0, 0)

#: Ranges of seqnos to which a vbucket remembers that it could go back: those of the last few
#: snapshots, and ever fewer of the older ones.
_MOST_RANGES: Final = 32
_RECENT_RANGES: Final = 16


def new_vbuuid() -> int:
    """The name of a new branch: 48 bits as on real servers, never 0."""
    return secrets.randbelow(2**48 - 1) + 1


class Progress:
    """How far a vbucket and its collections have come, and its counts at that seqno."""

    __slots__ = (
        "high",
        "highs",
        "history_bytes",
        "items",
        "last_collection",
        "purged_rev",
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
        #: The highest revision among purged tombstones; a key that comes back goes on from it.
        self.purged_rev = purged_rev
        #: The collection of the change at ``high``, whose high seqno that is.
        self.last_collection = NO_COLLECTION
        #: The high seqnos of the other collections. Others read it once its group is committed,
        #: so each group that alters it makes its own.
        self.highs: dict[int, int] = {}

    def collection_highs(self) -> dict[int, int]:
        """The high seqno of each collection that ever had a change."""
        return collection_highs((self.high, self.last_collection, self.highs))


#: A vbucket's high seqno, the collection that has it, and those of the other collections: one
#: value, so that whoever reads it without a lock has what belongs together.
Reach = tuple[int, int, dict[int, int]]


def collection_highs(reach: Reach) -> dict[int, int]:
    """The high seqno of each collection."""
    high, last_collection, others = reach
    highs = {**others, last_collection: high}
    highs.pop(NO_COLLECTION, None)
    return highs


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a vbucket is."""

    state: VBucketState
    failover: FailoverLog
    #: The last snapshot that a replica was told of; whole when its end was reached.
    snapshot: Snapshot = _NOTHING_YET
    #: The end of the last whole snapshot before that one.
    whole_before: int = 0
    #: From which seqno on an active vbucket has been what it is. Whatever it was at any seqno since
    #: then is consistent; of a copy that holds only for the ends of snapshots.
    active_from: int = 0
    #: Where it was consistent before: seqnos from and to, rising.
    consistent: tuple[tuple[int, int], ...] = ()
    #: The highest tombstone that was purged.
    purge_seqno: int = 0
    #: The lowest seqno to which it can be rolled back exactly.
    history_floor: int = 0

    @classmethod
    def fresh(cls, state: VBucketState) -> Standing:
        """Of a vbucket that never had a change."""
        return cls(state=state, failover=FailoverLog.of((new_vbuuid(), 0)))

    def whole_until(self, high: int) -> int:
        """The end of the last snapshot that was received whole."""
        return self.snapshot.end if high >= self.snapshot.end else self.whole_before

    def remembering(self, start: int, end: int) -> tuple[tuple[int, int], ...]:
        """What `consistent` is with another range; older ones may go to make room."""
        ranges = (*self.consistent, (start, end))
        if len(ranges) > _MOST_RANGES:
            ranges = ranges[:-_RECENT_RANGES:2] + ranges[-_RECENT_RANGES:]
        return ranges

    def consistent_until(self, seqno: int, high: int) -> int:
        """The newest seqno, not above ``seqno``, at which nothing was missing; 0 if none is left.

        Between the ends of snapshots a copy may lack the older version of a key that was
        written again before the end, so it cannot stop there.
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
        """What `consistent` is without anything above a seqno."""
        return tuple((start, min(end, above)) for start, end in self.consistent if start <= above)


@dataclass(frozen=True, slots=True, kw_only=True)
class VBucketStats:
    """A vbucket's counts and seqnos at one moment."""

    vbucket: int
    state: VBucketState
    items: int
    tombstones: int
    high_seqno: int
    persisted_seqno: int
    purge_seqno: int
    #: The lowest seqno to which it can be rolled back exactly.
    history_floor: int
    history_bytes: int
    vbuuid: int


class VBucket:
    """One vbucket as every thread sees it."""

    __slots__ = ("held", "high", "id", "progress", "reach", "standing", "synced")

    def __init__(self, vbucket: int, standing: Standing, progress: Progress) -> None:
        self.id = vbucket
        self.standing = standing
        self.progress = progress
        #: The highest seqno that is committed.
        self.high = progress.high
        #: As committed, for every collection.
        self.reach: Reach = (progress.high, progress.last_collection, progress.highs)
        #: The highest that is on disk for certain, while that is not the same.
        self.synced: int | None = None
        #: Whether writers are asked to come back later.
        self.held = False

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
        )


def dump(standing: Standing, progress: Progress) -> bytes:
    """A vbucket's entry on disk."""
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
    """Reads `dump`; ValueError says what is wrong."""
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
