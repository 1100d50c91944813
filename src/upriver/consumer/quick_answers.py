"""The two answers that come by the million where documents are compared: a document, its metadata.

It takes their packets straight to what the dialect would make of them, where nothing about them is
out of the ordinary. Everything else is left to the dialect, which this module must always agree
with.
"""

from __future__ import annotations

import struct
from typing import Final

from ..model import Datatype
from ..wire import kv
from ..wire.header import HEADER_SIZE, RESPONSE, parse_header
from ..wire.names import Command
from .edits import Form

__all__ = ["quick_answer"]

#: The status of success, in every dialect.
_SUCCESS: Final = 0
_FLAGS = struct.Struct(
    ">I"  # flags
)
_META = struct.Struct(
    ">"
    "I"  # whether it is deleted
    "I"  # flags
    "I"  # expiry
    "Q"  # revision
)
#: Making one anew costs more than all else that is done with it.
_DATATYPES: Final = (Datatype.RAW, Datatype.JSON)
_VALUE_AT: Final = HEADER_SIZE + _FLAGS.size


def quick_answer(packet: bytes) -> kv.DocumentResponse | kv.MetaResponse | None:
    """The answer to a quiet read that found something; None if the packet is anything else."""
    magic, opcode, _, in_key, in_extras, datatype, status, body, opaque, cas = parse_header(packet)
    if magic != RESPONSE or status != _SUCCESS or in_key or datatype >= len(_DATATYPES):
        return None
    if opcode == Form.GET.opcode and in_extras == _FLAGS.size:
        (flags,) = _FLAGS.unpack_from(packet, HEADER_SIZE)
        return kv.DocumentResponse(
            command=Command.GETQ,
            opaque=opaque,
            value=packet[_VALUE_AT:],
            flags=flags,
            cas=cas,
            datatype=_DATATYPES[datatype],
        )
    if opcode == Form.META.opcode and in_extras == body == _META.size and not datatype:
        deleted, flags, expiry, rev = _META.unpack_from(packet, HEADER_SIZE)
        if deleted not in (0, 1):
            return None
        return kv.MetaResponse(
            command=Command.GETQ_META,
            opaque=opaque,
            deleted=bool(deleted),
            flags=flags,
            expiry=expiry,
            rev=rev,
            cas=cas,
        )
    return None
