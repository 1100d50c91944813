"""Record layout of a bucket in RocksDB: the column families, their keys and their records.

    seqnos    vb u16, seqno u64            -> the canonical frame of the newest version of a key
    keys      vb u16, prefixed key         -> `StoredRecord`: the metadata of that version
              vb u16, 0x02, prefixed key   -> the same for a prepare or abort of that key
    history   vb u16, seqno u64            -> u32 time, the frame that this change replaced,
                                              and the prepare that it committed
    due       kind u8, time u32, vb, seqno -> the version's key in keys
    default   names, see `Meta`            -> vbuckets, the manifest, the clock, unfinished work

Numbers are big-endian, so that RocksDB orders keys by number. A change that replaced nothing has
no entry in history. A version has an entry in due while something must happen to it at a known
time: a document expires, a tombstone is purged.

Every record carries the counts of its vbucket after that change. So the newest record gives the
current counts, and no separate entry has to be written with each change. An operation that changes
the counts without a seqno writes the vbucket's entry in default, which is valid up to its seqno.

The high seqno of a collection is stored when the next change of the vbucket belongs to another
collection. So a vbucket with one busy collection stores none: the newest version shows the
collection of the last change. A purge removes versions, so default also has the highest purged
seqno of each collection.

This module does not know RocksDB itself.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from ..model import Op
from ..wire import leb128
from ..wire.canonical import CanonicalChange, parse

#: The version of this layout. A store with a later version is refused. Version 1 had no prepares
#: and no aborts; opening such a store changes it to version 2.
FORMAT: Final = 2

#: The collection whose keys are the system events of a vbucket, not documents. Couchbase servers
#: reserve ids 1 to 7 as well.
SYSTEM_COLLECTION: Final = 1

#: The collection of prepares and aborts of durable writes. Couchbase servers use the same id for
#: this purpose.
PREPARE_COLLECTION: Final = 2

#: For changes that belong to no collection: events of scopes, prepares and aborts.
NO_COLLECTION: Final = -1

_SEQNO_KEY = struct.Struct(
    ">"
    "H"  # vbucket
    "Q"  # seqno
)
_DUE_KEY = struct.Struct(
    ">"
    "B"  # kind
    "I"  # time
    "H"  # vbucket
    "Q"  # seqno
)
_RECORD = struct.Struct(
    ">"
    "Q"  # seqno
    "Q"  # rev
    "Q"  # cas
    "I"  # flags
    "I"  # time
    "B"  # kind
    "B"  # datatype
    "I"  # items of the vbucket
    "I"  # tombstones of the vbucket
    "Q"  # bytes of history of the vbucket
)
#: A key in keys begins with two bytes of the vbucket.
_PATH_KEY_AT: Final = 2
_OF_PREPARES: Final = leb128.encode(PREPARE_COLLECTION)
_OF_COLLECTION: Final = b"c"
_OF_SCOPE: Final = b"s"
_MAX_TIME: Final = 0xFFFFFFFF
_NANOSECONDS: Final = 1_000_000_000


class RecordKind(IntEnum):
    """The kind of a stored version."""

    MUTATION = 0
    DELETION = 1
    EXPIRATION = 2
    #: A collection or scope was created or dropped; the record's flags are 1 or 0 accordingly.
    EVENT = 3
    #: A durable write that is neither committed nor aborted.
    PREPARE = 4
    #: A durable write that was aborted.
    ABORT = 5


_KINDS: Final = {
    Op.MUTATION: RecordKind.MUTATION,
    Op.DELETION: RecordKind.DELETION,
    Op.EXPIRATION: RecordKind.EXPIRATION,
}


class Due(IntEnum):
    """What maintenance does with a version when it is due."""

    EXPIRE = 0
    PURGE = 1


class Meta:
    """The names in the default column family."""

    CLOCK: Final = b"clock"
    MANIFEST: Final = b"manifest"
    SESSION: Final = b"session"
    _VBUCKET: Final = b"vbucket/"
    _ERASURE: Final = b"erase/"
    _HIGH: Final = b"high/"
    _PURGED: Final = b"purged/"
    _IN_VBUCKET: Final = struct.Struct(
        ">"
        "H"  # vbucket
        "I"  # collection
    )

    @classmethod
    def vbucket(cls, vbucket: int) -> bytes:
        return cls._VBUCKET + vbucket_key(vbucket)

    @classmethod
    def erasure(cls, vbucket: int, collection: int) -> bytes:
        """Returns the name for a dropped collection whose documents are not yet erased."""
        return cls._ERASURE + cls._IN_VBUCKET.pack(vbucket, collection)

    @classmethod
    def erasures(cls, vbucket: int | None = None) -> tuple[bytes, bytes]:
        """Returns the range of all erasure names, or of those of one vbucket."""
        return cls._range(cls._ERASURE, vbucket)

    @classmethod
    def high(cls, vbucket: int, collection: int) -> bytes:
        """Returns the name for the stored high seqno of a collection."""
        return cls._HIGH + cls._IN_VBUCKET.pack(vbucket, collection)

    @classmethod
    def highs(cls, vbucket: int | None = None) -> tuple[bytes, bytes]:
        """Returns the range of all high seqno names, or of those of one vbucket."""
        return cls._range(cls._HIGH, vbucket)

    @classmethod
    def purged(cls, vbucket: int, collection: int) -> bytes:
        """Returns the name for the highest purged seqno of a collection."""
        return cls._PURGED + cls._IN_VBUCKET.pack(vbucket, collection)

    @classmethod
    def all_purged(cls, vbucket: int | None = None) -> tuple[bytes, bytes]:
        """Returns the range of all purged seqno names, or of those of one vbucket."""
        return cls._range(cls._PURGED, vbucket)

    @classmethod
    def _range(cls, prefix: bytes, vbucket: int | None) -> tuple[bytes, bytes]:
        if vbucket is None:
            return prefix, prefix + b"\xff" * 7
        first, last = cls._IN_VBUCKET.pack(vbucket, 0), cls._IN_VBUCKET.pack(vbucket, 0xFFFFFFFF)
        return prefix + first, prefix + last + b"\0"

    @classmethod
    def parse(cls, name: bytes) -> tuple[int, int]:
        """Returns the vbucket and the collection of any of these names."""
        vbucket, collection = cls._IN_VBUCKET.unpack(name[-cls._IN_VBUCKET.size :])
        return vbucket, collection


class StoredRecord(NamedTuple):
    """A version's record in keys. ``time`` is a mutation's expiry or a tombstone's delete time."""

    seqno: int
    rev: int
    cas: int
    flags: int
    time: int
    kind: int
    datatype: int
    items: int
    tombstones: int
    history_bytes: int

    @classmethod
    def load(cls, raw: bytes) -> StoredRecord:
        return cls._make(_RECORD.unpack(raw))

    @classmethod
    def of(cls, change: CanonicalChange) -> StoredRecord:
        """Returns the record of a restored version. Its vbucket counts are 0; they are not used."""
        return cls(
            change.seqno,
            change.rev,
            change.cas,
            change.flags,
            change.time,
            _KINDS[change.op],
            change.datatype,
            0,
            0,
            0,
        )

    def dump(self) -> bytes:
        return _RECORD.pack(*self)

    @property
    def is_tombstone(self) -> bool:
        return self.kind == RecordKind.DELETION or self.kind == RecordKind.EXPIRATION

    def expired(self, now: int) -> bool:
        """Whether it is an expired document."""
        return self.kind == RecordKind.MUTATION and 0 < self.time <= now


#: `StoredRecord.dump` without the named tuple, because every write calls it.
pack_record = _RECORD.pack
seqno_key = _SEQNO_KEY.pack

_VBUCKET_KEYS = tuple(struct.pack(">H", vbucket) for vbucket in range(0x10000))
vbucket_key = _VBUCKET_KEYS.__getitem__


def vbucket_range(vbucket: int, after: int = 0) -> tuple[bytes, bytes]:
    """Returns the range of a vbucket in seqnos and history above seqno ``after``."""
    return seqno_key(vbucket, after + 1), vbucket_key(vbucket) + b"\xff" * 9


def due_key(vbucket: int, record: StoredRecord) -> bytes | None:
    """Returns the key of a version in due; None if nothing is due for it."""
    if record.kind == RecordKind.MUTATION:
        return (
            _DUE_KEY.pack(Due.EXPIRE, record.time, vbucket, record.seqno) if record.time else None
        )
    if record.kind == RecordKind.EVENT or record.kind == RecordKind.PREPARE:
        return None
    # A deletion without a delete time is dated by its CAS, which is a time too.
    time = record.time or min(record.cas // _NANOSECONDS, _MAX_TIME)
    return _DUE_KEY.pack(Due.PURGE, time, vbucket, record.seqno)


def due_range(kind: Due, until: int) -> tuple[bytes, bytes]:
    """Returns the range of a kind in due with times up to ``until``."""
    if until >= _MAX_TIME:
        return bytes([kind]), bytes([kind + 1])
    return bytes([kind]), struct.pack(">BI", kind, max(until + 1, 0))


def parse_due(key: bytes) -> tuple[int, int]:
    """Returns the vbucket and seqno of a key in due."""
    _, _, vbucket, seqno = _DUE_KEY.unpack(key)
    return vbucket, seqno


def collection_range(vbucket: int, collection: int) -> tuple[bytes, bytes]:
    """Returns the range of one collection in keys. No encoded id is a prefix of another."""
    first = vbucket_key(vbucket) + leb128.encode(collection)
    return first, first[:-1] + bytes([first[-1] + 1])


def event_key(vbucket: int, *, scope: int | None = None, collection: int | None = None) -> bytes:
    """Returns the key in keys of the newest event of a scope or a collection."""
    of_collection = collection is not None
    kind, subject = (_OF_COLLECTION, collection) if of_collection else (_OF_SCOPE, scope)
    assert subject is not None
    return vbucket_key(vbucket) + leb128.encode(SYSTEM_COLLECTION) + kind + subject.to_bytes(4)


def collection_of(path: bytes) -> int:
    """Returns the collection whose high seqno a change at this path moves, or `NO_COLLECTION`."""
    first = path[_PATH_KEY_AT]
    if first == PREPARE_COLLECTION:
        return NO_COLLECTION
    if first < 0x80 and first != SYSTEM_COLLECTION:
        return first  # most ids have one byte; decoding it would take five times as long
    key = path[_PATH_KEY_AT:]
    collection, size = leb128.decode(key)
    if collection != SYSTEM_COLLECTION:
        return collection
    event = key[size:]
    return int.from_bytes(event[1:]) if event[:1] == _OF_COLLECTION else NO_COLLECTION


def prepared_path(path: bytes) -> bytes:
    """Returns the path in keys of a document's prepare or abort."""
    return path[:_PATH_KEY_AT] + _OF_PREPARES + path[_PATH_KEY_AT:]


def document_path(path: bytes) -> bytes:
    """Returns the path in keys of the document of a prepare or an abort."""
    return path[:_PATH_KEY_AT] + path[_PATH_KEY_AT + len(_OF_PREPARES) :]


def record_of(frame: bytes) -> StoredRecord:
    """Returns the record of a document's stored frame."""
    return StoredRecord.of(parse(frame))
