"""Key-value operations: how each change request modifies a document.

Every function takes a write group and a change. It either adds the change to the group, or raises
a refusal with the status to answer. A refused change leaves the group unchanged.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from ...errors import Status, StoreRefusal
from ...model import Datatype
from ...wire import canonical, values
from ...wire.json_check import is_json
from ...wire.leb128 import key_name
from ...wire.limits import MAX_CHECKED_JSON
from ...wire.stored_prepares import StoredPrepare
from ..rocksdb_layout import RecordKind, StoredRecord, vbucket_key
from ..vbucket import Progress
from . import change_requests as c
from . import prepared_writes, replication
from .bulk_inserts import insert_plain
from .operation_checks import (
    check_cas,
    check_key,
    check_value,
    expiry_time,
    live_record,
    missing,
    unwrap,
)
from .prepared_writes import current
from .write_group import WriteGroup

_U64: Final = 2**64
_XATTR: Final = int(Datatype.XATTR)
_SNAPPY: Final = int(Datatype.SNAPPY)
_JSON: Final = int(Datatype.JSON)


def apply_all(group: WriteGroup, changes: Sequence[c.ChangeRequest]) -> list[c.Outcome]:
    """Adds changes to the group. Returns one outcome for each; a refusal is an outcome."""
    outcomes: list[c.Outcome] = []
    for change in insert_plain(group, changes, outcomes):
        try:
            outcomes.append(_RULES[type(change)](group, change))
        except StoreRefusal as refusal:
            outcomes.append(refusal)
        except struct.error as problem:
            outcomes.append(StoreRefusal(Status.INVALID, f"a number is out of range: {problem}"))
    return outcomes


def _found(
    group: WriteGroup, vbucket: int, key: bytes
) -> tuple[Progress, int, bytes, StoredRecord | None, StoredRecord | None]:
    """Returns progress, collection and path of a document, its record, and that if it is live."""
    progress = group.active[vbucket]
    collection = check_key(group.collections, key)
    path = vbucket_key(vbucket) + key
    old = current(group, progress, path)
    return progress, collection, path, old, live_record(group, old)


def _existing(
    group: WriteGroup, vbucket: int, key: bytes, cas: int = 0, status: Status = Status.NOT_FOUND
) -> tuple[Progress, int, bytes, StoredRecord]:
    """Returns progress, collection, path and record of a document. Refuses if it is missing."""
    progress, collection, path, _, live = _found(group, vbucket, key)
    if live is None:
        raise missing(key, status)
    check_cas(cas, live, key)
    return progress, collection, path, live


# ---- versions ----------------------------------------------------------------------------


def _mutate(
    group: WriteGroup,
    vbucket: int,
    progress: Progress,
    path: bytes,
    key: bytes,
    old: StoredRecord | None,
    value: bytes,
    flags: int,
    expiry: int,
    datatype: int,
    edit: c.EditDocument | None = None,
) -> c.Applied:
    """Writes the next version of a document, or its prepare if the write is durable."""
    seqno = progress.high + 1
    rev = (progress.purged_rev if old is None else old.rev) + 1
    cas = group.clock.next()
    if edit is not None:
        value = _stamped(edit, cas, seqno)
    if group.level:
        prepared = StoredPrepare(
            vbucket, seqno, rev, cas, flags, expiry, datatype, key, value, False, group.level
        )
        return prepared_writes.install_prepare(group, vbucket, progress, path, prepared)
    frame = canonical.mutation(vbucket, seqno, rev, cas, flags, expiry, datatype, key, value)
    version = (seqno, rev, cas, flags, expiry, RecordKind.MUTATION, datatype)
    group.install(vbucket, progress, path, old, frame, version)
    return c.Applied(vbucket, seqno, cas)


def _write_tombstone(
    group: WriteGroup,
    vbucket: int,
    progress: Progress,
    path: bytes,
    key: bytes,
    old: StoredRecord | None,
    kind: RecordKind,
    edit: c.EditDocument | None = None,
) -> c.Applied:
    """Writes a document's tombstone, or its prepare. The tombstone keeps only system xattrs."""
    value, datatype = b"", 0
    if edit is not None:
        value, datatype = edit.value, edit.datatype
    elif old is not None and old.datatype & _XATTR:
        xattrs, _ = unwrap(_value(group, vbucket, old), old.datatype)
        kept = {name: content for name, content in xattrs.items() if name.startswith("_")}
        if kept:
            value, datatype = values.join_xattrs(kept, b""), _XATTR
    seqno = progress.high + 1
    rev = (progress.purged_rev if old is None else old.rev) + 1
    cas = group.clock.next()
    if edit is not None:
        value = _stamped(edit, cas, seqno)
    if group.level:
        prepared = StoredPrepare(
            vbucket, seqno, rev, cas, 0, group.now, datatype, key, value, True, group.level
        )
        return prepared_writes.install_prepare(group, vbucket, progress, path, prepared)
    pack = canonical.deletion if kind == RecordKind.DELETION else canonical.expiration
    frame = pack(vbucket, seqno, rev, cas, group.now, datatype, key, value)
    version = (seqno, rev, cas, 0, group.now, kind, datatype)
    group.install(vbucket, progress, path, old, frame, version)
    return c.Applied(vbucket, seqno, cas)


def _value(group: WriteGroup, vbucket: int, record: StoredRecord) -> bytes:
    return canonical.parse(group.frame(vbucket, record)).value


def _keeping_xattrs(
    group: WriteGroup, vbucket: int, live: StoredRecord, value: bytes, datatype: int
) -> tuple[bytes, int]:
    """Adds the xattrs of the replaced document to a new value that has none of its own."""
    if datatype & _XATTR:
        return value, datatype
    xattrs, _ = unwrap(_value(group, vbucket, live), live.datatype)
    _, body = unwrap(value, datatype)
    return values.join_xattrs(xattrs, body), datatype & ~_SNAPPY | _XATTR


def _store(
    group: WriteGroup,
    change: c.SetDocument | c.AddDocument | c.ReplaceDocument,
    progress: Progress,
    collection: int,
    path: bytes,
    old: StoredRecord | None,
    live: StoredRecord | None,
) -> c.Applied:
    """Writes a client's document. Xattrs, large values and expiries need extra steps here."""
    vbucket, key, value, flags, expiry, datatype = change[:6]
    if live is not None and live.datatype & _XATTR:
        value, datatype = _keeping_xattrs(group, vbucket, live, value, datatype)
    if datatype & _XATTR or len(value) > group.max_value:
        check_value(group, value, datatype)
    if expiry or group.collections[collection]:
        expiry = expiry_time(group, collection, expiry)
    return _mutate(group, vbucket, progress, path, key, old, value, flags, expiry, datatype)


# ---- client operations -------------------------------------------------------------------


def _set(group: WriteGroup, change: c.SetDocument) -> c.Applied:
    progress, collection, path, old, live = _found(group, change.vbucket, change.key)
    check_cas(change.cas, live, change.key)
    return _store(group, change, progress, collection, path, old, live)


def _add(group: WriteGroup, change: c.AddDocument) -> c.Applied:
    progress, collection, path, old, live = _found(group, change.vbucket, change.key)
    if live is not None:
        raise StoreRefusal(Status.EXISTS, f"there is a document {key_name(change.key)}")
    return _store(group, change, progress, collection, path, old, None)


def _replace(group: WriteGroup, change: c.ReplaceDocument) -> c.Applied:
    progress, collection, path, live = _existing(group, change.vbucket, change.key, change.cas)
    return _store(group, change, progress, collection, path, live, live)


def _append(group: WriteGroup, change: c.AppendToDocument) -> c.Applied:
    return _extend(group, change, lambda body: body + change.value)


def _prepend(group: WriteGroup, change: c.PrependToDocument) -> c.Applied:
    return _extend(group, change, lambda body: change.value + body)


def _extend(
    group: WriteGroup,
    change: c.AppendToDocument | c.PrependToDocument,
    join: Callable[[bytes], bytes],
) -> c.Applied:
    vbucket, key = change.vbucket, change.key
    progress, _, path, live = _existing(group, vbucket, key, change.cas, Status.NOT_STORED)
    xattrs, body = unwrap(_value(group, vbucket, live), live.datatype)
    value = join(body)
    datatype = _JSON if len(value) <= MAX_CHECKED_JSON and is_json(value) else 0
    if live.datatype & _XATTR:
        value, datatype = values.join_xattrs(xattrs, value), datatype | _XATTR
    check_value(group, value, datatype)
    return _mutate(
        group, vbucket, progress, path, key, live, value, live.flags, live.time, datatype
    )


def _count(group: WriteGroup, change: c.Counter) -> c.Applied:
    vbucket, key = change.vbucket, change.key
    progress, collection, path, old, live = _found(group, vbucket, key)
    check_cas(change.cas, live, key)
    xattrs: dict[str, bytes] = {}
    if live is None:
        if change.initial is None:
            raise missing(key)
        number, flags, datatype = change.initial, 0, _JSON
        expiry = expiry_time(group, collection, change.expiry)
    else:
        xattrs, body = unwrap(_value(group, vbucket, live), live.datatype)
        digits = body.strip()  # memcached accepts numbers with padding
        if not digits.isdigit() or len(digits) > 20 or int(digits) >= _U64:
            raise StoreRefusal(
                Status.BAD_DELTA, f"the document {key_name(key)} is no 64-bit number"
            )
        number = int(digits) + change.delta
        number = number % _U64 if change.delta > 0 else max(number, 0)
        flags, datatype, expiry = live.flags, live.datatype & _XATTR | _JSON, live.time
    value = str(number).encode()
    if datatype & _XATTR:
        value = values.join_xattrs(xattrs, value)
    done = _mutate(group, vbucket, progress, path, key, old, value, flags, expiry, datatype)
    return done._replace(number=number)


def _touch(group: WriteGroup, change: c.TouchDocument) -> c.Applied:
    vbucket, key = change.vbucket, change.key
    progress, collection, path, live = _existing(group, vbucket, key)
    expiry = expiry_time(group, collection, change.expiry)
    if expiry == live.time and not group.level:  # a durable touch is always prepared
        return c.Applied(vbucket, live.seqno, live.cas)
    value = _value(group, vbucket, live)
    return _mutate(
        group, vbucket, progress, path, key, live, value, live.flags, expiry, live.datatype
    )


def _delete(group: WriteGroup, change: c.DeleteDocument) -> c.Applied:
    progress, _, path, live = _existing(group, change.vbucket, change.key, change.cas)
    return _write_tombstone(
        group, change.vbucket, progress, path, change.key, live, RecordKind.DELETION
    )


def _edit(group: WriteGroup, change: c.EditDocument) -> c.Applied:
    """Writes an edited document if the version that it was computed from is still current."""
    vbucket, key = change.vbucket, change.key
    progress = group.active[vbucket]
    collection = check_key(group.collections, key)
    path = vbucket_key(vbucket) + key
    old: StoredRecord | None
    try:
        old, live = _existing(group, vbucket, key)[3], True
    except StoreRefusal as refusal:
        if refusal.status is not Status.NOT_FOUND:
            raise
        old, live = group.record(path), False  # a tombstone or None
    if change.over:
        if old is None or old.seqno != change.over:
            raise StoreRefusal(Status.EXISTS, f"the document {key_name(key)} has changed meanwhile")
    elif live:
        raise StoreRefusal(Status.EXISTS, f"there is a document {key_name(key)}")
    check_value(group, change.value, change.datatype)
    if change.deleted:
        return _write_tombstone(
            group, vbucket, progress, path, key, old, RecordKind.DELETION, change
        )
    return _mutate(
        group,
        vbucket,
        progress,
        path,
        key,
        old,
        change.value,
        change.flags,
        expiry_time(group, collection, change.expiry),
        change.datatype,
        change,
    )


def _stamped(edit: c.EditDocument, cas: int, seqno: int) -> bytes:
    """Fills in the CAS, in little-endian hex as Couchbase writes it, and the seqno."""
    value = edit.value
    if edit.cas_text:
        value = value.replace(edit.cas_text, f"0x{cas.to_bytes(8, 'little').hex()}".encode())
    if edit.seqno_text:
        value = value.replace(edit.seqno_text, f"0x{seqno:016x}".encode())
    return value


def _expire(group: WriteGroup, change: c.Expire) -> c.Applied:
    progress = group.active[change.vbucket]
    check_key(group.collections, change.key)  # dropped collections are erased, not expired
    path = vbucket_key(change.vbucket) + change.key
    old = current(group, progress, path)
    if old is None or old.seqno != change.seqno or not old.expired(group.now):
        raise missing(change.key)
    return _write_tombstone(
        group, change.vbucket, progress, path, change.key, old, RecordKind.EXPIRATION
    )


def _prepare(group: WriteGroup, change: c.PrepareWrite) -> c.Applied:
    """Runs the rule of a client write with its durability level, so that it writes a prepare."""
    if change.level < 1:
        raise StoreRefusal(Status.INVALID, f"{change.level} is no durability level")
    group.level = change.level
    try:
        return _RULES[type(change.change)](group, change.change)
    finally:
        group.level = 0


_RULES: Final[dict[type[Any], Callable[[WriteGroup, Any], c.Applied]]] = {
    c.SetDocument: _set,
    c.AddDocument: _add,
    c.ReplaceDocument: _replace,
    c.AppendToDocument: _append,
    c.PrependToDocument: _prepend,
    c.Counter: _count,
    c.TouchDocument: _touch,
    c.DeleteDocument: _delete,
    c.EditDocument: _edit,
    c.Expire: _expire,
    c.WithMeta: replication.with_meta,
    c.PrepareWrite: _prepare,
    c.CommitPrepared: prepared_writes.commit,
    c.AbortPrepared: prepared_writes.abort,
    c.Replicate: replication.replicate,
    c.ReplicateCommit: replication.replicate_commit,
    c.ReplicateAbort: replication.replicate_abort,
    c.BeginSnapshot: replication.begin_snapshot,
    c.EndSnapshot: replication.end_snapshot,
}
