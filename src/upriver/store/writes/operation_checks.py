"""Checks that several operations share. Each raises a refusal with the status to answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ...errors import Status, StoreRefusal
from ...model import Datatype
from ...wire import leb128, values
from ...wire.limits import MAX_COLLECTION_KEY, MAX_PREFIXED_KEY, MAX_SYSTEM_XATTRS
from ..rocksdb_layout import SYSTEM_COLLECTION, RecordKind, StoredRecord
from .write_group import WriteGroup

#: Expiries up to this many seconds are relative to now, as in memcached and Couchbase.
_RELATIVE_LIMIT: Final = 30 * 24 * 60 * 60
_XATTR: Final = int(Datatype.XATTR)


def check_key(collections: Mapping[int, int | None], key: bytes) -> int:
    """Returns the collection of a valid key. Refuses an invalid key or unknown collection."""
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


def check_value(group: WriteGroup, value: bytes, datatype: int) -> None:
    """Refuses a value that is too large, or whose xattrs are invalid.

    System xattrs have their own size limit. User xattrs count with the body.
    """
    size = len(value)
    if datatype & _XATTR:
        xattrs, body = unwrap(value, datatype)
        system = {name: content for name, content in xattrs.items() if name.startswith("_")}
        system_size = len(values.join_xattrs(system, b"")) if system else 0
        if system_size > MAX_SYSTEM_XATTRS:
            raise StoreRefusal(
                Status.TOO_BIG,
                f"system xattrs have up to {MAX_SYSTEM_XATTRS} bytes, not {system_size}",
            )
        size = len(values.join_xattrs(xattrs, body)) - system_size
    if size > group.max_value:
        raise StoreRefusal(Status.TOO_BIG, f"a value has up to {group.max_value} bytes, not {size}")


def unwrap(value: bytes, datatype: int) -> tuple[dict[str, bytes], bytes]:
    """Returns the xattrs and the body of a value. Refuses invalid xattrs."""
    try:
        return values.unwrap(value, Datatype(datatype))
    except ValueError as problem:
        raise StoreRefusal(Status.XATTR_INVALID, str(problem)) from None


def expiry_time(group: WriteGroup, collection: int, expiry: int) -> int:
    """Returns an expiry as an absolute time, limited by the max_ttl of the collection."""
    if 0 < expiry <= _RELATIVE_LIMIT:
        expiry += group.now
    longest = group.collections[collection]
    if longest:
        latest = group.now + longest
        expiry = min(expiry, latest) if expiry else latest
    return expiry


def missing(key: bytes, status: Status = Status.NOT_FOUND) -> StoreRefusal:
    """Returns the refusal for a document that does not exist."""
    return StoreRefusal(status, f"there is no document {leb128.key_name(key)}")


def live_record(group: WriteGroup, record: StoredRecord | None) -> StoredRecord | None:
    """Returns the record if it is a document: neither a tombstone nor expired. Otherwise None."""
    if record is None or record.kind != RecordKind.MUTATION or record.expired(group.now):
        return None
    return record


def check_cas(cas: int, live: StoredRecord | None, key: bytes) -> None:
    """Refuses the change if ``cas`` is not 0 and differs from the CAS of the document."""
    if cas:
        if live is None:
            raise missing(key)
        if live.cas != cas:
            raise StoreRefusal(
                Status.EXISTS, f"the document {leb128.key_name(key)} has CAS {live.cas}, not {cas}"
            )
