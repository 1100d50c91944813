"""Queries about durable writes: how a prepare ended, and which changes readers may see."""

from __future__ import annotations

from ..wire.stored_prepares import is_hidden
from . import rollback
from .rocksdb import Database
from .rocksdb_layout import StoredRecord, prepared_path, seqno_key, vbucket_key
from .writes.prepared_writes import Completion, CompletionKind, is_abort_of


def completion(engine: Database, vbucket: int, key: bytes, prepared_seqno: int) -> Completion:
    """Returns whether the prepare of ``key`` at ``prepared_seqno`` was committed or aborted."""
    path = vbucket_key(vbucket) + key
    raw = engine.keys.get(prepared_path(path))
    if raw is not None:
        record = StoredRecord.load(raw)
        if record.seqno == prepared_seqno:
            return Completion(CompletionKind.PENDING)
        frame = engine.seqnos.get(seqno_key(vbucket, record.seqno))
        if frame is not None and is_abort_of(frame, prepared_seqno):
            return Completion(CompletionKind.ABORTED, record.seqno)
    raw = engine.keys.get(path)
    if raw is not None:
        seqno = StoredRecord.load(raw).seqno
        entry = engine.history.get(seqno_key(vbucket, seqno))
        if entry is not None and rollback.committed_seqno(entry) == prepared_seqno:
            return Completion(CompletionKind.COMMITTED, seqno)
    return Completion(CompletionKind.UNKNOWN)


def last_visible(engine: Database, vbucket: int, seqno: int) -> int:
    """Returns the last seqno at most ``seqno`` of a change other than a prepare or abort."""
    bounds = seqno_key(vbucket, 0), seqno_key(vbucket, seqno + 1)
    for at, frame in engine.seqnos.scan_back(bounds):
        if not is_hidden(frame):
            return int.from_bytes(at[2:])
    return 0
