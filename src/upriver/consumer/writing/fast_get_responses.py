"""Fast decoding of the responses to quiet reads: a document, its metadata.

It decodes ordinary packets of these kinds directly. For every other packet it returns None, and the
caller decodes it with the dialect. The results must always equal those of the dialect.
"""

from __future__ import annotations

import struct
from typing import Final

from ...model import Datatype
from ...wire import kv_messages as kv
from ...wire.header import HEADER_SIZE, RESPONSE, parse_header
from ...wire.protocol_enums import Command
from .write_operations import Form

#: The success status in every dialect.
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
#: The datatypes by number: constructing a `Datatype` costs more than the rest of the decoding.
_DATATYPES: Final = (Datatype.RAW, Datatype.JSON)
_VALUE_AT: Final = HEADER_SIZE + _FLAGS.size


def quick_answer(packet: bytes) -> kv.DocumentResponse | kv.MetaResponse | None:
    """Decodes the response to a quiet read that found a document; None for other packets."""
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
