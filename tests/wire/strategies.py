"""Messages of every dialect, generated from the dialects' own tables of layouts."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from hypothesis import strategies as st

from upriver.model import Datatype, FailoverEntry
from upriver.wire import frameinfo as fi
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp, Dialect, Draft000, Draft001, Draft002
from upriver.wire.dialects.draft002 import BODIES
from upriver.wire.dialects.keyvalue import _PATH_OPCODES, REQUESTS, RESPONSES
from upriver.wire.dialects.memcached_base import MemcachedDialect
from upriver.wire.enum_codes import FEATURES, Codes
from upriver.wire.kv_messages import SubdocPath
from upriver.wire.layout import Cas, KeyRule, Layout, Record, Slot
from upriver.wire.protocol_enums import DurabilityLevel

BINARY = st.binary(max_size=40)
NAMES = st.text(st.characters(codec="utf-8"), max_size=20)
U8, U16, U32, U64 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 32, 64))
DATATYPES = st.integers(0, 7).map(Datatype)
COLLECTIONS = st.one_of(st.just(0), st.integers(8, 2**32 - 1))
FAILOVER_LOGS = st.lists(st.builds(FailoverEntry, U64, U64), max_size=5).map(tuple)

CACHED_ITEMS = st.builds(
    m.CachedItem,
    seqno=U64,
    key=BINARY,
    value=BINARY,
    rev=U64,
    cas=U64,
    flags=U32,
    expiry=U32,
    datatype=DATATYPES,
    cache_hint=U8,
)


def _paths(values: st.SearchStrategy[bytes]) -> st.SearchStrategy[Any]:
    path = st.builds(
        SubdocPath,
        command=st.sampled_from(list(_PATH_OPCODES.numbers)),
        path=BINARY,
        value=values,
        path_flags=U8,
    )
    return st.lists(path, min_size=1, max_size=4).map(tuple)


def _features() -> st.SearchStrategy[Any]:
    known = st.sampled_from(list(FEATURES.numbers))
    unknown = U16.filter(lambda number: number not in FEATURES.names)
    return st.lists(st.one_of(known, unknown), max_size=6).map(tuple)


#: Attributes that hold more than bytes in the value of a packet, whoever has them.
_STRUCTURED: dict[str, st.SearchStrategy[Any]] = {
    "failover_log": FAILOVER_LOGS,
    "seqnos": st.lists(st.tuples(U16, U64), max_size=5).map(tuple),
    "keys": st.lists(st.tuples(U16, BINARY), min_size=1, max_size=4).map(tuple),
    "items": st.lists(CACHED_ITEMS, min_size=1, max_size=3).map(tuple),
    "features": _features(),
    "version": U16,
    "path": NAMES.filter(bool),
    "text": NAMES,
    "group": NAMES,
}


def _slot(slot: Slot) -> st.SearchStrategy[Any]:
    top = 2 ** (8 * slot.size) - 1
    if slot.load is None:
        return st.integers(slot.minimum, top)
    owner = getattr(slot.load, "__self__", None)
    if isinstance(owner, Codes):
        return st.sampled_from(list(owner.numbers))
    if slot.load is bool:
        return st.booleans()
    return st.integers(0, top).map(slot.load)  # flags keep bits without a name


def _record(record: Record, values: dict[str, st.SearchStrategy[Any]]) -> None:
    for slot in record.slots:
        if slot.attribute:
            values[slot.attribute] = _slot(slot)


def _value(layout: Layout, values: dict[str, st.SearchStrategy[Any]]) -> None:
    rule = layout.value
    if rule is None:
        return
    if rule.record is not None:
        _record(rule.record, values)
    elif layout.message.__name__ == "SubdocMultiLookup":
        values[rule.attribute] = _paths(st.just(b""))
    elif layout.message.__name__ == "SubdocMultiMutation":
        values[rule.attribute] = _paths(BINARY)
    elif layout.message is m.Control:
        values[rule.attribute] = NAMES.filter(bool)
    elif rule.load is not bytes:
        values[rule.attribute] = _STRUCTURED[rule.attribute]
    else:
        values[rule.attribute] = BINARY.filter(bool) if rule.required else BINARY


def _key(layout: Layout, collections: bool, values: dict[str, st.SearchStrategy[Any]]) -> None:
    if layout.key is KeyRule.DOCUMENT:
        values[layout.key_attribute] = st.binary(min_size=1, max_size=246)
        if collections:
            values["collection"] = COLLECTIONS
    elif layout.key is KeyRule.RAW:
        values[layout.key_attribute] = BINARY
    elif layout.key is not KeyRule.NONE:
        required = layout.key is KeyRule.NAME
        values[layout.key_attribute] = NAMES.filter(bool) if required else NAMES


REQUEST_FRAMES = st.lists(
    st.one_of(
        st.just(fi.Barrier()),
        st.builds(
            fi.Durability,
            st.sampled_from([x for x in DurabilityLevel if x is not DurabilityLevel.NONE]),
            st.one_of(st.none(), st.integers(1, 0xFFFE)),
        ),
        st.builds(fi.StreamId, U16),
        st.builds(fi.Impersonate, st.binary(min_size=1, max_size=40)),
        st.just(fi.PreserveTtl()),
        st.builds(fi.ExtraPrivilege, st.binary(min_size=1, max_size=20)),
        st.builds(fi.TokenId, U16),
        st.builds(fi.UnknownFrameInfo, st.integers(8, 270), st.binary(max_size=30)),
    ),
    max_size=3,
).map(tuple)
RESPONSE_FRAMES = st.lists(
    st.one_of(
        st.builds(fi.ServerDuration, U16),
        st.builds(fi.ReadUnits, U16),
        st.builds(fi.WriteUnits, U16),
        st.builds(fi.ThrottleDuration, U16),
        st.builds(fi.UnknownFrameInfo, st.integers(4, 270), st.binary(max_size=30)),
    ),
    max_size=3,
).map(tuple)


def message_of(layout: Layout, dialect: object) -> st.SearchStrategy[m.Message]:
    """Messages in one form of one dialect."""
    values: dict[str, st.SearchStrategy[Any]] = {"opaque": U32}
    known = {f.name for f in fields(layout.message)}
    _record(layout.extras, values)
    for attribute in {layout.prefix, layout.suffix} - {""}:
        values[attribute] = st.binary(min_size=1 if attribute == "key" else 0, max_size=30)
    collections = isinstance(dialect, MemcachedDialect) and dialect.collections
    _value(layout, values)
    _key(layout, collections, values)
    response = issubclass(layout.message, m.Response)
    if isinstance(dialect, MemcachedDialect):
        if "vbucket" in layout.header:
            values["vbucket"] = U16
        if "cas" in layout.header:
            values["cas"] = st.integers(1 if layout.cas is Cas.SET else 0, 2**64 - 1)
            if layout.cas is Cas.ZERO and not response:
                values["cas"] = st.just(0)
        if "datatype" in layout.header and layout.datatypes is not None:
            values["datatype"] = st.sampled_from(sorted(layout.datatypes)).map(Datatype)
        if dialect.flexible and layout.command.name != "CLUSTERMAP_CHANGED":
            values["frames"] = RESPONSE_FRAMES if response else REQUEST_FRAMES
    elif "vbucket" in known:
        values.setdefault("vbucket", st.just(m.VBUCKET_NOT_CARRIED))
    for name, constant in layout.constants.items():
        values[name] = st.just(constant)
    if layout.has_command:
        values["command"] = st.just(layout.command)
    if layout.message is m.SystemEvent:  # versions 0 and 1 have messages of their own
        values["version"] = st.integers(2, 255)
    if layout.message is m.FailoverLogResponse:
        values["failover_log"] = FAILOVER_LOGS.filter(bool)
    return st.builds(layout.message, **values)


def _layouts(dialect: object) -> list[Layout]:
    if isinstance(dialect, Draft002):
        return list(BODIES)
    assert isinstance(dialect, MemcachedDialect)
    layouts = [x for forms in dialect.table.of_message.values() for x in forms]
    if isinstance(dialect, Dcp):
        return layouts
    shared = {id(x) for x in (*REQUESTS, *RESPONSES)}  # the same in every dialect
    return [x for x in layouts if id(x) not in shared]


DIALECTS: list[Dialect] = [Draft002(), Draft000(), Draft001(), Dcp(), Dcp(collections=True)]
FORMS = [(dialect, layout) for dialect in DIALECTS for layout in _layouts(dialect)]
