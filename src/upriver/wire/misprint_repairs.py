"""Lenient decoding of single packets, which accepts and reports the drafts' misprints.

On a connection a packet with a wrong length cannot be accepted, because the next one is not found.
The real length of a single packet from a document or a capture is known. Each repair below handles
one kind of mistake in the drafts; nothing else is accepted.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..errors import DecodeError, EncodeError, Status
from .dialects import Dcp, Dialect, Draft000, Draft001, Draft002
from .dialects.draft002 import HEADER, OPCODE_NAMES
from .dialects.memcached_base import MemcachedDialect
from .framing import HEADER_002_SIZE
from .header import HEADER_SIZE, MAGICS, REQUEST, Header, pack_header, parse_header
from .messages import BareHeader, Message, PlainResponse, Response, UnknownCommand
from .protocol_enums import Command


@dataclass(frozen=True, slots=True)
class LenientReading:
    """The message of a packet in one dialect, and the mistakes that were repaired to decode it."""

    dialect: Dialect
    message: Message
    #: The mistakes in the packet, in the order of their repair.
    problems: tuple[str, ...]
    #: The corrected packet.
    repaired: bytes

    @property
    def exact(self) -> bool:
        return not self.problems


def read_as(packet: bytes, dialect: Dialect) -> LenientReading:
    """Decodes a packet in one dialect; `DecodeError` if it is not repaired by a known mistake."""
    if isinstance(dialect, Draft002):
        return _read_002(packet, dialect)
    assert isinstance(dialect, MemcachedDialect)
    return _read_memcached(packet, dialect)


def readings(packet: bytes, *, collections: bool = False) -> list[LenientReading]:
    """All dialects in which a packet can be decoded, most likely first; `DecodeError` if none.

    Readings without mistakes come before repaired ones, known commands before unknown ones, and
    newer drafts before older ones.
    """
    dialects: Iterable[Dialect]
    if packet[:1] and packet[0] in OPCODE_NAMES:
        dialects = [Draft002()]
    else:
        dialects = [Dcp(collections=collections), Draft001(), Draft000()]
    found: list[LenientReading] = []
    refusal: DecodeError | None = None
    for dialect in dialects:
        try:
            found.append(read_as(packet, dialect))
        except DecodeError as error:
            refusal = refusal or error
    if not found and refusal is not None:
        raise refusal
    return sorted(found, key=_doubt)


def _doubt(reading: LenientReading) -> tuple[bool, bool, int, bool]:
    message = reading.message
    unknown = isinstance(message, UnknownCommand) or (
        isinstance(message, Response) and not isinstance(message.command, Command)
    )
    unexplained = isinstance(message, PlainResponse) and bool(message.extras or message.value)
    return unknown, isinstance(message, BareHeader), len(reading.problems), unexplained


# ---- draft 002 ---------------------------------------------------------------------------


def _read_002(packet: bytes, dialect: Draft002) -> LenientReading:
    problems: list[str] = []
    if len(packet) >= HEADER_002_SIZE and packet[0] in OPCODE_NAMES:
        opcode, opaque, length = HEADER.unpack_from(packet)
        actual = len(packet) - HEADER_002_SIZE
        if length != actual:
            problems.append(f"the length (byte 8) is {length}, but {actual} bytes follow")
            packet = HEADER.pack(opcode, opaque, actual) + packet[HEADER_002_SIZE:]
        if not actual:
            problems.append("a header without a body: an illustration, not a message")
            bare = BareHeader(command=Command.STREAM_REQUEST, opaque=opaque)
            return LenientReading(dialect, bare, tuple(problems), packet)
        if opcode == 1 and packet[HEADER_002_SIZE:] == b"\x02":
            problems.append("the request has no vbucket: read as 0")
            message = dialect.decode(packet)
            return LenientReading(dialect, message, tuple(problems), dialect.encode(message))
    return _compared(dialect, dialect.decode(packet), problems, packet)


# ---- drafts with the memcached header ----------------------------------------------------

_Repair = Callable[[MemcachedDialect, Header, bytes], tuple[str, bytes] | None]


def _read_memcached(packet: bytes, dialect: MemcachedDialect) -> LenientReading:
    problems: list[str] = []
    for repair in _REPAIRS:
        if len(packet) < HEADER_SIZE or packet[0] not in MAGICS:
            break
        change = repair(dialect, parse_header(packet), packet)
        if change is not None:
            problems.append(change[0])
            packet = change[1]
    try:
        message: Message = dialect.decode(packet)
    except DecodeError:
        bare = _bare_header(dialect, packet)
        if bare is None:
            raise
        problems.append("a header without a body: an illustration, not a message")
        return LenientReading(dialect, bare, tuple(problems), packet)
    return _compared(dialect, message, problems, packet)


def _bare_header(dialect: MemcachedDialect, packet: bytes) -> BareHeader | None:
    if len(packet) != HEADER_SIZE or packet[0] != REQUEST:
        return None
    header = parse_header(packet)
    command = dialect.table.commands.get((False, header.opcode))
    if command is None or header.key_length or header.extras_length:
        return None
    return BareHeader(command=command, opaque=header.opaque, vbucket=header.vbucket)


def _compared(
    dialect: Dialect, message: Message, problems: list[str], packet: bytes
) -> LenientReading:
    """Compares a packet with its correct encoding and reports the differences."""
    try:
        repaired = dialect.encode(message)
    except EncodeError:
        return LenientReading(dialect, message, tuple(problems), packet)
    if repaired != packet:
        if len(repaired) == len(packet):
            bytes_ = [str(i) for i in range(len(packet)) if packet[i] != repaired[i]]
            problems.append(f"not as it should be sent: byte {', '.join(bytes_)}")
        else:
            problems.append(
                f"not as it should be sent: {len(packet)} bytes in place of {len(repaired)}"
            )
    return LenientReading(dialect, message, tuple(problems), repaired)


def _leftover_type(
    dialect: MemcachedDialect, header: Header, packet: bytes
) -> tuple[str, bytes] | None:
    """Draft 000 prints draft 002's request type in the datatype byte."""
    if dialect.has_datatypes or not header.datatype:
        return None
    problem = f"byte 5 is {header.datatype:#04x}, a leftover of draft 002: must be 0"
    return problem, _with(packet, header._replace(datatype=0))


def _cas_counted_twice(
    dialect: MemcachedDialect, header: Header, packet: bytes
) -> tuple[str, bytes] | None:
    """Draft 000 prints 36 bytes of extras for 28 in its data messages."""
    missing = HEADER_SIZE + header.body_length - len(packet)
    if not isinstance(dialect, Draft000) or header.extras_length != 36 or missing != 8:
        return None
    problem = "the extras length (byte 4) and total body (byte 8) count the CAS twice: 8 too many"
    fixed = header._replace(extras_length=28, body_length=header.body_length - 8)
    return problem, _with(packet, fixed)


def _missing_snapshot_end(
    dialect: MemcachedDialect, header: Header, packet: bytes
) -> tuple[str, bytes] | None:
    """Draft 004 prints a stream request without its last field."""
    missing = HEADER_SIZE + header.body_length - len(packet)
    command = dialect.table.commands.get((False, header.opcode))
    if header.is_response or command is not Command.STREAM_REQUEST or missing != 8:
        return None
    return "the last 8 bytes are missing: read as 0", packet + bytes(8)


def _wrong_total(
    dialect: MemcachedDialect, header: Header, packet: bytes
) -> tuple[str, bytes] | None:
    actual = len(packet) - HEADER_SIZE
    if header.body_length == actual:
        return None
    problem = f"the total body (byte 8) is {header.body_length}, but {actual} bytes follow"
    return problem, _with(packet, header._replace(body_length=actual))


def _response_magic(
    dialect: MemcachedDialect, header: Header, packet: bytes
) -> tuple[str, bytes] | None:
    """Draft 000 prints Set VBucket State, a command, with the magic of a response."""
    command = dialect.table.commands.get((False, header.opcode))
    if (
        not isinstance(dialect, Draft000)
        or not header.is_response
        or command is not Command.SET_STREAM_STATE
    ):
        return None
    problem = "the magic (byte 0) is a response's, but this is a command"
    return problem, _with(packet, header._replace(magic=REQUEST))


def _forgotten_extras(
    dialect: MemcachedDialect, header: Header, packet: bytes
) -> tuple[str, bytes] | None:
    """Draft 000 prints extras that the extras length does not count."""
    body = len(packet) - HEADER_SIZE
    if header.is_response or header.extras_length or header.key_length or not body:
        return None
    layouts = dialect.table.requests.get((False, header.opcode), [])
    if any(layout.extras.size == 0 for layout in layouts):
        return None
    if not any(layout.extras.size == body and layout.value is None for layout in layouts):
        return None
    problem = f"the extras length (byte 4) is 0, but {body} bytes of extras follow"
    return problem, _with(packet, header._replace(extras_length=body))


def _wrong_refusal(
    dialect: MemcachedDialect, header: Header, packet: bytes
) -> tuple[str, bytes] | None:
    """Draft 000 prints status 1 for "not my vbucket", which its own list says is 7."""
    command = dialect.table.commands.get((False, header.opcode))
    if not header.is_response or not isinstance(command, Command):
        return None
    alias = dialect.table.status_aliases.get((command, header.vbucket))
    if alias is None:
        return None
    right = dialect.table.status_numbers[alias]
    problem = f"the status (byte 6) is {header.vbucket:#06x}: {alias.name} is {right:#06x}"
    return problem, _with(packet, header._replace(vbucket=right))


def _rollback_in_extras(
    dialect: MemcachedDialect, header: Header, packet: bytes
) -> tuple[str, bytes] | None:
    """Draft 001 prints the rollback seqno as extras, which its text forbids."""
    command = dialect.table.commands.get((False, header.opcode))
    rollback = dialect.table.status_numbers[Status.ROLLBACK]
    if (
        not header.is_response
        or command is not Command.STREAM_REQUEST
        or header.vbucket != rollback
        or header.extras_length != 8
    ):
        return None
    problem = "the extras length (byte 4) is 8: a rollback's seqno is the value, without extras"
    return problem, _with(packet, header._replace(extras_length=0))


def _with(packet: bytes, header: Header) -> bytes:
    try:
        return pack_header(header) + packet[HEADER_SIZE:]
    except struct.error:
        return packet


_REPAIRS: tuple[_Repair, ...] = (
    _response_magic,
    _leftover_type,
    _cas_counted_twice,
    _missing_snapshot_end,
    _wrong_total,
    _forgotten_extras,
    _wrong_refusal,
    _rollback_in_extras,
)
