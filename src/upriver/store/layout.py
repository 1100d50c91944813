"""How a bucket lies in RocksDB: the column families, their keys and their records.

    seqnos    vb u16, seqno u64            -> the canonical frame of the newest version of a key
    keys      vb u16, prefixed key         -> `Record`: what a write must know of that version
    history   vb u16, seqno u64            -> u32 time, the frame that this change replaced
    due       kind u8, time u32, vb, seqno -> the version's entry in keys
    default   names, see `Meta`            -> vbuckets, the manifest, the clock, unfinished work

Numbers are big-endian, so that RocksDB's order is theirs. A change that replaced nothing has no
entry in history. A version is in due as long as something must happen to it at a known time: a
document that expires, a tombstone that is purged.

Every record carries the counts of its vbucket as they were after it. The newest one therefore
tells them without an entry of their own being written with each change; what alters the counts
without a seqno writes the vbucket's entry in default, which holds for seqnos up to its own.

The high seqno of a collection is stored when the next change of its vbucket is another's, so a
vbucket with one busy collection stores none: the newest version tells whose the last change was.
Purging takes versions away, so default has the highest purged seqno of a collection as well.

Nothing here knows of RocksDB itself.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from ..model import Op
from ..wire import leb128
from ..wire.canonical import CanonicalChange, parse

__all__ = [
    "FORMAT",
    "NO_COLLECTION",
    "SYSTEM_COLLECTION",
    "Due",
    "Kind",
    "Meta",
    "Record",
    "collection_of",
    "collection_range",
    "due_key",
    "due_range",
    "event_key",
    "frame_key",
    "frame_seqno",
    "pack_record",
    "parse_due",
    "record_of",
    "seqno_key",
    "vbucket_key",
    "vbucket_range",
]

#: The version of everything described here; a store with a later one is refused.
FORMAT: Final = 1

#: The collection whose keys are not documents but the system events of a vbucket. Real servers
#: keep ids 1 to 7 for themselves as well.
SYSTEM_COLLECTION: Final = 1

#: Stands where a change belongs to no collection: the events of scopes do not.
NO_COLLECTION: Final = -1

_HEADER_SIZE: Final = 24
_KEY_LENGTHS = struct.Struct(
    ">2x"
    "H"  # key length
    "B"  # extras length
)
_U64 = struct.Struct(">Q")
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
#: An entry in keys begins with two bytes of the vbucket.
_PATH_KEY_AT: Final = 2
_OF_COLLECTION: Final = b"c"
_OF_SCOPE: Final = b"s"
_MAX_TIME: Final = 0xFFFFFFFF
_NANOSECONDS: Final = 1_000_000_000


class Kind(IntEnum):
    """What the newest version of a key is."""

    MUTATION = 0
    DELETION = 1
    EXPIRATION = 2
    #: A collection or scope that was created or dropped; its record's flags say which.
    EVENT = 3


_KINDS: Final = {
    Op.MUTATION: Kind.MUTATION,
    Op.DELETION: Kind.DELETION,
    Op.EXPIRATION: Kind.EXPIRATION,
}


class Due(IntEnum):
    """What happens to a version when its time has come."""

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
        """The name of a dropped collection whose documents must still go."""
        return cls._ERASURE + cls._IN_VBUCKET.pack(vbucket, collection)

    @classmethod
    def erasures(cls, vbucket: int | None = None) -> tuple[bytes, bytes]:
        """The range of all such names, or of one vbucket's."""
        return cls._range(cls._ERASURE, vbucket)

    @classmethod
    def high(cls, vbucket: int, collection: int) -> bytes:
        """The name of a collection's high seqno, as far as that is stored."""
        return cls._HIGH + cls._IN_VBUCKET.pack(vbucket, collection)

    @classmethod
    def highs(cls, vbucket: int | None = None) -> tuple[bytes, bytes]:
        """The range of all such names, or of one vbucket's."""
        return cls._range(cls._HIGH, vbucket)

    @classmethod
    def purged(cls, vbucket: int, collection: int) -> bytes:
        """The name of the highest seqno of a collection that was purged."""
        return cls._PURGED + cls._IN_VBUCKET.pack(vbucket, collection)

    @classmethod
    def all_purged(cls, vbucket: int | None = None) -> tuple[bytes, bytes]:
        """The range of all such names, or of one vbucket's."""
        return cls._range(cls._PURGED, vbucket)

    @classmethod
    def _range(cls, prefix: bytes, vbucket: int | None) -> tuple[bytes, bytes]:
        if vbucket is None:
            return prefix, prefix + b"\xff" * 7
        first, last = cls._IN_VBUCKET.pack(vbucket, 0), cls._IN_VBUCKET.pack(vbucket, 0xFFFFFFFF)
        return prefix + first, prefix + last + b"\0"

    @classmethod
    def parse(cls, name: bytes) -> tuple[int, int]:
        """The vbucket and the collection of any of these names."""
        vbucket, collection = cls._IN_VBUCKET.unpack(name[-cls._IN_VBUCKET.size :])
        return vbucket, collection


class Record(NamedTuple):
    """What keys holds of a version. ``time`` is a mutation's expiry, a tombstone's own time."""

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
    def load(cls, raw: bytes) -> Record:
        return cls._make(_RECORD.unpack(raw))

    @classmethod
    def of(cls, change: CanonicalChange) -> Record:
        """The record of a restored version; nobody asks it for its vbucket's counts."""
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
        return self.kind == Kind.DELETION or self.kind == Kind.EXPIRATION

    def expired(self, now: int) -> bool:
        """Whether it is a document whose time has come."""
        return self.kind == Kind.MUTATION and 0 < self.time <= now


#: ``pack_record`` is `Record.dump` without the tuple, for the path of every write.
pack_record = _RECORD.pack
seqno_key = _SEQNO_KEY.pack

_VBUCKET_KEYS = tuple(struct.pack(">H", vbucket) for vbucket in range(0x10000))
vbucket_key = _VBUCKET_KEYS.__getitem__


def vbucket_range(vbucket: int, after: int = 0) -> tuple[bytes, bytes]:
    """A vbucket's entries in seqnos and history above seqno ``after``."""
    return seqno_key(vbucket, after + 1), vbucket_key(vbucket) + b"\xff" * 9


def due_key(vbucket: int, record: Record) -> bytes | None:
    """The entry of a version in due, if it has one."""
    if record.kind == Kind.MUTATION:
        return (
            _DUE_KEY.pack(Due.EXPIRE, record.time, vbucket, record.seqno) if record.time else None
        )
    if record.kind == Kind.EVENT:
        return None
    # Peers that do not say when they deleted are taken at their CAS, which is a time too.
    time = record.time or min(record.cas // _NANOSECONDS, _MAX_TIME)
    return _DUE_KEY.pack(Due.PURGE, time, vbucket, record.seqno)


def due_range(kind: Due, until: int) -> tuple[bytes, bytes]:
    """The entries of a kind whose time is at most ``until``."""
    if until >= _MAX_TIME:
        return bytes([kind]), bytes([kind + 1])
    return bytes([kind]), struct.pack(">BI", kind, max(until + 1, 0))


def parse_due(key: bytes) -> tuple[int, int]:
    """The vbucket and seqno of an entry in due."""
    _, _, vbucket, seqno = _DUE_KEY.unpack(key)
    return vbucket, seqno


def collection_range(vbucket: int, collection: int) -> tuple[bytes, bytes]:
    """The documents of one collection in keys; the encoding of an id is no other's beginning."""
    first = vbucket_key(vbucket) + leb128.encode(collection)
    return first, first[:-1] + bytes([first[-1] + 1])


def event_key(vbucket: int, *, scope: int | None = None, collection: int | None = None) -> bytes:
    """The entry in keys of the newest event of a scope or a collection."""
    of_collection = collection is not None
    kind, subject = (_OF_COLLECTION, collection) if of_collection else (_OF_SCOPE, scope)
    assert subject is not None
    return vbucket_key(vbucket) + leb128.encode(SYSTEM_COLLECTION) + kind + subject.to_bytes(4)


def collection_of(path: bytes) -> int:
    """Whose high seqno a change of this entry in keys moves, `NO_COLLECTION` if nobody's."""
    first = path[_PATH_KEY_AT]
    if first < 0x80 and first != SYSTEM_COLLECTION:
        return first  # an id of one byte, as most are: decoding it takes five times as long
    key = path[_PATH_KEY_AT:]
    collection, size = leb128.decode(key)
    if collection != SYSTEM_COLLECTION:
        return collection
    event = key[size:]
    return int.from_bytes(event[1:]) if event[:1] == _OF_COLLECTION else NO_COLLECTION


def frame_seqno(frame: bytes) -> int:
    """The seqno of any stored frame: it is the first of the extras."""
    seqno: int = _U64.unpack_from(frame, _HEADER_SIZE)[0]
    return seqno


def frame_key(frame: bytes) -> bytes:
    """The prefixed key of a stored document's frame."""
    key_length, extras_length = _KEY_LENGTHS.unpack_from(frame)
    at = _HEADER_SIZE + extras_length
    return frame[at : at + key_length]


def record_of(frame: bytes) -> Record:
    """The record of a stored document's frame."""
    return Record.of(parse(frame))
