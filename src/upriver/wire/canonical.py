"""The one form in which a change is stored: a DCP packet with opaque 0.

Deletions and expirations carry their time, and keys their collection id, so nothing that any
stream may need is left out. A stream that wants exactly this sends the stored bytes with its
opaque written over bytes 12 to 15; any other decodes and encodes again.

The functions here pack the three data messages with one struct each, because they run once for
every write; `Dcp(collections=True)` reads and writes the same bytes.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from ..model import Op
from . import leb128
from .header import HEADER_SIZE, REQUEST

__all__ = ["OPAQUE_AT", "CanonicalChange", "deletion", "expiration", "mutation", "parse"]

#: Where a stream writes its opaque.
OPAQUE_AT: Final = 12

_HEADER = (
    "B"  # magic
    "B"  # opcode
    "H"  # key length
    "B"  # extras length
    "B"  # datatype
    "H"  # vbucket
    "I"  # total body length
    "4x"  # opaque
    "Q"  # cas
)
_SEQNOS = (
    "Q"  # by seqno
    "Q"  # rev seqno
)
_MUTATION = struct.Struct(
    ">" + _HEADER + _SEQNOS + "I"  # flags
    "I"  # expiration
    "4x"  # lock time
    "2x"  # extended metadata length
    "x"  # nru
)
_DELETION = struct.Struct(
    ">" + _HEADER + _SEQNOS + "I"  # delete time
    "x"  # unused
)
_EXPIRATION = struct.Struct(
    ">" + _HEADER + _SEQNOS + "I"  # delete time
)
_pack_mutation = _MUTATION.pack
_MUTATION_OPCODE: Final = 0x57
_DELETION_OPCODE: Final = 0x58
_EXPIRATION_OPCODE: Final = 0x59
_MUTATION_EXTRAS: Final = _MUTATION.size - HEADER_SIZE


class CanonicalChange(NamedTuple):
    """What a stored packet says. ``time`` is a mutation's expiry, a deletion's own time."""

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
    """A stored mutation; ``key`` begins with its collection id."""
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
    """A stored deletion; ``key`` begins with its collection id, ``value`` holds only xattrs."""
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
    """A stored expiration, as `deletion`."""
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


def parse(frame: bytes) -> CanonicalChange:
    """Reads back what the functions here packed. It trusts them: use a dialect for peers' bytes."""
    opcode = frame[1]
    if opcode == _MUTATION_OPCODE:
        _, _, kl, _, datatype, vbucket, _, cas, seqno, rev, flags, time = _MUTATION.unpack_from(
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
