"""Changes that were made elsewhere: by another cluster, or by the active copy of a replica.

They keep the revision and CAS that they got there, and replicated ones their seqno.
"""

from __future__ import annotations

from typing import Final

from ..errors import Status, StoreRefusal
from ..model import Op, Snapshot, VBucketState
from ..wire import canonical
from . import events
from .changes import Applied, BeginSnapshot, EndSnapshot, Replicate, WithMeta
from .checks import check_cas, check_key, check_value, live_record
from .group import Group
from .layout import Kind, Record, record_of, vbucket_key
from .vbucket import Progress

__all__ = ["begin_snapshot", "end_snapshot", "replicate", "with_meta"]

_COPIES: Final = (VBucketState.REPLICA, VBucketState.PENDING)


def with_meta(group: Group, change: WithMeta) -> Applied:
    """Writes a version of another cluster, unless ours is the newer one."""
    vbucket, key = change.vbucket, change.key
    progress = group.active[vbucket]
    check_key(group.collections, key)
    check_value(group, change.value, change.datatype)
    path = vbucket_key(vbucket) + key
    old = group.record(path)
    check_cas(change.cas, live_record(group, old), key)
    theirs = (change.rev, change.new_cas, change.time, change.flags)
    if old is not None and not change.force and theirs <= (old.rev, old.cas, old.time, old.flags):
        raise StoreRefusal(Status.EXISTS, f"the version of {key!r} that is there is newer")
    frame = _pack(change, progress.high + 1)
    _install_made(group, vbucket, progress, path, old, frame, record_of(frame))
    return Applied(vbucket, progress.high, change.new_cas)


def _pack(change: WithMeta, seqno: int) -> bytes:
    vbucket, rev, cas, time = change.vbucket, change.rev, change.new_cas, change.time
    datatype, key, value = change.datatype, change.key, change.value
    if change.op is Op.MUTATION:
        return canonical.mutation(
            vbucket, seqno, rev, cas, change.flags, time, datatype, key, value
        )
    pack = canonical.deletion if change.op is Op.DELETION else canonical.expiration
    return pack(vbucket, seqno, rev, cas, time, datatype, key, value)


def _install_made(
    group: Group,
    vbucket: int,
    progress: Progress,
    path: bytes,
    old: Record | None,
    frame: bytes,
    record: Record,
) -> None:
    """Installs a version whose CAS was given out elsewhere."""
    group.clock.observe(record.cas)
    seqno, rev, cas, flags, time, kind, datatype = record[:7]
    version = (seqno, rev, cas, flags, time, Kind(kind), datatype)
    group.install(vbucket, progress, path, old, frame, version)


def replicate(group: Group, change: Replicate) -> Applied:
    """Writes a change of the active copy."""
    vbucket, frame = change
    group.require(vbucket, *_COPIES)
    if not events.is_canonical(frame, vbucket):
        raise StoreRefusal(Status.INVALID, f"no canonical frame of vbucket {vbucket}")
    progress = group.open(vbucket)
    event = events.decode(frame) if events.is_event(frame) else None
    record = events.record_for(frame)
    snapshot = group.standing(vbucket).snapshot
    if not progress.high < record.seqno <= snapshot.end:
        raise StoreRefusal(
            Status.RANGE,
            f"seqno {record.seqno} is not in {progress.high + 1}..{snapshot.end}, "
            f"what vbucket {vbucket} still waits for",
        )
    if event is not None:
        group.event(vbucket, event, seqno=record.seqno)
    else:
        path = events.path_of(vbucket, frame)
        _install_made(group, vbucket, progress, path, group.record(path), frame, record)
    return Applied(vbucket, record.seqno, record.cas)


def begin_snapshot(group: Group, change: BeginSnapshot) -> Applied:
    """Notes which snapshot a replica begins to receive."""
    vbucket, start, end = change
    group.require(vbucket, *_COPIES)
    high = group.open(vbucket).high
    if start > end:
        raise StoreRefusal(Status.INVALID, f"a snapshot from {start} to {end}")
    if end <= high:
        raise StoreRefusal(Status.RANGE, f"a snapshot to {end}, and seqno {high} is already there")
    standing = group.standing(vbucket)
    whole = standing.whole_until(high)
    known = standing.consistent
    if whole and (not known or known[-1][1] < whole):
        known = standing.remembering(whole, whole)
    group.change_standing(
        vbucket, snapshot=Snapshot(start, end), whole_before=whole, consistent=known
    )
    return Applied(vbucket, high, 0)


def end_snapshot(group: Group, change: EndSnapshot) -> Applied:
    """Notes that a snapshot of which nobody said the end was whole where the replica is."""
    group.require(change.vbucket, *_COPIES)
    high = group.open(change.vbucket).high
    group.change_standing(change.vbucket, snapshot=Snapshot(high, high), whole_before=high)
    return Applied(change.vbucket, high, 0)
