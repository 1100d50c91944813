"""Where a reader is in a vbucket, and every earlier place to which it could go back.

A reader's view of a vbucket is consistent only where a snapshot ended. After a failover it must
return to such a place, not just to any seqno: inside a snapshot the older version of a key that
moved up was never sent. So a position remembers some of these *boundaries*, many near its seqno
and few far from it.

In drafts without seqnos in their markers a snapshot's end is not known until it was reached; an
open one ends at `model.NO_END`, which every producer takes for "not complete". Nothing here knows
bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ..model import FailoverLog, Snapshot, StreamOffset

__all__ = ["Position", "PositionTracker"]

#: A tracker remembers at most this many boundaries, and thins them out beyond it.
_MOST_BOUNDARIES: Final = 48
#: How many times too far back a reader may have to go because of that. With 4 the longest history
#: leaves fewer than the limit.
_SPACING: Final = 4.0

_NO_LOG: Final = FailoverLog(())


@dataclass(frozen=True, slots=True)
class Position:
    """How far a reader of one vbucket is. Equal positions resume alike."""

    offset: StreamOffset = field(default_factory=StreamOffset.beginning)
    #: The branches that the reader has followed, newest first; empty if it never read.
    log: FailoverLog = _NO_LOG
    #: Seqnos at which the reader was consistent, rising, none above its own; 0 goes without saying.
    boundaries: tuple[int, ...] = ()
    #: The collections' manifest that the reader last heard of.
    manifest_uid: int = 0
    #: The purge seqno that the producer last told, where it tells.
    purge_seqno: int = 0

    @property
    def seqno(self) -> int:
        return self.offset.seqno

    @property
    def is_consistent(self) -> bool:
        """Whether a snapshot was complete here."""
        return self.offset.seqno in (self.offset.snapshot.end, 0)

    @property
    def last_boundary(self) -> int:
        """The newest seqno at which the reader was consistent."""
        if self.is_consistent:
            return self.seqno
        return self.boundaries[-1] if self.boundaries else 0

    def boundary_at_most(self, seqno: int) -> int:
        """The newest boundary that is not above ``seqno``."""
        if self.is_consistent and self.seqno <= seqno:
            return self.seqno
        index = bisect_right(self.boundaries, seqno)
        return self.boundaries[index - 1] if index else 0

    def rewound(self, seqno: int) -> Position:
        """This position at its newest boundary not above ``seqno``, on the branch of then."""
        point = self.boundary_at_most(seqno)
        if point == 0:
            return Position(manifest_uid=self.manifest_uid)
        log = self.log.truncated(point)
        vbuuid = log.newest.vbuuid if len(log) else self.offset.vbuuid
        return Position(
            offset=StreamOffset(vbuuid, point, Snapshot(point, point)),
            log=log,
            boundaries=tuple(b for b in self.boundaries if b <= point),
            manifest_uid=self.manifest_uid,
        )


class PositionTracker:
    """Follows one stream and can say its position at any moment.

    A marker alone changes nothing: until the first item of its snapshot has come it is pending,
    because a request that names it would be refused.
    """

    __slots__ = (
        "_boundaries",
        "_pending",
        "_snapshot",
        "log",
        "manifest_uid",
        "purge_seqno",
        "seqno",
        "vbuuid",
    )

    def __init__(self, position: Position | None = None) -> None:
        position = position or Position()
        self.vbuuid = position.offset.vbuuid
        self.seqno = position.offset.seqno
        self.log = position.log
        self.manifest_uid = position.manifest_uid
        self.purge_seqno = position.purge_seqno
        self._snapshot = position.offset.snapshot
        self._pending: Snapshot | None = None
        self._boundaries = list(position.boundaries)
        if self.seqno and self.is_consistent:
            self._remember(self.seqno)

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot that the next item is in, pending or not."""
        return self._pending or self._snapshot

    @property
    def is_consistent(self) -> bool:
        return self.seqno in (self._snapshot.end, 0)

    @property
    def last_boundary(self) -> int:
        """The newest seqno at which the reader was consistent."""
        if self.is_consistent:
            return self.seqno
        return self._boundaries[-1] if self._boundaries else 0

    def position(self) -> Position:
        return Position(
            offset=StreamOffset(self.vbuuid, self.seqno, self._snapshot),
            log=self.log,
            boundaries=tuple(self._boundaries),
            manifest_uid=self.manifest_uid,
            purge_seqno=self.purge_seqno,
        )

    def follow(self, log: FailoverLog) -> None:
        """The producer serves this history; what comes belongs to its newest branch."""
        if len(log):
            self.log, self.vbuuid = log, log.newest.vbuuid

    def snapshot_began(self, snapshot: Snapshot) -> None:
        self._pending = snapshot

    def advanced(self, seqno: int) -> None:
        """Everything up to ``seqno`` was received, or was not for this reader."""
        self.seqno = seqno
        if self._pending is not None:
            # a second marker for the rest of a snapshot does not make its first part complete
            self._snapshot, self._pending = self._pending, None
        if seqno == self._snapshot.end:
            self._remember(seqno)

    def snapshot_ended(self) -> None:
        """The snapshot is complete at the last seqno, whatever its marker said."""
        self._pending = None
        self._snapshot = Snapshot(self.seqno, self.seqno)
        if self.seqno:
            self._remember(self.seqno)

    def _remember(self, seqno: int) -> None:
        boundaries = self._boundaries
        if boundaries and boundaries[-1] >= seqno:
            return
        boundaries.append(seqno)
        if len(boundaries) > _MOST_BOUNDARIES:
            self._boundaries = _thinned(boundaries)


def _thinned(boundaries: Sequence[int]) -> list[int]:
    """The newest boundary, and ever fewer of the older ones, down to the oldest.

    One goes only where its older neighbour is near enough to serve for it, so going back some way
    costs at most `_SPACING` times that way.
    """
    newest = boundaries[-1]
    kept, reach = [newest], 1.0
    for index in range(len(boundaries) - 2, -1, -1):
        if index == 0 or newest - boundaries[index - 1] > reach * _SPACING:
            kept.append(boundaries[index])
            reach = newest - boundaries[index]
    kept.reverse()
    return kept
