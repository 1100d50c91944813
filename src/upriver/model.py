"""Domain types shared by all packages: offsets, snapshots, failover logs, states, operations.

They are immutable and comparable, and independent of encodings, sockets and disks. Only flag bits
have the numbers of the wire.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, IntFlag, auto
from itertools import pairwise

__all__ = [
    "MAX_FAILOVER_ENTRIES",
    "NO_END",
    "Datatype",
    "FailoverEntry",
    "FailoverLog",
    "Op",
    "Snapshot",
    "StreamEndReason",
    "StreamOffset",
    "VBucketState",
    "rollback_point",
]

#: The end seqno of a stream that never ends.
NO_END = 2**64 - 1

#: A failover log keeps this many branches, as real servers do; the oldest go first.
MAX_FAILOVER_ENTRIES = 25


class VBucketState(Enum):
    """What a node does with a vbucket. The drafts number these differently."""

    ACTIVE = auto()
    REPLICA = auto()
    PENDING = auto()
    DEAD = auto()


class StreamEndReason(Enum):
    """Why a producer ended a stream. The drafts number these differently."""

    OK = auto()
    CLOSED = auto()
    STATE_CHANGED = auto()
    DISCONNECTED = auto()
    TOO_SLOW = auto()
    BACKFILL_FAILED = auto()
    ROLLBACK = auto()
    FILTER_EMPTY = auto()
    LOST_PRIVILEGES = auto()


class Op(Enum):
    """What a change did to its document."""

    MUTATION = "mutation"
    DELETION = "deletion"
    EXPIRATION = "expiration"


class Datatype(IntFlag):
    """What a value consists of; these bits are the same in every draft that has them."""

    RAW = 0
    JSON = 1
    SNAPPY = 2
    XATTR = 4


@dataclass(frozen=True, slots=True, order=True)
class Snapshot:
    """A range of seqnos in which a key appears once; consistent only at its end."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """A position in a vbucket's history. A seqno alone cannot survive a failover."""

    vbuuid: int
    seqno: int
    snapshot: Snapshot

    @classmethod
    def beginning(cls) -> StreamOffset:
        return cls.at(vbuuid=0, seqno=0)

    @classmethod
    def at(cls, vbuuid: int, seqno: int) -> StreamOffset:
        """Where a snapshot ended."""
        return cls(vbuuid, seqno, Snapshot(seqno, seqno))


@dataclass(frozen=True, slots=True)
class FailoverEntry:
    """One branch of a vbucket's history: its name and the seqno at which it began."""

    vbuuid: int
    seqno: int


@dataclass(frozen=True, slots=True)
class FailoverLog:
    """The branches of a vbucket's history, newest first."""

    entries: tuple[FailoverEntry, ...]

    @classmethod
    def of(cls, *pairs: tuple[int, int]) -> FailoverLog:
        """Build a log from ``(vbuuid, seqno)`` pairs, newest first."""
        return cls(tuple(FailoverEntry(vbuuid, seqno) for vbuuid, seqno in pairs))

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[FailoverEntry]:
        return iter(self.entries)

    @property
    def newest(self) -> FailoverEntry:
        return self.entries[0]

    def branch(self, vbuuid: int, seqno: int) -> FailoverLog:
        """A new branch begins at ``seqno``: entries above it go, then the oldest past the limit."""
        kept = tuple(entry for entry in self.entries if entry.seqno <= seqno)
        entries = (FailoverEntry(vbuuid, seqno), *kept)
        return FailoverLog(entries[:MAX_FAILOVER_ENTRIES])

    def truncated(self, seqno: int) -> FailoverLog:
        """The log without the branches that began above ``seqno``."""
        return FailoverLog(tuple(entry for entry in self.entries if entry.seqno <= seqno))

    def newest_first(self) -> FailoverLog:
        """The log of a server with all its branches, the current one first.

        Servers send the current branch first. A log whose seqnos only rise is oldest first instead
        and is turned around, because a branch never begins above one that replaced it. In any other
        order the first branch is the current one. A vbuuid of 0 names no branch.
        """
        named = tuple(entry for entry in self.entries if entry.vbuuid != 0)
        steps = [other.seqno - one.seqno for one, other in pairwise(named)]
        is_oldest_first = any(steps) and min(steps) >= 0
        return FailoverLog(named[::-1] if is_oldest_first else named)

    def sanitised(self) -> FailoverLog:
        """The log without unusable entries: vbuuid 0, or a start above that of a newer branch."""
        kept: list[FailoverEntry] = []
        for entry in self.entries:
            if entry.vbuuid != 0 and (not kept or entry.seqno <= kept[-1].seqno):
                kept.append(entry)
        return FailoverLog(tuple(kept))

    def branch_end(self, vbuuid: int, high_seqno: int) -> int | None:
        """The last seqno that branch ``vbuuid`` shares with this history; None if it is unknown.

        That is where the first of the later branches began: the next one, unless the log is in no
        order of seqnos.
        """
        for position in range(len(self.entries) - 1, -1, -1):  # from the oldest, as real servers do
            if self.entries[position].vbuuid == vbuuid:
                later = self.entries[:position]
                return min((entry.seqno for entry in later), default=high_seqno)
        return None


def rollback_point(
    log: FailoverLog,
    offset: StreamOffset,
    *,
    high_seqno: int,
    purge_seqno: int = 0,
    reader_purge_seqno: int = 0,
    strict: bool = False,
    collections_high_seqno: int | None = None,
) -> int | None:
    """The seqno to which a reader at ``offset`` must roll back; None if it may go on.

    The order of these tests is part of the protocol. ``collections_high_seqno`` is the highest
    seqno among the collections of a filtered stream: purged tombstones above it belong to other
    collections.
    """
    start, snap_start, snap_end = offset.seqno, offset.snapshot.start, offset.snapshot.end
    if start == 0 and (not strict or offset.vbuuid == 0):
        return None
    purged_past = start != 0 and start < purge_seqno and reader_purge_seqno != purge_seqno
    if purged_past and not (
        collections_high_seqno is not None
        and start >= collections_high_seqno
        and collections_high_seqno <= purge_seqno
    ):
        return 0
    upper = log.branch_end(offset.vbuuid, high_seqno)
    if upper is None:
        return 0
    if start == snap_start:  # the marker was seen, but none of its items
        snap_end = start
    if snap_end <= upper:
        return None
    if start == snap_end:  # the snapshot was complete
        snap_start = start
    return min(upper, snap_start)
