"""Whether a reader's position is part of a producer's history, told from their failover logs.

A producer decides this itself when a stream is asked for, but it knows only the reader's newest
branch, and answers one seqno at a time. Comparing the logs first finds the place to go back to in
one round, even where a reader has followed branches that this producer never had.
"""

from __future__ import annotations

from dataclasses import replace

from ..model import NO_END, FailoverLog, Snapshot, StreamOffset, rollback_point
from .events import RollbackReason
from .position import Position

__all__ = ["agree", "lowered"]


def agree(position: Position, served: FailoverLog) -> tuple[Position, RollbackReason | None]:
    """Where the reader can go on in the history that is served, and why if not where it is."""
    if position.seqno == 0 or not len(served):
        return position, None
    offset = position.offset
    shared = served.branch_end(offset.vbuuid, NO_END)
    if shared is not None:
        # a snapshot whose end is unknown may reach past any place where branches parted
        if rollback_point(served, offset, high_seqno=NO_END) is None:
            return position, None
        point = position.boundary_at_most(shared)
        return _at(position, point, offset.vbuuid), RollbackReason.DIVERGED
    left_at = NO_END
    needed = offset.seqno if offset.seqno == offset.snapshot.start else offset.snapshot.end
    for entry in position.log:
        shared = served.branch_end(entry.vbuuid, NO_END)
        if shared is not None:
            shared = min(shared, left_at)
            if needed <= shared:  # of the branches behind it nothing was read
                return _renamed(position, entry.vbuuid), None
            point = position.boundary_at_most(shared)
            return _at(position, point, entry.vbuuid), RollbackReason.DIVERGED
        left_at = min(left_at, entry.seqno)
    return _at(position, 0, 0), RollbackReason.UNKNOWN_BRANCH


def lowered(position: Position, asked: int) -> tuple[Position, RollbackReason]:
    """Where the reader goes when a producer that knows its branch still wants it at ``asked``."""
    reason = RollbackReason.AHEAD if asked else RollbackReason.PURGED
    point = position.boundary_at_most(min(asked, position.seqno))
    if point >= position.seqno:  # it was refused there, and would be refused again
        point = 0
    return _at(position, point, position.offset.vbuuid), reason


def _renamed(position: Position, vbuuid: int) -> Position:
    """The same place, called after an older branch that it is on as well."""
    offset = replace(position.offset, vbuuid=vbuuid)
    return replace(position, offset=offset, log=_followed(position, vbuuid))


def _at(position: Position, point: int, vbuuid: int) -> Position:
    if point == 0:
        return Position(manifest_uid=position.manifest_uid)
    return Position(
        offset=StreamOffset(vbuuid, point, Snapshot(point, point)),
        log=_followed(position, vbuuid).truncated(point),
        boundaries=tuple(b for b in position.boundaries if b <= point),
        manifest_uid=position.manifest_uid,
        purge_seqno=position.purge_seqno,
    )


def _followed(position: Position, vbuuid: int) -> FailoverLog:
    """The reader's branches without those after one of them."""
    entries = position.log.entries
    names = [entry.vbuuid for entry in entries]
    return FailoverLog(entries[names.index(vbuuid) :] if vbuuid in names else entries)
