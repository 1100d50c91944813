"""Older versions of a document, which a bucket keeps so that vbuckets can be rolled back."""

from __future__ import annotations

from collections.abc import Iterator

from ..wire import canonical, stored_prepares
from ..wire.canonical import CanonicalChange
from ..wire.header import cas_of
from .rocksdb import Database
from .rocksdb_layout import StoredRecord, seqno_key, vbucket_key, vbucket_range
from .rollback import versions_in


def versions(engine: Database, vbucket: int, key: bytes) -> Iterator[CanonicalChange]:
    """Yields the versions of a document that are still stored, newest first.

    ``key`` begins with its collection id. Deletions and expirations are versions too; prepares of
    durable writes are not. A write or a purge meanwhile ends the list early.
    """
    raw = engine.keys.get(vbucket_key(vbucket) + key)
    if raw is None:
        return
    frame = engine.seqnos.get(seqno_key(vbucket, StoredRecord.load(raw).seqno))
    while frame is not None:
        yield canonical.parse(frame)
        entry = engine.history.get(seqno_key(vbucket, canonical.seqno_of(frame))) or b""
        replaced = (one for one in versions_in(entry) if not stored_prepares.is_hidden(one))
        frame = next(replaced, None)


def next_cas(engine: Database, vbucket: int, seqno: int) -> int | None:
    """Returns the CAS of the first change after a seqno; None if there is none."""
    entry = next(engine.seqnos.scan(vbucket_range(vbucket, seqno)), None)
    return None if entry is None else cas_of(entry[1])
