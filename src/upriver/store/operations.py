"""What each change does to a document: the rules of the key-value operations.

Every function takes a group and a change, and either adds the change to the group or refuses it
with the status to answer; a refusal leaves the group as it was.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from ..errors import Status, StoreRefusal
from ..model import Datatype
from ..wire import canonical, values
from . import changes as c
from . import replication
from .bulk import insert_plain
from .checks import (
    check_cas,
    check_key,
    check_value,
    expiry_time,
    live_record,
    missing,
    unwrap,
)
from .group import Group
from .layout import Kind, Record, vbucket_key
from .vbucket import Progress

__all__ = ["apply_all"]

_U64: Final = 2**64
_XATTR: Final = int(Datatype.XATTR)
_SNAPPY: Final = int(Datatype.SNAPPY)
_JSON: Final = int(Datatype.JSON)


def apply_all(group: Group, changes: Sequence[c.Change]) -> list[c.Outcome]:
    """Adds changes to the group, one outcome for each; a refusal is an outcome."""
    outcomes: list[c.Outcome] = []
    for change in insert_plain(group, changes, outcomes):
        try:
            outcomes.append(_RULES[type(change)](group, change))
        except StoreRefusal as refusal:
            outcomes.append(refusal)
        except struct.error as problem:
            outcomes.append(StoreRefusal(Status.INVALID, f"a number is out of range: {problem}"))
    return outcomes


def _existing(
    group: Group, vbucket: int, key: bytes, cas: int = 0, status: Status = Status.NOT_FOUND
) -> tuple[Progress, int, bytes, Record]:
    """The vbucket, collection, path and record of a document that must be there."""
    progress = group.active[vbucket]
    collection = check_key(group.collections, key)
    path = vbucket_key(vbucket) + key
    live = live_record(group, group.record(path))
    if live is None:
        raise missing(key, status)
    check_cas(cas, live, key)
    return progress, collection, path, live


# ---- writing one version -----------------------------------------------------------------


def _mutate(
    group: Group,
    vbucket: int,
    progress: Progress,
    path: bytes,
    key: bytes,
    old: Record | None,
    value: bytes,
    flags: int,
    expiry: int,
    datatype: int,
) -> c.Applied:
    """Writes the next version of a document."""
    seqno = progress.high + 1
    rev = (progress.purged_rev if old is None else old.rev) + 1
    cas = group.clock.next()
    frame = canonical.mutation(vbucket, seqno, rev, cas, flags, expiry, datatype, key, value)
    version = (seqno, rev, cas, flags, expiry, Kind.MUTATION, datatype)
    group.install(vbucket, progress, path, old, frame, version)
    return c.Applied(vbucket, seqno, cas)


def _bury(
    group: Group, vbucket: int, progress: Progress, path: bytes, key: bytes, old: Record, kind: Kind
) -> c.Applied:
    """Writes the tombstone of a document; of its value only system xattrs stay."""
    value, datatype = b"", 0
    if old.datatype & _XATTR:
        xattrs, _ = unwrap(_value(group, vbucket, old), old.datatype)
        kept = {name: content for name, content in xattrs.items() if name.startswith("_")}
        if kept:
            value, datatype = values.join_xattrs(kept, b""), _XATTR
    seqno = progress.high + 1
    rev = old.rev + 1
    cas = group.clock.next()
    pack = canonical.deletion if kind == Kind.DELETION else canonical.expiration
    frame = pack(vbucket, seqno, rev, cas, group.now, datatype, key, value)
    version = (seqno, rev, cas, 0, group.now, kind, datatype)
    group.install(vbucket, progress, path, old, frame, version)
    return c.Applied(vbucket, seqno, cas)


def _value(group: Group, vbucket: int, record: Record) -> bytes:
    return canonical.parse(group.frame(vbucket, record)).value


def _keeping_xattrs(
    group: Group, vbucket: int, live: Record, value: bytes, datatype: int
) -> tuple[bytes, int]:
    """A new value with the xattrs of the document it replaces, unless it brings its own."""
    if datatype & _XATTR:
        return value, datatype
    xattrs, _ = unwrap(_value(group, vbucket, live), live.datatype)
    _, body = unwrap(value, datatype)
    return values.join_xattrs(xattrs, body), datatype & ~_SNAPPY | _XATTR


def _store(
    group: Group,
    change: c.Set | c.Add | c.Replace,
    progress: Progress,
    collection: int,
    path: bytes,
    old: Record | None,
    live: Record | None,
) -> c.Applied:
    """Writes what a client sent, after the checks and additions that few documents need."""
    vbucket, key, value, flags, expiry, datatype = change[:6]
    if datatype & _XATTR or len(value) > group.max_value:
        check_value(group, value, datatype)
    if live is not None and live.datatype & _XATTR:
        value, datatype = _keeping_xattrs(group, vbucket, live, value, datatype)
    if expiry or group.collections[collection]:
        expiry = expiry_time(group, collection, expiry)
    return _mutate(group, vbucket, progress, path, key, old, value, flags, expiry, datatype)


# ---- the operations of clients -----------------------------------------------------------


def _set(group: Group, change: c.Set) -> c.Applied:
    vbucket, key = change.vbucket, change.key
    progress = group.active[vbucket]
    collection = check_key(group.collections, key)
    path = vbucket_key(vbucket) + key
    old = group.record(path)
    live = live_record(group, old)
    check_cas(change.cas, live, key)
    return _store(group, change, progress, collection, path, old, live)


def _add(group: Group, change: c.Add) -> c.Applied:
    progress = group.active[change.vbucket]
    collection = check_key(group.collections, change.key)
    path = vbucket_key(change.vbucket) + change.key
    old = group.record(path)
    if live_record(group, old) is not None:
        raise StoreRefusal(Status.EXISTS, f"there is a document {change.key!r}")
    return _store(group, change, progress, collection, path, old, None)


def _replace(group: Group, change: c.Replace) -> c.Applied:
    progress, collection, path, live = _existing(group, change.vbucket, change.key, change.cas)
    return _store(group, change, progress, collection, path, live, live)


def _append(group: Group, change: c.Append) -> c.Applied:
    return _extend(group, change, lambda body: body + change.value)


def _prepend(group: Group, change: c.Prepend) -> c.Applied:
    return _extend(group, change, lambda body: change.value + body)


def _extend(
    group: Group, change: c.Append | c.Prepend, join: Callable[[bytes], bytes]
) -> c.Applied:
    vbucket, key = change.vbucket, change.key
    progress, _, path, live = _existing(group, vbucket, key, change.cas, Status.NOT_STORED)
    xattrs, body = unwrap(_value(group, vbucket, live), live.datatype)
    value = join(body)
    datatype = live.datatype & _XATTR  # whether it still is JSON, only its reader can tell
    if datatype:
        value = values.join_xattrs(xattrs, value)
    check_value(group, value, datatype)
    return _mutate(
        group, vbucket, progress, path, key, live, value, live.flags, live.time, datatype
    )


def _count(group: Group, change: c.Counter) -> c.Applied:
    vbucket, key = change.vbucket, change.key
    progress = group.active[vbucket]
    collection = check_key(group.collections, key)
    path = vbucket_key(vbucket) + key
    old = group.record(path)
    live = live_record(group, old)
    check_cas(change.cas, live, key)
    xattrs: dict[str, bytes] = {}
    if live is None:
        if change.initial is None:
            raise missing(key)
        number, flags, datatype = change.initial, 0, _JSON
        expiry = expiry_time(group, collection, change.expiry)
    else:
        xattrs, body = unwrap(_value(group, vbucket, live), live.datatype)
        if not body.isdigit() or len(body) > 20 or int(body) >= _U64:
            raise StoreRefusal(Status.BAD_DELTA, f"the document {key!r} is no 64-bit number")
        number = int(body) + change.delta
        number = number % _U64 if change.delta > 0 else max(number, 0)
        flags, datatype, expiry = live.flags, live.datatype & ~_SNAPPY, live.time
    value = str(number).encode()
    if datatype & _XATTR:
        value = values.join_xattrs(xattrs, value)
    done = _mutate(group, vbucket, progress, path, key, old, value, flags, expiry, datatype)
    return done._replace(number=number)


def _touch(group: Group, change: c.Touch) -> c.Applied:
    vbucket, key = change.vbucket, change.key
    progress, collection, path, live = _existing(group, vbucket, key)
    return _mutate(
        group,
        vbucket,
        progress,
        path,
        key,
        live,
        _value(group, vbucket, live),
        live.flags,
        expiry_time(group, collection, change.expiry),
        live.datatype,
    )


def _delete(group: Group, change: c.Delete) -> c.Applied:
    progress, _, path, live = _existing(group, change.vbucket, change.key, change.cas)
    return _bury(group, change.vbucket, progress, path, change.key, live, Kind.DELETION)


def _expire(group: Group, change: c.Expire) -> c.Applied:
    progress = group.active[change.vbucket]
    check_key(group.collections, change.key)  # what was dropped is erased, and does not expire
    path = vbucket_key(change.vbucket) + change.key
    old = group.record(path)
    if old is None or old.seqno != change.seqno or not old.expired(group.now):
        raise missing(change.key)
    return _bury(group, change.vbucket, progress, path, change.key, old, Kind.EXPIRATION)


_RULES: Final[dict[type[Any], Callable[[Group, Any], c.Applied]]] = {
    c.Set: _set,
    c.Add: _add,
    c.Replace: _replace,
    c.Append: _append,
    c.Prepend: _prepend,
    c.Counter: _count,
    c.Touch: _touch,
    c.Delete: _delete,
    c.Expire: _expire,
    c.WithMeta: replication.with_meta,
    c.Replicate: replication.replicate,
    c.BeginSnapshot: replication.begin_snapshot,
    c.EndSnapshot: replication.end_snapshot,
}
