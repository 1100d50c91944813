"""Stream position: how far a consumer has read a vbucket, and where it can roll back to.

A consumer's copy of a vbucket is consistent only at the end of a snapshot. After a failover it
must return to such a seqno, not to any seqno: a snapshot contains only the newest version of a
key, so the older version of a key that was changed again was never sent. A position therefore
keeps some of these *boundaries*, many near its seqno and few far below it.

A consumer that started at a given seqno, for example at the current high seqno, has no data up to
that seqno (its *origin*). It can roll back to any seqno up to its origin, because it has nothing
to discard there.

In drafts whose markers carry no seqnos, the end of a snapshot is unknown until it is reached. Such
an open snapshot ends at `model.NO_END`, which every producer treats as incomplete. This module
knows no wire format.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ..model import FailoverLog, Snapshot, StreamOffset

#: A tracker with more than the first number of boundaries reduces them to the second.
_MOST_BOUNDARIES: Final = 60
_KEPT_BOUNDARIES: Final = 48
#: Spacing factors for reducing the boundaries: the first one that leaves few enough is used. A
#: rollback may go back this many times too far. Half a million seqnos need 1.3; the longest
#: history needs 2.6.
_SPACINGS: Final = (1.1, 1.3, 1.6, 2.0, 2.6)

_NO_LOG: Final = FailoverLog(())


@dataclass(frozen=True, slots=True)
class Position:
    """How far a consumer has read one vbucket. Equal positions resume at the same point."""

    offset: StreamOffset = field(default_factory=StreamOffset.beginning)
    #: The branches that the consumer has followed, newest first; empty if it never read.
    log: FailoverLog = _NO_LOG
    #: Seqnos at which the consumer was consistent, ascending, none above its own; 0 is implied.
    boundaries: tuple[int, ...] = ()
    #: The uid of the last collections manifest that the consumer received.
    manifest_uid: int = 0
    #: The purge seqno that the producer sent last; 0 if it sent none.
    purge_seqno: int = 0
    #: The consumer has no data up to this seqno, because it was set to start here.
    origin: int = 0

    @property
    def seqno(self) -> int:
        return self.offset.seqno

    @property
    def is_consistent(self) -> bool:
        """Whether the position is at the end of a snapshot."""
        return self.offset.seqno in (self.offset.snapshot.end, 0)

    @property
    def last_boundary(self) -> int:
        """The newest seqno at which the consumer was consistent."""
        if self.is_consistent:
            return self.seqno
        return self.boundaries[-1] if self.boundaries else self.origin

    def boundary_at_most(self, seqno: int) -> int:
        """Returns the newest seqno at most ``seqno`` at which the consumer was consistent."""
        if self.is_consistent and self.seqno <= seqno:
            return self.seqno
        index = bisect_right(self.boundaries, seqno)
        return self.boundaries[index - 1] if index else min(self.origin, seqno)

    def rewound(self, seqno: int) -> Position:
        """Returns the position at the newest boundary at most ``seqno``, on the branch of then.

        An earlier position names no manifest: which one the consumer had seen by then is not known.
        """
        point = self.boundary_at_most(seqno)
        if point == 0:
            return Position()
        log = self.log.truncated(point)
        vbuuid = log.newest.vbuuid if len(log) else self.offset.vbuuid
        return Position(
            offset=StreamOffset.at(vbuuid, point),
            log=log,
            boundaries=tuple(b for b in self.boundaries if b <= point),
            manifest_uid=self.manifest_uid if point == self.seqno else 0,
            origin=min(self.origin, point),
        )


class PositionTracker:
    """Tracks the position of one stream.

    A snapshot marker alone does not change the position. It is pending until the first item of
    its snapshot arrives, because a producer would refuse a request that names it.
    """

    __slots__ = (
        "_boundaries",
        "_pending",
        "_pending_purge",
        "_snapshot",
        "log",
        "manifest_uid",
        "origin",
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
        self.origin = position.origin
        self._snapshot = position.offset.snapshot
        self._pending: Snapshot | None = None
        self._pending_purge: int | None = None
        self._boundaries = list(position.boundaries)
        if self.seqno and self.is_consistent:
            self._remember(self.seqno)

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot of the next item, pending or not."""
        return self._pending or self._snapshot

    @property
    def is_consistent(self) -> bool:
        return self.seqno in (self._snapshot.end, 0)

    @property
    def last_boundary(self) -> int:
        """The newest seqno at which the consumer was consistent."""
        if self.is_consistent:
            return self.seqno
        return self._boundaries[-1] if self._boundaries else self.origin

    def position(self) -> Position:
        return Position(
            offset=StreamOffset(self.vbuuid, self.seqno, self._snapshot),
            log=self.log,
            boundaries=tuple(self._boundaries),
            manifest_uid=self.manifest_uid,
            purge_seqno=self.purge_seqno,
            origin=self.origin,
        )

    def follow(self, log: FailoverLog) -> None:
        """Sets the producer's failover log. Further changes belong to its newest branch."""
        if len(log):
            self.log, self.vbuuid = log, log.newest.vbuuid

    def snapshot_began(self, snapshot: Snapshot, purge_seqno: int | None = None) -> None:
        self._pending, self._pending_purge = snapshot, purge_seqno

    def advanced(self, seqno: int) -> None:
        """Advances to ``seqno``: everything up to it was received or excluded by the filter."""
        self.seqno = seqno
        if self._pending is not None:
            # A second marker for the rest of a snapshot does not complete its first part.
            self._snapshot, self._pending = self._pending, None
            if self._pending_purge is not None:
                self.purge_seqno = self._pending_purge
        if seqno == self._snapshot.end:
            self._remember(seqno)

    def snapshot_ended(self) -> None:
        """Completes the snapshot at the current seqno, whatever its marker announced."""
        self._pending = None
        self._snapshot = Snapshot(self.seqno, self.seqno)
        if self.seqno:
            self._remember(self.seqno)

    def emptied(self) -> None:
        """Returns to the beginning: everything that the consumer has was deleted.

        The snapshot that was announced goes on, in case the stream does.
        """
        between = self._pending is None and self.is_consistent
        self._pending = None if between else Snapshot(0, self.snapshot.end)
        self._snapshot, self._boundaries = Snapshot(0, 0), []
        self.seqno = self.origin = self.manifest_uid = 0

    def _remember(self, seqno: int) -> None:
        boundaries = self._boundaries
        if boundaries and boundaries[-1] >= seqno:
            return
        boundaries.append(seqno)
        if len(boundaries) > _MOST_BOUNDARIES:
            self._boundaries = _thinned(boundaries)


def _thinned(boundaries: Sequence[int]) -> list[int]:
    """Reduces the boundaries: keeps the newest and oldest, and fewer the older they are."""
    kept: list[int] = []
    for spacing in _SPACINGS:
        kept = _spaced(boundaries, spacing)
        if len(kept) <= _KEPT_BOUNDARIES:
            break
    return kept


def _spaced(boundaries: Sequence[int], spacing: float) -> list[int]:
    """Drops boundaries whose next older boundary is close enough to replace them.

    A rollback then goes back at most ``spacing`` times as far as needed.
    """
    newest = boundaries[-1]
    kept, reach = [newest], 1.0
    for index in range(len(boundaries) - 2, -1, -1):
        if index == 0 or newest - boundaries[index - 1] > reach * spacing:
            kept.append(boundaries[index])
            reach = newest - boundaries[index]
    kept.reverse()
    return kept
