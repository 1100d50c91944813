"""Durable writes: each is prepared first, then committed or aborted.

    PrepareWrite ──> prepare on seqno p ──> CommitPrepared ──> mutation or deletion on seqno c
                                       └──> AbortPrepared  ──> abort on seqno a

A prepare is stored beside its document. The document stays unchanged, and other writes of the key
are refused until the prepare is completed. A commit replaces the document and removes the prepare;
both are kept in history, so that a rollback to a seqno between them restores the prepare. An abort
replaces the prepare, so that replicas receive it. It stays until the next prepare of the key, or
until it is purged like a tombstone.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from ...errors import Status, StoreRefusal
from ...wire import stored_prepares
from ...wire.leb128 import key_name
from ...wire.stored_prepares import StoredPrepare
from ..rocksdb import Database
from ..rocksdb_layout import (
    PREPARE_COLLECTION,
    RecordKind,
    StoredRecord,
    collection_range,
    document_path,
    prepared_path,
    record_of,
    vbucket_key,
    vbucket_range,
)
from ..vbucket import PendingPrepare, Progress
from .change_requests import (
    AbortPrepared,
    Applied,
    CommitPrepared,
    ReplicateAbort,
    ReplicateCommit,
)
from .operation_checks import check_key
from .write_group import WriteGroup


class CompletionKind(Enum):
    PENDING = auto()
    COMMITTED = auto()
    ABORTED = auto()
    #: Later writes have replaced the entries that would show it.
    UNKNOWN = auto()


class Completion(NamedTuple):
    """Whether a prepare was committed or aborted, and at which seqno."""

    kind: CompletionKind
    seqno: int = 0


def is_abort_of(frame: bytes, prepared_seqno: int) -> bool:
    """Whether a stored frame is the abort of that prepare."""
    return (
        stored_prepares.is_abort(frame)
        and stored_prepares.parse_abort(frame).prepared_seqno == prepared_seqno
    )


def current(group: WriteGroup, progress: Progress, path: bytes) -> StoredRecord | None:
    """Returns the newest version at ``path``. Refuses while the key has a pending prepare."""
    if progress.prepares and path in progress.prepares:
        raise StoreRefusal(
            Status.SYNC_WRITE_IN_PROGRESS, f"a durable write of {key_name(path[2:])} is under way"
        )
    return group.record(path)


# ---- active vbuckets ---------------------------------------------------------------------


def install_prepare(
    group: WriteGroup, vbucket: int, progress: Progress, path: bytes, change: StoredPrepare
) -> Applied:
    """Adds a prepare to the write group."""
    hidden = prepared_path(path)
    version = (
        change.seqno,
        change.rev,
        change.cas,
        change.flags,
        change.time,
        RecordKind.PREPARE,
        change.datatype,
    )
    group.install(
        vbucket, progress, hidden, group.record(hidden), stored_prepares.prepare(change), version
    )
    progress.add_prepare(path, PendingPrepare(change.seqno, change.level))
    return Applied(vbucket, change.seqno, change.cas)


def commit(group: WriteGroup, change: CommitPrepared) -> Applied:
    """Commits a prepare."""
    vbucket, key, seqno = change
    progress = group.active[vbucket]
    check_key(group.collections, key)
    path = vbucket_key(vbucket) + key
    _require_pending(progress, path, seqno)
    return _complete(group, vbucket, progress, path, progress.high + 1)


def abort(group: WriteGroup, change: AbortPrepared) -> Applied:
    """Aborts a prepare."""
    vbucket, key, seqno = change
    progress = group.active[vbucket]
    path = vbucket_key(vbucket) + key
    _require_pending(progress, path, seqno)
    return _install_abort(group, vbucket, progress, path, seqno, progress.high + 1)


def _require_pending(progress: Progress, path: bytes, seqno: int) -> None:
    pending = progress.prepares.get(path)
    if pending is None or pending.seqno != seqno:
        raise StoreRefusal(
            Status.NOT_FOUND, f"no write of {key_name(path[2:])} is prepared on seqno {seqno}"
        )


# ---- active and replica vbuckets ---------------------------------------------------------


def _complete(
    group: WriteGroup, vbucket: int, progress: Progress, path: bytes, seqno: int
) -> Applied:
    record = group.record(prepared_path(path))
    assert record is not None
    frame = stored_prepares.committed(group.frame(vbucket, record), seqno)
    replace_prepared(group, vbucket, progress, path, frame, record_of(frame))
    return Applied(vbucket, seqno, record.cas)


def replace_prepared(
    group: WriteGroup,
    vbucket: int,
    progress: Progress,
    path: bytes,
    frame: bytes,
    record: StoredRecord,
) -> None:
    """Installs the version that completes the pending prepare at ``path``."""
    hidden = prepared_path(path)
    pending = group.record(hidden)
    assert pending is not None
    seqno, rev, cas, flags, time, kind, datatype = record[:7]
    version = (seqno, rev, cas, flags, time, RecordKind(kind), datatype)
    prepared = group.frame(vbucket, pending)
    group.install(vbucket, progress, path, group.record(path), frame, version, prepared)
    group.remove(vbucket, progress, hidden, pending)


def _install_abort(
    group: WriteGroup,
    vbucket: int,
    progress: Progress,
    path: bytes,
    prepared_seqno: int,
    seqno: int,
) -> Applied:
    hidden = prepared_path(path)
    old = group.record(hidden)
    # Use the prepare's CAS, so that all copies with the prepare store the same abort.
    cas = old.cas if old and old.seqno == prepared_seqno else group.clock.next()
    frame = stored_prepares.abort(vbucket, seqno, prepared_seqno, cas, path[2:])
    version = (seqno, 0, cas, 0, 0, RecordKind.ABORT, 0)
    group.install(vbucket, progress, hidden, old, frame, version)
    progress.drop_prepare(path)
    return Applied(vbucket, seqno, cas)


# ---- replica vbuckets --------------------------------------------------------------------


def replicate_commit(group: WriteGroup, progress: Progress, change: ReplicateCommit) -> Applied:
    """Commits a prepare that the active copy committed."""
    path = vbucket_key(change.vbucket) + change.key
    _require_pending(progress, path, change.prepared_seqno)
    return _complete(group, change.vbucket, progress, path, change.seqno)


def replicate_abort(group: WriteGroup, progress: Progress, change: ReplicateAbort) -> Applied:
    """Aborts a prepare that the active copy aborted, or stores the abort of an unknown prepare."""
    path = vbucket_key(change.vbucket) + change.key
    return _install_abort(
        group, change.vbucket, progress, path, change.prepared_seqno, change.seqno
    )


# ---- opening -----------------------------------------------------------------------------


def load_prepares(engine: Database, vbucket: int, progress: Progress) -> None:
    """Loads the pending prepares of a vbucket, and finds its last visible seqno."""
    for path, raw in engine.keys.scan(collection_range(vbucket, PREPARE_COLLECTION)):
        record = StoredRecord.load(raw)
        progress.sync_seqno = max(progress.sync_seqno, record.seqno)
        frame = engine.seqnos.get(vbucket_key(vbucket) + record.seqno.to_bytes(8))
        if frame is None:
            continue  # `consistency_check` reports it
        if record.kind == RecordKind.PREPARE:
            level = stored_prepares.parse_prepare(frame).level
            pending = PendingPrepare(record.seqno, level, maybe_committed=True)
            progress.add_prepare(document_path(path), pending)
        else:
            prepared = stored_prepares.parse_abort(frame).prepared_seqno
            progress.prepared_seqno = max(progress.prepared_seqno, prepared)
            progress.last_completed = max(progress.last_completed, prepared)
    find_visible(engine, vbucket, progress)


def find_visible(engine: Database, vbucket: int, progress: Progress) -> None:
    """Finds the last change that is neither a prepare nor an abort."""
    progress.hidden = (0, 0)
    if progress.sync_seqno == progress.high and progress.high:
        for at, frame in engine.seqnos.scan_back(vbucket_range(vbucket)):
            if not stored_prepares.is_hidden(frame):
                progress.hidden = (int.from_bytes(at[2:]), progress.high)
                return
        progress.hidden = (0, progress.high)
