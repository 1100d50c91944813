"""The storage format of changes: DCP packets with opaque 0 (canonical frames).

Deletions and expirations include their time, and keys their collection id, so a stored frame has
everything that any stream needs. A stream with all features sends the stored bytes with its opaque
written over bytes 12 to 15; any other stream re-encodes them.

The functions here pack the three data messages with one struct each, because they run once for
every write; `Dcp(collections=True)` decodes and encodes the same bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from ..model import Op
from . import leb128
from .dialects.dcp import Dcp
from .framing import packet_length
from .header import HEADER_SIZE, REQUEST, STORED_HEADER
from .protocol_enums import Command

__all__ = [
    "NRU",
    "OPAQUE_AT",
    "STORED_COMMANDS",
    "STORED_OPCODES",
    "CanonicalChange",
    "deletion",
    "expiration",
    "frames_in",
    "is_event",
    "key_of",
    "mutation",
    "parse",
    "seqno_of",
]

#: The offset of the opaque, which a stream overwrites.
OPAQUE_AT: Final = 12

#: The messages that are stored.
STORED_COMMANDS: Final = (
    Command.MUTATION,
    Command.DELETION,
    Command.EXPIRATION,
    Command.SYSTEM_EVENT,
)
_OPCODES: Final = Dcp.table.opcodes
STORED_OPCODES: Final = frozenset(_OPCODES[command] for command in STORED_COMMANDS)

#: What real servers say of a document that was just written.
NRU: Final = 2
_SEQNOS = (
    "Q"  # by seqno
    "Q"  # rev seqno
)
_MUTATION = struct.Struct(
    ">" + STORED_HEADER + _SEQNOS + "I"  # flags
    "I"  # expiration
    "4x"  # lock time
    "2x"  # extended metadata length
    "B"  # nru
)
_DELETION = struct.Struct(
    ">" + STORED_HEADER + _SEQNOS + "I"  # delete time
    "x"  # unused
)
_EXPIRATION = struct.Struct(
    ">" + STORED_HEADER + _SEQNOS + "I"  # delete time
)
_SEQNO = struct.Struct(">Q")
_pack_mutation = _MUTATION.pack
_MUTATION_OPCODE: Final = _OPCODES[Command.MUTATION]
_DELETION_OPCODE: Final = _OPCODES[Command.DELETION]
_EXPIRATION_OPCODE: Final = _OPCODES[Command.EXPIRATION]
_EVENT_OPCODE: Final = _OPCODES[Command.SYSTEM_EVENT]
_MUTATION_EXTRAS: Final = _MUTATION.size - HEADER_SIZE


class CanonicalChange(NamedTuple):
    """A decoded stored frame. ``time`` is a mutation's expiry, or the time of a deletion."""

    op: Op
    vbucket: int
    seqno: int
    rev: int
    cas: int
    flags: int
    time: int
    datatype: int
    collection: int
    key: bytes
    value: bytes


def mutation(
    vbucket: int,
    seqno: int,
    rev: int,
    cas: int,
    flags: int,
    expiry: int,
    datatype: int,
    key: bytes,
    value: bytes,
) -> bytes:
    """The stored frame of a mutation; ``key`` begins with its collection id."""
    key_length = len(key)
    body = _MUTATION_EXTRAS + key_length + len(value)
    head = _pack_mutation(
        REQUEST,
        _MUTATION_OPCODE,
        key_length,
        _MUTATION_EXTRAS,
        datatype,
        vbucket,
        body,
        cas,
        seqno,
        rev,
        flags,
        expiry,
        NRU,
    )
    return b"".join((head, key, value))


def deletion(
    vbucket: int,
    seqno: int,
    rev: int,
    cas: int,
    delete_time: int,
    datatype: int,
    key: bytes,
    value: bytes = b"",
) -> bytes:
    """The frame of a deletion; ``key`` begins with its collection id, ``value`` has xattrs."""
    return _removal(
        _DELETION, _DELETION_OPCODE, vbucket, seqno, rev, cas, delete_time, datatype, key, value
    )


def expiration(
    vbucket: int,
    seqno: int,
    rev: int,
    cas: int,
    delete_time: int,
    datatype: int,
    key: bytes,
    value: bytes = b"",
) -> bytes:
    """The stored frame of an expiration, as `deletion`."""
    return _removal(
        _EXPIRATION, _EXPIRATION_OPCODE, vbucket, seqno, rev, cas, delete_time, datatype, key, value
    )


def _removal(
    form: struct.Struct,
    opcode: int,
    vbucket: int,
    seqno: int,
    rev: int,
    cas: int,
    delete_time: int,
    datatype: int,
    key: bytes,
    value: bytes,
) -> bytes:
    extras = form.size - HEADER_SIZE
    body = extras + len(key) + len(value)
    head = form.pack(
        REQUEST, opcode, len(key), extras, datatype, vbucket, body, cas, seqno, rev, delete_time
    )
    return head + key + value


def frames_in(frames: bytes) -> Iterator[bytes]:
    """Stored frames that were joined, one by one."""
    at = 0
    while at < len(frames):
        end = at + (packet_length(frames, at) or len(frames))
        yield frames[at:end]
        at = end


def seqno_of(frame: bytes) -> int:
    """The seqno of any stored frame, or of the first one: the first field of the extras."""
    seqno: int = _SEQNO.unpack_from(frame, HEADER_SIZE)[0]
    return seqno


def is_event(frame: bytes) -> bool:
    """Whether a stored frame is a system event rather than a change of a document."""
    return frame[1] == _EVENT_OPCODE


def key_of(frame: bytes) -> bytes:
    """The key of a stored document's frame, with its collection id."""
    at = HEADER_SIZE + frame[4]
    return frame[at : at + int.from_bytes(frame[2:4])]


def parse(frame: bytes) -> CanonicalChange:
    """Unpacks a stored frame. It does not validate: use a dialect for bytes from a peer."""
    opcode = frame[1]
    if opcode == _MUTATION_OPCODE:
        _, _, kl, _, datatype, vbucket, _, cas, seqno, rev, flags, time, _ = _MUTATION.unpack_from(
            frame
        )
        op, at = Op.MUTATION, _MUTATION.size
    else:
        form = _DELETION if opcode == _DELETION_OPCODE else _EXPIRATION
        _, _, kl, _, datatype, vbucket, _, cas, seqno, rev, time = form.unpack_from(frame)
        op = Op.DELETION if opcode == _DELETION_OPCODE else Op.EXPIRATION
        flags, at = 0, form.size
    collection, size = leb128.decode(frame[at : at + kl])
    return CanonicalChange(
        op,
        vbucket,
        seqno,
        rev,
        cas,
        flags,
        time,
        datatype,
        collection,
        frame[at + size : at + kl],
        frame[at + kl :],
    )
