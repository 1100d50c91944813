"""The checks that several operations share; each refuses with the status to answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..errors import Status, StoreRefusal
from ..model import Datatype
from ..wire import leb128, values
from ..wire.limits import MAX_COLLECTION_KEY, MAX_PREFIXED_KEY, MAX_SYSTEM_XATTRS
from .group import Group
from .layout import SYSTEM_COLLECTION, Kind, Record

__all__ = [
    "check_cas",
    "check_key",
    "check_value",
    "expiry_time",
    "live_record",
    "missing",
    "unwrap",
]

#: Up to this an expiry counts from now; real servers and memcached agree on it.
_RELATIVE_LIMIT: Final = 30 * 24 * 60 * 60
_XATTR: Final = int(Datatype.XATTR)


def check_key(collections: Mapping[int, int | None], key: bytes) -> int:
    """The collection of a key that may be used."""
    if 1 < len(key) <= MAX_PREFIXED_KEY and key[0] == 0 and 0 in collections:
        return 0
    try:
        collection, size = leb128.decode(key)
    except ValueError as problem:
        raise StoreRefusal(Status.INVALID, str(problem)) from None
    if collection not in collections or collection == SYSTEM_COLLECTION:
        raise StoreRefusal(
            Status.UNKNOWN_COLLECTION, f"there is no collection with id {collection:#x}"
        )
    limit = MAX_PREFIXED_KEY - 1 if collection == 0 else MAX_COLLECTION_KEY
    if not size < len(key) <= size + limit:
        raise StoreRefusal(
            Status.INVALID, f"a key has 1 to {limit} bytes, this one {len(key) - size}"
        )
    return collection


def check_value(group: Group, value: bytes, datatype: int) -> None:
    """Refuses a value that is too large, or whose xattrs cannot be read."""
    limit = group.max_value + (MAX_SYSTEM_XATTRS if datatype & _XATTR else 0)
    if len(value) > limit:
        raise StoreRefusal(Status.TOO_BIG, f"a value has up to {limit} bytes, not {len(value)}")
    if datatype & _XATTR:
        unwrap(value, datatype)


def unwrap(value: bytes, datatype: int) -> tuple[dict[str, bytes], bytes]:
    """The xattrs and the body of a value."""
    try:
        return values.unwrap(value, Datatype(datatype))
    except ValueError as problem:
        raise StoreRefusal(Status.XATTR_INVALID, str(problem)) from None


def expiry_time(group: Group, collection: int, expiry: int) -> int:
    """An expiry as a time, no later than the collection allows."""
    if 0 < expiry <= _RELATIVE_LIMIT:
        expiry += group.now
    longest = group.collections[collection]
    if longest:
        latest = group.now + longest
        expiry = min(expiry, latest) if expiry else latest
    return expiry


def missing(key: bytes, status: Status = Status.NOT_FOUND) -> StoreRefusal:
    """The refusal for a document that is not there."""
    return StoreRefusal(status, f"there is no document {key!r}")


def live_record(group: Group, record: Record | None) -> Record | None:
    """The record of a document that can be read: neither a tombstone nor past its time."""
    if record is None or record.kind != Kind.MUTATION or record.expired(group.now):
        return None
    return record


def check_cas(cas: int, live: Record | None, key: bytes) -> None:
    """Refuses if ``cas`` is not 0 and not that of the document."""
    if cas:
        if live is None:
            raise missing(key)
        if live.cas != cas:
            raise StoreRefusal(Status.EXISTS, f"the document {key!r} has CAS {live.cas}, not {cas}")
