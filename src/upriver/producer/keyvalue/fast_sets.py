"""Fast path of the most frequent request: a plain SET, quiet or not.

It turns the packet directly into a change of the store and packs the response by hand. It handles
only requests without special features. All other requests, and all errors, go to the key-value
dispatcher. Both must always give the same result.
"""

from __future__ import annotations

import struct
from typing import Final

from ...store import Applied, SetDocument
from ...wire import kv_messages as kv
from ...wire.dialects import Dcp
from ...wire.header import REQUEST, RESPONSE
from ...wire.json_check import is_json
from ...wire.limits import MAX_KEY, MAX_PREFIXED_KEY
from ...wire.protocol_enums import Command
from .handler_results import MUTATION_TOKEN

_SET: Final = Dcp.table.opcodes[Command.SET]
_SETQ: Final = Dcp.table.opcodes[Command.SETQ]
_EXTRAS: Final = Dcp.table.of_message[kv.Set][0].extras.size
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
#: Larger values are left to the dispatcher: checking them takes too long for this path.
_MAX_VALUE: Final = 16 * 1024


def plain_set(packet: bytes, *, collections: bool, json: bool) -> SetDocument | None:
    """Returns the change for a plain SET, or None if the packet is anything else.

    ``collections`` and ``json`` are whether the client has negotiated these features.
    """
    if len(packet) <= _REQUEST.size:
        return None
    magic, opcode, kl, el, datatype, vbucket, cas, flags, expiry = _REQUEST.unpack_from(packet)
    if magic != REQUEST or opcode not in (_SET, _SETQ) or el != _EXTRAS or datatype > json or cas:
        return None
    value_at = _REQUEST.size + kl
    least, most = (2, MAX_PREFIXED_KEY) if collections else (1, MAX_KEY)
    if not least <= kl <= most or not 0 <= len(packet) - value_at <= _MAX_VALUE:
        return None
    key = packet[_REQUEST.size : value_at]
    if not collections:
        key = b"\0" + key
    elif key[0]:  # a collection other than the default one
        return None
    value = packet[value_at:]
    return SetDocument(vbucket, key, value, flags, expiry, 1 if is_json(value) else 0)


def set_answer(packet: bytes, done: Applied, vbuuid: int | None) -> bytes:
    """Returns the response to a plain SET that was stored. Empty if the SET was quiet."""
    if packet[1] == _SETQ:
        return b""
    token = b"" if vbuuid is None else MUTATION_TOKEN.pack(vbuuid, done.seqno)
    head = _ANSWER.pack(RESPONSE, _SET, len(token), len(token), packet[12:16], done.cas)
    return head + token
