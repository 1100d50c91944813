"""Key scan: reads the documents of one collection in key order, at one point in time.

A scan holds a frozen view of the store until it is closed, however long that takes. Until then
compaction cannot remove the data of the view.
"""

from __future__ import annotations

import threading
from typing import NamedTuple, Self

from ..errors import StoreClosed, StoreDamaged
from ..wire import canonical, leb128
from ..wire.canonical import CanonicalChange
from .rocksdb import Database, FrozenEntries
from .rocksdb_layout import (
    RecordKind,
    StoredRecord,
    collection_range,
    seqno_key,
    vbucket_key,
)


class KeyRange(NamedTuple):
    """A range of keys without their collection id. None means no bound."""

    start: bytes | None = None
    end: bytes | None = None
    start_excluded: bool = False
    end_excluded: bool = False

    def bounds(self, vbucket: int, collection: int) -> tuple[bytes, bytes]:
        """Returns the first key in the column family ``keys``, and the key after the last one."""
        first, behind = collection_range(vbucket, collection)
        prefix = vbucket_key(vbucket) + leb128.encode(collection)
        if self.start is not None:
            first = prefix + self.start + (b"\0" if self.start_excluded else b"")
        if self.end is not None:
            behind = prefix + self.end + (b"" if self.end_excluded else b"\0")
        return first, behind


class ScannedDocument(NamedTuple):
    """A document's key without its collection id, and its metadata."""

    key: bytes
    record: StoredRecord


class KeyScan:
    """A scan over a range of documents. Only one thread at a time may read it."""

    def __init__(
        self, path: str, vbucket: int, collection: int, entries: FrozenEntries, now: int
    ) -> None:
        self.vbucket = vbucket
        self.collection = collection
        self._key_at = len(vbucket_key(vbucket)) + len(leb128.encode(collection))
        self._path = path
        self._now = now
        self._lock = threading.Lock()
        self._entries: FrozenEntries | None = entries

    @classmethod
    def open(
        cls, engine: Database, vbucket: int, collection: int, keys: KeyRange, now: int
    ) -> Self:
        """Opens a scan of the current documents. Documents that expire later stay in the scan."""
        entries = engine.freeze_keys(keys.bounds(vbucket, collection))
        return cls(str(engine.path), vbucket, collection, entries, now)

    def read(self, most: int) -> tuple[list[ScannedDocument], bool]:
        """Returns the documents among the next ``most`` entries, and whether more may follow."""
        with self._lock:
            entries = self._open()
            found: list[ScannedDocument] = []
            for _ in range(most):
                entry = entries.next()
                if entry is None:
                    return found, False
                record = StoredRecord.load(entry[1])
                if record.kind == RecordKind.MUTATION and not record.expired(self._now):
                    found.append(ScannedDocument(entry[0][self._key_at :], record))
            return found, True

    def document(self, record: StoredRecord) -> CanonicalChange:
        """Returns the complete document of a record that `read` returned."""
        with self._lock:
            frame = self._open().other(seqno_key(self.vbucket, record.seqno))
        if frame is None:
            raise StoreDamaged(
                path=self._path,
                problem=f"seqno {record.seqno} of vbucket {self.vbucket} is not there",
            )
        return canonical.parse(frame)

    def rewind(self) -> None:
        """Restarts the scan at the first document."""
        with self._lock:
            self._open().rewind()

    def _open(self) -> FrozenEntries:
        if self._entries is None:
            raise StoreClosed(path=self._path, problem="the scan was closed")
        return self._entries

    def close(self) -> None:
        """Releases the frozen view. Further reads raise `StoreClosed`."""
        with self._lock:
            self._entries = None
