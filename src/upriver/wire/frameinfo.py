"""Framing extras (frame infos): optional fields between header and extras of a flexible packet.

Each is ``id<<4 | length`` in one byte, then the data; 15 in either half means 15 plus the next byte
(the id's escape byte first). Requests and responses have separate ids.

Errors are `FrameInfoError` with an offset into the framing extras.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import Status
from .enum_codes import DURABILITY_LEVELS
from .protocol_enums import DurabilityLevel

_U16 = struct.Struct(">H")


class FrameInfoError(ValueError):
    """Malformed framing extras: the offset, the rule, and the status for a server to answer."""

    def __init__(self, offset: int, rule: str, status: Status = Status.INVALID) -> None:
        super().__init__(rule)
        self.offset = offset
        self.rule = rule
        self.status = status


@dataclass(frozen=True, slots=True)
class FrameInfo:
    """One framing extra."""


@dataclass(frozen=True, slots=True)
class Barrier(FrameInfo):
    """A barrier: later requests wait for the requests before this one."""


@dataclass(frozen=True, slots=True)
class Durability(FrameInfo):
    """A durable write, acknowledged at this level; timeout None is the server's default."""

    level: DurabilityLevel
    timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class StreamId(FrameInfo):
    """Which of several streams of one vbucket a message belongs to."""

    id: int


@dataclass(frozen=True, slots=True)
class Impersonate(FrameInfo):
    """The user on whose behalf the request is executed."""

    user: bytes


@dataclass(frozen=True, slots=True)
class PreserveTtl(FrameInfo):
    """Keep the document's expiry instead of the one given."""


@dataclass(frozen=True, slots=True)
class ExtraPrivilege(FrameInfo):
    """An additional privilege of the impersonated user for this request."""

    name: bytes


@dataclass(frozen=True, slots=True)
class TokenId(FrameInfo):
    """The registered token on whose owner's behalf the request is executed."""

    id: int


@dataclass(frozen=True, slots=True)
class ServerDuration(FrameInfo):
    """The server's processing time, as (microseconds * 2) ** (1 / 1.74)."""

    encoded: int


@dataclass(frozen=True, slots=True)
class ReadUnits(FrameInfo):
    units: int


@dataclass(frozen=True, slots=True)
class WriteUnits(FrameInfo):
    units: int


@dataclass(frozen=True, slots=True)
class ThrottleDuration(FrameInfo):
    """The time for which the request was throttled, encoded as `ServerDuration`."""

    encoded: int


@dataclass(frozen=True, slots=True)
class UnknownFrameInfo(FrameInfo):
    """An unknown frame info; a server answers it with UNKNOWN_FRAME_INFO."""

    id: int
    data: bytes


def _load_empty(kind: type[FrameInfo]) -> Callable[[bytes, int], FrameInfo]:
    def load(data: bytes, offset: int) -> FrameInfo:
        if data:
            raise FrameInfoError(offset, f"{kind.__name__} carries no data, not {len(data)} bytes")
        return kind()

    return load


def _load_u16(kind: Callable[[int], FrameInfo]) -> Callable[[bytes, int], FrameInfo]:
    def load(data: bytes, offset: int) -> FrameInfo:
        if len(data) != 2:
            raise FrameInfoError(offset, f"this frame info carries 2 bytes, not {len(data)}")
        return kind(_U16.unpack(data)[0])

    return load


def _load_bytes(kind: Callable[[bytes], FrameInfo]) -> Callable[[bytes, int], FrameInfo]:
    def load(data: bytes, offset: int) -> FrameInfo:
        if not data:
            raise FrameInfoError(offset, "this frame info must not be empty")
        return kind(data)

    return load


def _load_durability(data: bytes, offset: int) -> FrameInfo:
    if len(data) not in (1, 3):
        raise FrameInfoError(offset, f"durability carries 1 or 3 bytes, not {len(data)}")
    try:
        level = DURABILITY_LEVELS.load(data[0])
    except ValueError as problem:
        raise FrameInfoError(offset, str(problem), Status.DURABILITY_INVALID_LEVEL) from None
    if len(data) == 1:
        return Durability(level)
    timeout = _U16.unpack_from(data, 1)[0]
    if timeout in (0, 0xFFFF):
        raise FrameInfoError(offset + 1, f"a durability timeout of {timeout:#x} is reserved")
    return Durability(level, timeout)


def _dump_durability(info: FrameInfo) -> bytes:
    assert isinstance(info, Durability)
    number = DURABILITY_LEVELS.dump(info.level)
    if info.timeout_ms is None:
        return bytes([number])
    if not 0 < info.timeout_ms < 0xFFFF:
        raise ValueError("a durability timeout is 1 to 65534 ms")
    return bytes([number]) + _U16.pack(info.timeout_ms)


@dataclass(frozen=True, slots=True)
class _Entry:
    id: int
    kind: type[FrameInfo]
    load: Callable[[bytes, int], FrameInfo]
    dump: Callable[[FrameInfo], bytes]


def _empty(id_: int, kind: type[FrameInfo]) -> _Entry:
    return _Entry(id_, kind, _load_empty(kind), lambda info: b"")


def _u16(id_: int, kind: type[FrameInfo], attribute: str) -> _Entry:
    return _Entry(
        id_,
        kind,
        _load_u16(kind),
        lambda info: _U16.pack(getattr(info, attribute)),
    )


def _blob(id_: int, kind: type[FrameInfo], attribute: str) -> _Entry:
    return _Entry(id_, kind, _load_bytes(kind), lambda info: bytes(getattr(info, attribute)))


_REQUEST = (
    _empty(0, Barrier),
    _Entry(1, Durability, _load_durability, _dump_durability),
    _u16(2, StreamId, "id"),
    _blob(4, Impersonate, "user"),
    _empty(5, PreserveTtl),
    _blob(6, ExtraPrivilege, "name"),
    _u16(7, TokenId, "id"),
)
_RESPONSE = (
    _u16(0, ServerDuration, "encoded"),
    _u16(1, ReadUnits, "units"),
    _u16(2, WriteUnits, "units"),
    _u16(3, ThrottleDuration, "encoded"),
)
_BY_ID = {
    False: {entry.id: entry for entry in _REQUEST},
    True: {entry.id: entry for entry in _RESPONSE},
}
_BY_KIND = {
    False: {entry.kind: entry for entry in _REQUEST},
    True: {entry.kind: entry for entry in _RESPONSE},
}

_MAX_ESCAPED = 15 + 0xFF


def decode_frame_infos(data: bytes, *, response: bool) -> tuple[FrameInfo, ...]:
    """All frame infos of a packet, in order; `FrameInfoError` with an offset into ``data``."""
    infos: list[FrameInfo] = []
    at = 0
    while at < len(data):
        start = at
        id_, length = data[at] >> 4, data[at] & 0x0F
        at += 1
        for half in ("id", "length"):
            if (id_ if half == "id" else length) == 15:
                if at >= len(data):
                    raise FrameInfoError(start, f"the escaped {half} is cut off")
                if half == "id":
                    id_ = 15 + data[at]
                else:
                    length = 15 + data[at]
                at += 1
        if at + length > len(data):
            raise FrameInfoError(start, f"says {length} bytes of data, {len(data) - at} are left")
        content = data[at : at + length]
        entry = _BY_ID[response].get(id_)
        infos.append(entry.load(content, at) if entry else UnknownFrameInfo(id_, content))
        at += length
    return tuple(infos)


def encode_frame_infos(infos: tuple[FrameInfo, ...], *, response: bool) -> bytes:
    """The framing extras for a packet; ValueError names what cannot be carried."""
    out = bytearray()
    for info in infos:
        if isinstance(info, UnknownFrameInfo):
            id_, content = info.id, info.data
        else:
            entry = _BY_KIND[response].get(type(info))
            if entry is None:
                side = "response" if response else "request"
                raise ValueError(f"{type(info).__name__} is no frame info of a {side}")
            try:
                id_, content = entry.id, entry.dump(info)
            except struct.error:
                raise ValueError(f"{info} does not fit 16 bits") from None
        if not 0 <= id_ <= _MAX_ESCAPED or len(content) > _MAX_ESCAPED:
            raise ValueError(f"frame info {id_} of {len(content)} bytes is too large")
        out.append(min(id_, 15) << 4 | min(len(content), 15))
        if id_ >= 15:
            out.append(id_ - 15)
        if len(content) >= 15:
            out.append(len(content) - 15)
        out += content
    if len(out) > 0xFF:
        raise ValueError(f"framing extras are at most 255 bytes, not {len(out)}")
    return bytes(out)
