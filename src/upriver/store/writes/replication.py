"""Replicated changes: from another cluster, or from the active copy of a replica.

They keep their original revision and CAS. Changes from the active copy also keep their seqno.
"""

from __future__ import annotations

from typing import Final

from ...errors import Status, StoreRefusal
from ...model import Op, Snapshot, VBucketState
from ...wire import canonical, leb128, stored_prepares
from ...wire.leb128 import key_name
from ...wire.stored_prepares import StoredPrepare
from ..rocksdb_layout import (
    PREPARE_COLLECTION,
    SYSTEM_COLLECTION,
    RecordKind,
    StoredRecord,
    record_of,
    vbucket_key,
)
from ..vbucket import Progress
from . import prepared_writes, system_event_records
from .change_requests import (
    Applied,
    BeginSnapshot,
    EndSnapshot,
    Replicate,
    ReplicateAbort,
    ReplicateCommit,
    WithMeta,
)
from .operation_checks import check_cas, check_key, check_value, live_record
from .prepared_writes import current, install_prepare, replace_prepared
from .write_group import WriteGroup

_COPIES: Final = (VBucketState.REPLICA, VBucketState.PENDING)
_RESERVED: Final = (leb128.encode(SYSTEM_COLLECTION), leb128.encode(PREPARE_COLLECTION))


def with_meta(group: WriteGroup, change: WithMeta) -> Applied:
    """Writes a version from another cluster, unless the stored version is newer."""
    vbucket, key = change.vbucket, change.key
    progress = group.active[vbucket]
    check_key(group.collections, key)
    check_value(group, change.value, change.datatype)
    path = vbucket_key(vbucket) + key
    old = current(group, progress, path)
    check_cas(change.cas, live_record(group, old), key)
    theirs = (change.rev, change.new_cas, change.time, change.flags)
    if old is not None and not change.force and theirs <= (old.rev, old.cas, old.time, old.flags):
        raise StoreRefusal(Status.EXISTS, f"the version of {key_name(key)} that is there is newer")
    if group.level:
        return _prepare(group, progress, path, change)
    frame = _pack(change, progress.high + 1)
    _install_made(group, vbucket, progress, path, old, frame, record_of(frame))
    return Applied(vbucket, progress.high, change.new_cas)


def _prepare(group: WriteGroup, progress: Progress, path: bytes, change: WithMeta) -> Applied:
    group.clock.observe(change.new_cas)
    prepared = StoredPrepare(
        change.vbucket,
        progress.high + 1,
        change.rev,
        change.new_cas,
        change.flags,
        change.time,
        change.datatype,
        change.key,
        change.value,
        change.op is not Op.MUTATION,
        group.level,
    )
    return install_prepare(group, change.vbucket, progress, path, prepared)


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
    group: WriteGroup,
    vbucket: int,
    progress: Progress,
    path: bytes,
    old: StoredRecord | None,
    frame: bytes,
    record: StoredRecord,
) -> None:
    """Installs a version whose CAS another server assigned."""
    group.clock.observe(record.cas)
    seqno, rev, cas, flags, time, kind, datatype = record[:7]
    version = (seqno, rev, cas, flags, time, RecordKind(kind), datatype)
    group.install(vbucket, progress, path, old, frame, version)


def replicate(group: WriteGroup, change: Replicate) -> Applied:
    """Writes a change of the active copy to a replica."""
    vbucket, frame = change
    group.require(vbucket, *_COPIES)
    if not system_event_records.is_canonical(frame, vbucket):
        raise StoreRefusal(Status.INVALID, f"no canonical frame of vbucket {vbucket}")
    progress = group.open(vbucket)
    event = system_event_records.decode(frame) if canonical.is_event(frame) else None
    record = system_event_records.record_for(frame)
    _require_awaited(group, vbucket, progress, record.seqno)
    if event is not None:
        group.event(vbucket, event, seqno=record.seqno)
        return Applied(vbucket, record.seqno, record.cas)
    key = canonical.key_of(frame)
    _check_collection(key)
    path = vbucket_key(vbucket) + key
    if stored_prepares.is_prepare(frame):
        return _replicate_prepare(group, progress, path, frame)
    if path in progress.prepares:
        # A disk snapshot sends the commit of a prepare as the version that it became.
        group.clock.observe(record.cas)
        replace_prepared(group, vbucket, progress, path, frame, record)
    else:
        _install_made(group, vbucket, progress, path, group.record(path), frame, record)
    return Applied(vbucket, record.seqno, record.cas)


def _replicate_prepare(group: WriteGroup, progress: Progress, path: bytes, frame: bytes) -> Applied:
    if not stored_prepares.is_valid_prepare(frame):
        raise StoreRefusal(Status.INVALID, "a prepare without a durability level or a CAS")
    prepared = stored_prepares.parse_prepare(frame)
    group.clock.observe(prepared.cas)
    return install_prepare(group, prepared.vbucket, progress, path, prepared)


def replicate_commit(group: WriteGroup, change: ReplicateCommit) -> Applied:
    """Commits a prepare that the active copy committed."""
    return prepared_writes.replicate_commit(group, _open_awaiting(group, change), change)


def replicate_abort(group: WriteGroup, change: ReplicateAbort) -> Applied:
    """Aborts a prepare that the active copy aborted."""
    return prepared_writes.replicate_abort(group, _open_awaiting(group, change), change)


def _open_awaiting(group: WriteGroup, change: ReplicateCommit | ReplicateAbort) -> Progress:
    group.require(change.vbucket, *_COPIES)
    _check_collection(change.key)
    progress = group.open(change.vbucket)
    _require_awaited(group, change.vbucket, progress, change.seqno)
    return progress


def _require_awaited(group: WriteGroup, vbucket: int, progress: Progress, seqno: int) -> None:
    """Refuses a seqno that the replica already has, or that lies beyond its snapshot."""
    snapshot = group.standing(vbucket).snapshot
    if not progress.high < seqno <= snapshot.end:
        raise StoreRefusal(
            Status.RANGE,
            f"seqno {seqno} is not in {progress.high + 1}..{snapshot.end}, "
            f"what vbucket {vbucket} still waits for",
        )


def _check_collection(key: bytes) -> None:
    """Refuses documents in the collections that the store reserves for itself."""
    if key[:1] in _RESERVED:
        raise StoreRefusal(Status.INVALID, f"the key {key_name(key)} is in a reserved collection")


def begin_snapshot(group: WriteGroup, change: BeginSnapshot) -> Applied:
    """Records the snapshot that a replica begins to receive."""
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


def end_snapshot(group: WriteGroup, change: EndSnapshot) -> Applied:
    """Records that a snapshot without a known end is complete at the replica's high seqno."""
    group.require(change.vbucket, *_COPIES)
    high = group.open(change.vbucket).high
    group.change_standing(change.vbucket, snapshot=Snapshot(high, high), whole_before=high)
    return Applied(change.vbucket, high, 0)
