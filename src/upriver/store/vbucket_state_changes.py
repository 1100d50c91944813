"""Changes of whole vbuckets: their state, their failover log, and their flush."""

from __future__ import annotations

from typing import Final

from ..errors import Status, StoreRefusal
from ..model import FailoverLog, Snapshot, VBucketState
from . import rollback
from .bucket_core import BucketCore
from .vbucket import new_vbuuid

_COPIES: Final = (VBucketState.REPLICA, VBucketState.PENDING)


def set_state(core: BucketCore, vbucket: int, state: VBucketState, *, transfer: bool) -> None:
    """Sets the state of a vbucket; one that becomes active begins a branch, but by a transfer."""
    with core.change() as group:
        standing, high = group.standing(vbucket), group.open(vbucket).high
        active = VBucketState.ACTIVE
        if standing.state is active and state is not active:
            group.change_standing(
                vbucket,
                snapshot=Snapshot(high, high),
                whole_before=high,
                consistent=standing.remembering(standing.active_from, high),
            )
        if state is active and standing.state is not active:
            failover = standing.failover
            if not transfer:
                # Without changes the log begins anew: some clients take the oldest entry for
                # that of the whole history, and a second one at 0 would roll them back.
                earlier = failover if high else FailoverLog(())
                failover = earlier.branch(new_vbuuid(), standing.whole_until(high))
                group.open(vbucket).doubt_prepares()
            whole = standing.whole_until(high)
            group.change_standing(
                vbucket,
                failover=failover,
                snapshot=Snapshot(high, high),
                whole_before=high,
                active_from=high,
                consistent=standing.remembering(whole, whole),
            )
        group.change_standing(vbucket, state=state)
        if state is active:
            rollback.align(group, vbucket)


def set_failover_log(core: BucketCore, vbucket: int, log: FailoverLog) -> None:
    """Sets a replica's failover log to that of its active copy."""
    trusted = log.sanitised()
    if not len(trusted):
        raise StoreRefusal(Status.INVALID, "a failover log names at least one branch")
    with core.change() as group:
        group.require(vbucket, *_COPIES)
        group.change_standing(vbucket, failover=trusted)


def flush(core: BucketCore, *, copies: bool) -> list[int]:
    """Empties every vbucket, or every one that is no copy, as one group; returns which."""
    chosen = [
        vbucket.id for vbucket in core.vbuckets if copies or vbucket.standing.state not in _COPIES
    ]
    with core.change() as group:
        if len(chosen) == len(core.vbuckets):
            group.clear_all()
        else:
            for vbucket in chosen:
                group.clear(vbucket)
        for vbucket in chosen:
            rollback.begin_again(group, vbucket)
    return chosen


def flush_copy(core: BucketCore, vbucket: int) -> None:
    """Empties a replica or pending vbucket, and sets a new vbuuid."""
    with core.change() as group:
        group.require(vbucket, *_COPIES)
        group.clear(vbucket)
        rollback.begin_again(group, vbucket)
