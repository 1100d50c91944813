"""Dissects a packet into its fields for display: offset, bytes and meaning of each.

It goes as far as the packet's lengths allow, so that malformed packets can be shown too. It only
names the fields; decoding is done by the dialects.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, IntFlag
from typing import Any

from ..model import Datatype
from .dialects import Dialect, Draft002
from .dialects.draft002 import HEADER, OPCODE_NAMES, select_body
from .dialects.memcached_base import MemcachedDialect
from .frameinfo import FrameInfoError, decode_frame_infos
from .framing import HEADER_002_SIZE
from .header import HEADER_SIZE, MAGICS, Header, parse_header
from .layout import KeyRule, Layout, Record, Slot, Value, closest, datatype_name
from .leb128 import decode as decode_leb128
from .values import unwrap

_MAGIC_NAMES = {
    0x80: "request",
    0x81: "response",
    0x08: "request with framing extras",
    0x18: "response with framing extras",
    0x82: "request of the server",
    0x83: "response to the server",
}
_SHOWN_TEXT = 60
#: The years 2010 to 2100: a CAS outside of them is not a time.
_FIRST_PLAUSIBLE_CAS = 1_262_304_000_000_000_000
_LAST_PLAUSIBLE_CAS = 4_102_444_800_000_000_000


@dataclass(frozen=True, slots=True)
class FieldView:
    """One field of a packet, for display."""

    offset: int
    size: int
    name: str
    meaning: str


def dissect(packet: bytes, dialect: Dialect) -> tuple[FieldView, ...]:
    """The fields of a packet, as far as its lengths allow."""
    if isinstance(dialect, Draft002):
        return tuple(_dissect_002(packet))
    assert isinstance(dialect, MemcachedDialect)
    return tuple(_dissect_memcached(packet, dialect))


# ---- drafts with the memcached header ----------------------------------------------------


def _dissect_memcached(packet: bytes, dialect: MemcachedDialect) -> Iterator[FieldView]:
    if len(packet) < HEADER_SIZE or packet[0] not in MAGICS:
        yield FieldView(0, len(packet), "not a header", _bytes_meaning(packet))
        return
    header = parse_header(packet)
    yield from _header(header, dialect)
    at = HEADER_SIZE
    if header.frames_length:
        raw = packet[at : at + header.frames_length]
        yield FieldView(at, len(raw), "framing extras", _frames_meaning(raw, header))
        at += header.frames_length
    layout = _layout(packet, header, dialect)
    extras_end = at + header.extras_length
    if layout is not None and header.extras_length >= layout.extras.size <= len(packet) - at:
        yield from _record(packet, layout.extras, at)
        at += layout.extras.size
    if at < extras_end <= len(packet):
        surplus = packet[at:extras_end]
        yield FieldView(at, len(surplus), "extras", _bytes_meaning(surplus))
    at = extras_end
    if header.key_length and at + header.key_length <= len(packet):
        key = packet[at : at + header.key_length]
        is_document = layout is not None and layout.key in (KeyRule.DOCUMENT, KeyRule.RAW)
        yield from _key(key, at, dialect.collections and is_document)
        at += header.key_length
    if at < len(packet):
        datatype = header.datatype if dialect.has_datatypes and header.datatype < 8 else 0
        yield from _value(packet, at, layout, Datatype(datatype))


def _header(header: Header, dialect: MemcachedDialect) -> Iterator[FieldView]:
    command = dialect.table.commands.get((header.of_server, header.opcode))
    yield FieldView(0, 1, "magic", _MAGIC_NAMES[header.magic])
    yield FieldView(1, 1, "opcode", str(command or "unknown").replace("_", " "))
    if header.is_flexible:
        yield FieldView(2, 1, "framing extras length", str(header.frames_length))
        yield FieldView(3, 1, "key length", str(header.key_length))
    else:
        yield FieldView(2, 2, "key length", str(header.key_length))
    yield FieldView(4, 1, "extras length", str(header.extras_length))
    yield FieldView(5, 1, "datatype", datatype_name(header.datatype))
    if header.is_response:
        status = dialect.table.status(command or header.opcode, header.vbucket)
        yield FieldView(6, 2, "status", status.name.replace("_", " ").lower())
    else:
        yield FieldView(6, 2, "vbucket", str(header.vbucket))
    yield FieldView(8, 4, "total body length", str(header.body_length))
    yield FieldView(12, 4, "opaque", _number_meaning(header.opaque))
    yield FieldView(16, 8, "cas", _cas_meaning(header.cas))


def _layout(packet: bytes, header: Header, dialect: MemcachedDialect) -> Layout | None:
    """The layout of a packet, or the closest one."""
    key = (header.of_server, header.opcode)
    if header.is_response:
        command = dialect.table.commands.get(key)
        status = dialect.table.status(command or header.opcode, header.vbucket)
        layouts = dialect.table.responses.get((*key, status), [])
    else:
        layouts = dialect.table.requests.get(key, [])
    at = HEADER_SIZE + header.frames_length
    key_at = at + header.extras_length
    value_at = key_at + header.key_length
    return closest(layouts, packet[at:key_at], packet[key_at:value_at], packet[value_at:])


def _record(packet: bytes, record: Record, at: int) -> Iterator[FieldView]:
    for slot, number in zip(record.slots, record.struct.unpack_from(packet, at), strict=True):
        yield FieldView(at, slot.size, slot.label, _slot_meaning(slot, number))
        at += slot.size


def _key(key: bytes, at: int, prefixed: bool) -> Iterator[FieldView]:
    if prefixed:
        try:
            collection, size = decode_leb128(key)
        except ValueError:
            prefixed = False
        else:
            yield FieldView(at, size, "collection id", _number_meaning(collection))
            at, key = at + size, key[size:]
    yield FieldView(at, len(key), "key", _bytes_meaning(key))


def _value(
    packet: bytes, at: int, layout: Layout | None, datatype: Datatype
) -> Iterator[FieldView]:
    raw = packet[at:]
    rule = layout.value if layout else None
    if rule is not None and rule.record is not None and len(raw) == rule.record.size:
        yield from _record(packet, rule.record, at)
    elif rule is not None and rule.load is not bytes:
        yield FieldView(at, len(raw), rule.label, _loaded_meaning(rule, raw))
    else:
        yield FieldView(at, len(raw), "value", _value_meaning(raw, datatype))


# ---- draft 002 ---------------------------------------------------------------------------


def _dissect_002(packet: bytes) -> Iterator[FieldView]:
    if len(packet) < HEADER_002_SIZE or packet[0] not in OPCODE_NAMES:
        yield FieldView(0, len(packet), "not a header", _bytes_meaning(packet))
        return
    opcode, opaque, length = HEADER.unpack_from(packet)
    yield FieldView(0, 1, "opcode", OPCODE_NAMES[opcode])
    yield FieldView(1, 3, "reserved", "")
    yield FieldView(4, 4, "request id", _number_meaning(opaque))
    yield FieldView(8, 4, "length", str(length))
    at, body = HEADER_002_SIZE, packet[HEADER_002_SIZE:]
    layout = select_body(opcode, body)
    if layout is None or len(body) < layout.extras.size:
        if body:
            yield FieldView(at, len(body), "body", _bytes_meaning(body))
        return
    yield from _record(packet, layout.extras, at)
    lengths = layout.extras.load(packet, at, {}) if layout.prefix else {}
    at += layout.extras.size
    if layout.prefix:
        key = packet[at : at + lengths["key"]]
        yield FieldView(at, len(key), "key", _bytes_meaning(key))
        at += len(key)
    if at < len(packet):
        yield from _value(packet, at, layout, Datatype.RAW)


# ---- meanings ----------------------------------------------------------------------------


def _slot_meaning(slot: Slot, number: int) -> str:
    load: Callable[[int], Any] | None = slot.load
    if load is not None:
        try:
            loaded = load(number)
        except ValueError as problem:
            return f"{number}: {problem}"
        if isinstance(loaded, IntFlag):
            return loaded.name.replace("|", " | ").lower() if loaded.name else "none"
        if isinstance(loaded, Enum):
            return loaded.name.replace("_", " ").lower()
        return str(loaded)
    return _number_meaning(number)


def _number_meaning(number: int) -> str:
    return "no end" if number == 2**64 - 1 else str(number)


def _cas_meaning(cas: int) -> str:
    """A CAS with its time: it is nanoseconds since 1970, with a counter in the lowest bits."""
    if not _FIRST_PLAUSIBLE_CAS <= cas <= _LAST_PLAUSIBLE_CAS:
        return str(cas)
    moment = datetime.fromtimestamp(cas // 1_000_000_000, UTC)
    return f"{cas} ({moment:%Y-%m-%d %H:%M:%S} UTC)"


def _frames_meaning(raw: bytes, header: Header) -> str:
    try:
        infos = decode_frame_infos(raw, response=header.is_response)
    except FrameInfoError as problem:
        return f"broken: {problem.rule}"
    return ", ".join(map(str, infos))


def _loaded_meaning(rule: Value, raw: bytes) -> str:
    try:
        loaded = rule.load(raw)
    except ValueError as problem:
        return f"broken: {problem}"
    if isinstance(loaded, tuple):
        return ", ".join(_item_meaning(item) for item in loaded) or "empty"
    return str(loaded)


def _item_meaning(item: Any) -> str:
    if isinstance(item, Enum):
        return item.name.lower()
    if hasattr(item, "vbuuid"):
        return f"{item.vbuuid:#x} from {item.seqno}"
    return str(item)


def _value_meaning(raw: bytes, datatype: Datatype) -> str:
    try:
        xattrs, body = unwrap(raw, datatype)
    except ValueError as problem:
        return f"broken: {problem}"
    parts = [f"xattr {name}={_bytes_meaning(content)}" for name, content in xattrs.items()]
    if body:
        parts.append(_bytes_meaning(body))
    return ", ".join(parts)


def _bytes_meaning(raw: bytes) -> str:
    """The bytes as text, or their number if they are not text; truncated to a line."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return f"{len(raw)} bytes that are not text"
    if not text.isprintable():
        try:
            text = json.dumps(json.loads(text), separators=(",", ":"))
        except ValueError:
            text = repr(text)
    if len(text) > _SHOWN_TEXT:
        return f"{text[:_SHOWN_TEXT]}… ({len(raw)} bytes)"
    return text
