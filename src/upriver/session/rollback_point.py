"""Computes a consumer's rollback point by comparing its failover log with the producer's.

A producer computes a rollback point itself when a stream is requested. But it knows only the
consumer's newest branch, and answers one seqno per request. Comparing the logs first finds the
rollback point in one round trip, even if the consumer followed branches that this producer lacks.
"""

from __future__ import annotations

from dataclasses import replace

from ..model import NO_END, FailoverLog, StreamOffset, rollback_point
from .consumer_events import RollbackReason
from .stream_position import Position


def agree(position: Position, served: FailoverLog) -> tuple[Position, RollbackReason | None]:
    """Returns the position from which the consumer can continue in the producer's history.

    The reason is None if that is where the consumer is, and no rollback is needed.
    """
    if position.seqno == 0 or not len(served):
        return position, None
    offset = position.offset
    shared = served.branch_end(offset.vbuuid, NO_END)
    if shared is not None:
        # A snapshot without a known end may extend past any seqno at which branches diverged.
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
            if needed <= shared:  # nothing was read on the branches after this one
                return _renamed(position, entry.vbuuid), None
            point = position.boundary_at_most(shared)
            return _at(position, point, entry.vbuuid), RollbackReason.DIVERGED
        left_at = min(left_at, entry.seqno)
    return _at(position, 0, 0), RollbackReason.UNKNOWN_BRANCH


def lowered(position: Position, asked: int) -> tuple[Position, RollbackReason]:
    """Returns the position for a rollback to ``asked`` by a producer that knows the branch."""
    reason = RollbackReason.AHEAD if asked else RollbackReason.PURGED
    point = position.boundary_at_most(min(asked, position.seqno))
    if point >= position.seqno:  # the producer refused this seqno, and would refuse it again
        point = 0
    return _at(position, point, position.offset.vbuuid), reason


def _renamed(position: Position, vbuuid: int) -> Position:
    """Returns the same position under the vbuuid of an older branch that also contains it."""
    offset = replace(position.offset, vbuuid=vbuuid)
    return replace(position, offset=offset, log=_followed(position, vbuuid))


def _at(position: Position, point: int, vbuuid: int) -> Position:
    """Returns the position at ``point``. Which manifest the consumer had seen there is unknown."""
    if point == 0:
        return Position()
    return Position(
        offset=StreamOffset.at(vbuuid, point),
        log=_followed(position, vbuuid).truncated(point),
        boundaries=tuple(b for b in position.boundaries if b <= point),
        purge_seqno=position.purge_seqno,
        origin=min(position.origin, point),
    )


def _followed(position: Position, vbuuid: int) -> FailoverLog:
    """Returns the consumer's log without the branches newer than ``vbuuid``."""
    entries = position.log.entries
    names = [entry.vbuuid for entry in entries]
    return FailoverLog(entries[names.index(vbuuid) :] if vbuuid in names else entries)
