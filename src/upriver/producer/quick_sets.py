"""The one request that comes by the million: a plain set, quiet or not.

It takes the packet straight to the store's change and writes the answer by hand, where nothing
about either is out of the ordinary. Everything else, and everything that goes wrong, is left to
the key-value front end, which this module must always agree with.
"""

from __future__ import annotations

import struct
from typing import Final

from ..store import Applied, Set
from ..wire.header import REQUEST, RESPONSE
from ..wire.limits import MAX_KEY, MAX_PREFIXED_KEY
from .keyvalue.bodies import is_json

__all__ = ["plain_set", "set_answer"]

_SET: Final = 0x01
_SETQ: Final = 0x11
_EXTRAS: Final = 8
_REQUEST = struct.Struct(
    ">"
    "B"  # magic
    "B"  # opcode
    "H"  # key length
    "B"  # extras length
    "B"  # datatype
    "H"  # vbucket
    "4x"  # total body length
    "4x"  # opaque
    "Q"  # cas
    "I"  # flags
    "I"  # expiry
)
_ANSWER = struct.Struct(
    ">"
    "B"  # magic
    "B"  # opcode
    "2x"  # key length
    "B"  # extras length
    "3x"  # datatype and status
    "I"  # total body length
    "4s"  # opaque
    "Q"  # cas
)
_TOKEN = struct.Struct(
    ">"
    "Q"  # vbuuid
    "Q"  # seqno
)
#: Documents that are cheap to look at; larger ones are not what this is for.
_MAX_VALUE: Final = 16 * 1024


def plain_set(packet: bytes, *, collections: bool) -> Set | None:
    """The change for a plain set; None if the packet is anything else."""
    if len(packet) <= _REQUEST.size:
        return None
    magic, opcode, kl, el, datatype, vbucket, cas, flags, expiry = _REQUEST.unpack_from(packet)
    if magic != REQUEST or opcode not in (_SET, _SETQ) or el != _EXTRAS or datatype > 1 or cas:
        return None
    value_at = _REQUEST.size + kl
    least, most = (2, MAX_PREFIXED_KEY) if collections else (1, MAX_KEY)
    if not least <= kl <= most or not 0 <= len(packet) - value_at <= _MAX_VALUE:
        return None
    key = packet[_REQUEST.size : value_at]
    if not collections:
        key = b"\0" + key
    elif key[0]:  # another collection than the default one
        return None
    value = packet[value_at:]
    return Set(vbucket, key, value, flags, expiry, 1 if is_json(value) else 0)


def set_answer(packet: bytes, done: Applied, vbuuid: int | None) -> bytes:
    """The answer to a plain set that was made; nothing if it was quiet."""
    if packet[1] == _SETQ:
        return b""
    token = b"" if vbuuid is None else _TOKEN.pack(vbuuid, done.seqno)
    head = _ANSWER.pack(RESPONSE, _SET, len(token), len(token), packet[12:16], done.cas)
    return head + token
