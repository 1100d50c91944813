"""The dialect of draft 002, the oldest: a 12-byte header and a type byte.

The draft does not specify its stream messages completely; `_ITEM` and `_EDGE` fix their layout.
A response does not name its request: an OK with pairs is read as a failover log, one without as an
accepted stream, and an error as the refusal of a stream request. Messages of a stream carry no
vbucket, only the request id.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NoReturn

from ...errors import DecodeError, Status
from .. import limits
from .. import messages as m
from ..enum_codes import DRAFT_REASONS
from ..framing import HEADER_002_SIZE
from ..layout import (
    FieldError,
    Layout,
    Record,
    Slot,
    Value,
    const,
    length_of,
    reserved,
    u8,
    u16,
    u32,
    u64,
)
from ..packet_value_codecs import FAILOVER_LOG, text
from ..protocol_enums import Command as C
from .interface import SnapshotStyle
from .packet_encoder import refuse

HEADER = struct.Struct(
    ">"
    "B"  # opcode
    "3x"  # reserved
    "I"  # request id
    "I"  # length of what follows
)

_REQUEST: Final = 1
_RESPONSE: Final = 2
_STREAM_BEGIN: Final = 3
_STREAM_MESSAGE: Final = 4
_STREAM_CLOSE: Final = 5
_REQUEST_ERROR: Final = 6
_RESPONSE_ERROR: Final = 7

OPCODE_NAMES: Final = {
    _REQUEST: "request",
    _RESPONSE: "response",
    _STREAM_BEGIN: "stream begin",
    _STREAM_MESSAGE: "stream message",
    _STREAM_CLOSE: "stream close",
    _REQUEST_ERROR: "request error",
    _RESPONSE_ERROR: "response decode error",
}


def opaque_of(packet: bytes) -> int:
    """The request id in the header of a whole packet."""
    opaque: int = HEADER.unpack_from(packet)[1]
    return opaque


def _body(
    command: C,
    opcode: int,
    message: type[m.Message],
    *slots: Slot,
    tail: Value | None = None,
    **rest: Any,
) -> Layout:
    """One layout of one message: fixed fields, a key if they hold its length, then the tail."""
    prefix = "key" if _KEY in slots else ""
    return Layout(
        command,
        opcode,
        message,
        Record(*slots),
        value=tail,
        prefix=prefix,
        datatypes=None,
        **rest,
    )


def _type(number: int) -> Slot:
    return const("B", number, "type")


_KEY = length_of("H", "key", "key length")
_ITEM = (
    reserved("B"),
    _KEY,
    u64("cas"),
    u64("seqno", label="by seqno"),
    u64("rev", label="rev seqno"),
    u32("flags", label="item flags"),
    u32("expiry", label="item expiration"),
)
_EDGE = (reserved("B"), reserved("H", "key length"))
_DOCUMENT = Value(document=True)
_TEXT = text("text", required=False)

#: The order matters where a message has several layouts: the first that fits is used.
BODIES: Final = [
    _body(
        C.STREAM_REQUEST,
        _REQUEST,
        m.StreamRequest,
        _type(1),
        reserved("B"),
        u16("vbucket"),
        u64("start", label="start by seqno"),
        u64("end", label="end by seqno"),
        u64("vbuuid", label="vbucket uuid"),
        u64("high_seqno", absent=0),
        tail=text("group", required=False),
    ),
    _body(
        C.FAILOVER_LOG,
        _REQUEST,
        m.FailoverLogRequest,
        _type(2),
        reserved("B"),
        u16("vbucket"),
    ),
    _body(C.STREAM_REQUEST, _RESPONSE, m.StreamAccepted, _type(1)),
    _body(C.FAILOVER_LOG, _RESPONSE, m.FailoverLogResponse, _type(1), tail=FAILOVER_LOG),
    _body(
        C.STREAM_REQUEST,
        _RESPONSE,
        m.PlainResponse,
        _type(2),
        constants={"status": Status.NOT_MY_VBUCKET},
    ),
    _body(
        C.STREAM_REQUEST,
        _RESPONSE,
        m.StreamRollback,
        _type(3),
        u64("seqno", label="rollback seqno"),
    ),
    _body(C.STREAM_START, _STREAM_BEGIN, m.StreamStart, u16("vbucket")),
    _body(
        C.SNAPSHOT_START,
        _STREAM_MESSAGE,
        m.SnapshotStart,
        _type(1),
        *_EDGE,
    ),
    _body(
        C.SNAPSHOT_END,
        _STREAM_MESSAGE,
        m.SnapshotEnd,
        _type(2),
        *_EDGE,
    ),
    _body(
        C.MUTATION,
        _STREAM_MESSAGE,
        m.Mutation,
        _type(3),
        *_ITEM,
        u32("lock_time"),
        tail=_DOCUMENT,
    ),
    _body(
        C.DELETION,
        _STREAM_MESSAGE,
        m.Deletion,
        _type(4),
        *_ITEM,
    ),
    _body(
        C.EXPIRATION,
        _STREAM_MESSAGE,
        m.Expiration,
        _type(5),
        *_ITEM,
    ),
    _body(
        C.STREAM_END,
        _STREAM_CLOSE,
        m.StreamEnd,
        u32("reason", DRAFT_REASONS),
    ),
    _body(C.REQUEST_ERROR, _REQUEST_ERROR, m.RequestError, u8("reason"), tail=_TEXT),
    _body(C.RESPONSE_ERROR, _RESPONSE_ERROR, m.ResponseError, u8("reason"), tail=_TEXT),
]

_BY_MESSAGE: Final = {layout.message: layout for layout in BODIES}

_ERRORS: Final = {_REQUEST_ERROR: m.RequestError, _RESPONSE_ERROR: m.ResponseError}

#: A failover log request as the draft prints it, without the vbucket.
_SHORT_FAILOVER_LOG_REQUEST: Final = b"\x02"


def select_body(opcode: int, body: bytes) -> Layout | None:
    """The layout of a body, by its type byte; None for an unknown type."""
    forms = [
        layout
        for layout in BODIES
        if layout.opcode == opcode
        and (
            not layout.extras.slots[0].required
            or body[:1] == bytes([layout.extras.slots[0].constant])
        )
    ]
    exact = [layout for layout in forms if len(body) == layout.extras.size]
    return next(iter(exact or reversed(forms)), None)


@dataclass(frozen=True, slots=True)
class Draft002:
    """Draft 002."""

    name: ClassVar[str] = "002"
    snapshot_style: ClassVar[SnapshotStyle] = SnapshotStyle.EDGES
    has_memcached_header: ClassVar[bool] = False
    opens_connections: ClassVar[bool] = False
    negotiates: ClassVar[bool] = False
    accepts_with_failover_log: ClassVar[bool] = False
    acknowledges_state: ClassVar[bool] = False
    has_flush: ClassVar[bool] = False
    has_columns: ClassVar[bool] = False
    sends_nru: ClassVar[bool] = False
    collections: ClassVar[bool] = False

    def decode(self, packet: bytes) -> m.Message:
        opcode, opaque, body = self._open(packet)
        name = OPCODE_NAMES[opcode]
        at = HEADER_002_SIZE
        if opcode == _REQUEST and body == _SHORT_FAILOVER_LOG_REQUEST:
            return m.FailoverLogRequest(opaque=opaque, vbucket=0)
        if opcode in _ERRORS:  # the draft says nothing of their bodies
            reason, said = body[0] if body else 0, body[1:].decode(errors="replace")
            return _ERRORS[opcode](opaque=opaque, reason=reason, text=said)
        layout = select_body(opcode, body)
        if layout is None:
            kind = f"{body[0]} is not a type of this message" if body else "the body is missing"
            self._fail(name, "type", at, kind)
        name = f"{layout.command} {name}"
        if len(body) < layout.extras.size:
            rule = f"must be at least {layout.extras.size} bytes, not {len(body)}"
            self._fail(name, "length", 8, rule)
        values: dict[str, Any] = dict(layout.constants)
        try:
            lengths = layout.extras.load(packet, at, values)
        except FieldError as problem:
            self._fail(name, problem.field, problem.offset, problem.rule)
        tail, tail_at = body[layout.extras.size :], at + layout.extras.size
        if layout.prefix:
            length = lengths["key"]
            if not 0 < length <= limits.MAX_KEY or length > len(tail):
                rule = f"{length} is not within 1..{min(limits.MAX_KEY, len(tail))}"
                self._fail(name, "key length", at + 2, rule)
            values["key"], tail, tail_at = tail[:length], tail[length:], tail_at + length
        self._load_tail(name, layout.value, tail, tail_at, values)
        if "vbucket" in layout.header:
            values.setdefault("vbucket", m.VBUCKET_NOT_CARRIED)
        if layout.has_command:
            values["command"] = layout.command
        return layout.message(opaque=opaque, **values)

    def _open(self, packet: bytes) -> tuple[int, int, bytes]:
        if len(packet) < HEADER_002_SIZE:
            rule = f"the header needs 12 bytes, the packet has {len(packet)}"
            self._fail("packet", "header", len(packet), rule, usable=False)
        opcode, opaque, length = HEADER.unpack_from(packet)
        if opcode not in OPCODE_NAMES:
            self._fail("packet", "opcode", 0, f"{opcode:#04x} is not an opcode", usable=False)
        body = packet[HEADER_002_SIZE:]
        if len(body) != length:
            rule = f"is {length}, but {len(body)} bytes follow"
            self._fail(OPCODE_NAMES[opcode], "length", 8, rule, usable=False)
        return opcode, opaque, body

    def _load_tail(
        self, name: str, rule: Value | None, tail: bytes, at: int, values: dict[str, Any]
    ) -> None:
        if rule is None:
            if tail:
                self._fail(name, "length", 8, f"{len(tail)} bytes too many")
            return
        limit = limits.MAX_STORED_VALUE if rule.document else limits.MAX_BODY
        if rule.attribute == "group":
            limit = limits.MAX_NAME
        if len(tail) > limit:
            self._fail(name, rule.attribute, at, f"{len(tail)} bytes are more than {limit}")
        try:
            values[rule.attribute] = rule.load(tail)
        except ValueError as problem:
            self._fail(name, rule.label, at, str(problem))

    def command_of(self, message: m.Message) -> C | int:
        if isinstance(message, m.Response | m.BareHeader):
            return message.command
        return self._layout_for(message).command

    def encode(self, message: m.Message) -> bytes:
        if isinstance(message, m.BareHeader):
            return self._pack(message, _REQUEST, b"")
        if isinstance(message, m.FailoverLogRequest) and message.vbucket == m.VBUCKET_NOT_CARRIED:
            return self._pack(message, _REQUEST, _SHORT_FAILOVER_LOG_REQUEST)
        layout = self._layout_for(message)
        try:
            body = layout.extras.dump(message)
            if layout.prefix:
                key: bytes = message.key  # type: ignore[attr-defined]
                if not 0 < len(key) <= limits.MAX_KEY:
                    raise FieldError("key", 0, f"must be 1 to {limits.MAX_KEY} bytes")
                body += key
            if layout.value is not None:
                body += layout.value.dump(getattr(message, layout.value.attribute))
        except FieldError as problem:
            self._refuse(message, problem.field, problem.rule)
        except (ValueError, struct.error) as problem:
            self._refuse(message, layout.value.attribute if layout.value else "body", str(problem))
        return self._pack(message, layout.opcode, body)

    def _layout_for(self, message: m.Message) -> Layout:
        layout = _BY_MESSAGE.get(type(message))
        if layout is None:
            self._refuse(message, "message", "this draft has no such message")
        if message.frames:
            self._refuse(message, "frames", "this draft has no framing extras")
        misfit = layout.misfit(message)
        if misfit:
            self._refuse(message, misfit, "this draft cannot carry it, or requires it")
        if isinstance(message, m.FailoverLogResponse) and not message.failover_log:
            self._refuse(message, "failover_log", "an empty log reads as an accepted stream")
        return layout

    def _pack(self, message: m.Message, opcode: int, body: bytes) -> bytes:
        if not 0 <= message.opaque <= 0xFFFFFFFF:
            self._refuse(message, "opaque", f"{message.opaque} is not an unsigned 32-bit number")
        if len(body) > limits.MAX_BODY:
            self._refuse(message, "body", f"{len(body)} bytes are more than {limits.MAX_BODY}")
        return HEADER.pack(opcode, message.opaque, len(body)) + body

    def _fail(
        self, packet: str, field: str, offset: int, rule: str, *, usable: bool = True
    ) -> NoReturn:
        raise DecodeError(
            dialect=self.name,
            packet=packet,
            field=field,
            offset=offset,
            rule=rule,
            usable=usable,
        )

    def _refuse(self, message: m.Message, field: str, rule: str) -> NoReturn:
        refuse(self.name, message, field, rule)
