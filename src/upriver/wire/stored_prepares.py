"""The stored form of durable writes that are under way: prepares, and the aborts of those given up.

A stored prepare is a DCP Prepare with opaque 0. A deleting one has its delete time where a mutation
has its expiry. A stored abort is a DCP Abort with opaque 0 but for two things: its own seqno comes
before the prepare's, as in every stored frame, and its CAS is the prepare's, or the time of the
abort where the prepare was never here. A commit is not stored: it is the mutation or deletion that
the prepare has become.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from . import canonical
from .dialects.dcp import Dcp
from .header import HEADER_SIZE, REQUEST, STORED_HEADER
from .protocol_enums import Command

_PREPARE_OPCODE: Final = Dcp.table.opcodes[Command.PREPARE]
_ABORT_OPCODE: Final = Dcp.table.opcodes[Command.ABORT]
_HIDDEN: Final = frozenset({_PREPARE_OPCODE, _ABORT_OPCODE})

_LEVELS: Final = frozenset({1, 2, 3})

_PREPARE = struct.Struct(
    ">" + STORED_HEADER + "Q"  # by seqno
    "Q"  # rev seqno
    "I"  # flags
    "I"  # expiration, or delete time
    "4x"  # lock time
    "x"  # nru
    "?"  # deleted
    "B"  # durability level
)
_ABORT = struct.Struct(
    ">" + STORED_HEADER + "Q"  # abort seqno
    "Q"  # prepared seqno
)


class StoredPrepare(NamedTuple):
    """What a stored prepare says; ``key`` begins with its collection id."""

    vbucket: int
    seqno: int
    rev: int
    cas: int
    flags: int
    #: The expiry, or the delete time of a deletion.
    time: int
    datatype: int
    key: bytes
    value: bytes
    deleted: bool
    level: int


class StoredAbort(NamedTuple):
    """What a stored abort says; ``key`` begins with its collection id."""

    vbucket: int
    seqno: int
    prepared_seqno: int
    cas: int
    key: bytes


def is_prepare(frame: bytes) -> bool:
    return frame[1] == _PREPARE_OPCODE


def is_abort(frame: bytes) -> bool:
    return frame[1] == _ABORT_OPCODE


def is_hidden(frame: bytes) -> bool:
    """Whether a stored frame is for replicas only: a prepare or an abort."""
    return frame[1] in _HIDDEN


def is_valid_prepare(frame: bytes) -> bool:
    """Whether a packet with the opcode of a prepare has what a stored one must have."""
    extras = _PREPARE.size - HEADER_SIZE
    if len(frame) <= _PREPARE.size or frame[4] != extras:
        return False
    one = parse_prepare(frame)
    return one.cas != 0 and len(one.key) > 1 and one.level in _LEVELS


def prepare(change: StoredPrepare) -> bytes:
    """The stored frame of a prepare."""
    vbucket, seqno, rev, cas, flags, time, datatype, key, value, deleted, level = change
    extras = _PREPARE.size - HEADER_SIZE
    head = _PREPARE.pack(
        REQUEST,
        _PREPARE_OPCODE,
        len(key),
        extras,
        datatype,
        vbucket,
        extras + len(key) + len(value),
        cas,
        seqno,
        rev,
        flags,
        time,
        deleted,
        level,
    )
    return head + key + value


def parse_prepare(frame: bytes) -> StoredPrepare:
    """Reads back what `prepare` packed; it trusts it."""
    _, _, size, _, datatype, vbucket, _, cas, seqno, rev, flags, time, deleted, level = (
        _PREPARE.unpack_from(frame)
    )
    value_at = _PREPARE.size + size
    key, value = frame[_PREPARE.size : value_at], frame[value_at:]
    return StoredPrepare(
        vbucket, seqno, rev, cas, flags, time, datatype, key, value, deleted, level
    )


def abort(vbucket: int, seqno: int, prepared_seqno: int, cas: int, key: bytes) -> bytes:
    """The stored frame of an abort."""
    extras = _ABORT.size - HEADER_SIZE
    head = _ABORT.pack(
        REQUEST,
        _ABORT_OPCODE,
        len(key),
        extras,
        0,
        vbucket,
        extras + len(key),
        cas,
        seqno,
        prepared_seqno,
    )
    return head + key


def parse_abort(frame: bytes) -> StoredAbort:
    """Reads back what `abort` packed; it trusts it."""
    _, _, _, _, _, vbucket, _, cas, seqno, prepared_seqno = _ABORT.unpack_from(frame)
    return StoredAbort(vbucket, seqno, prepared_seqno, cas, frame[_ABORT.size :])


def committed(frame: bytes, seqno: int) -> bytes:
    """The stored mutation or deletion that a stored prepare becomes when it commits."""
    one = parse_prepare(frame)
    if one.deleted:
        return canonical.deletion(
            one.vbucket, seqno, one.rev, one.cas, one.time, one.datatype, one.key, one.value
        )
    return canonical.mutation(
        one.vbucket, seqno, one.rev, one.cas, one.flags, one.time, one.datatype, one.key, one.value
    )
