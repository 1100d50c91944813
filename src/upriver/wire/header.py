"""The 24-byte memcached header of every draft but 002.

With the flexible magics byte 2 counts framing extras and byte 3 the key; with the others bytes 2
and 3 together count the key.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

REQUEST: Final = 0x80
RESPONSE: Final = 0x81
FLEX_REQUEST: Final = 0x08
FLEX_RESPONSE: Final = 0x18
#: A request that a server sends to a client, and its answer.
SERVER_REQUEST: Final = 0x82
SERVER_RESPONSE: Final = 0x83

MAGICS: Final = frozenset(
    {REQUEST, RESPONSE, FLEX_REQUEST, FLEX_RESPONSE, SERVER_REQUEST, SERVER_RESPONSE}
)
_FLEXIBLE: Final = frozenset({FLEX_REQUEST, FLEX_RESPONSE})
_RESPONSES: Final = frozenset({RESPONSE, FLEX_RESPONSE, SERVER_RESPONSE})

_HEADER = struct.Struct(
    ">"
    "B"  # magic
    "B"  # opcode
    "H"  # key length, or framing extras length and key length
    "B"  # extras length
    "B"  # datatype
    "H"  # vbucket of a request, status of a response
    "I"  # total body length
    "I"  # opaque
    "Q"  # cas
)
HEADER_SIZE: Final = _HEADER.size
#: The offset of a request's vbucket.
VBUCKET_AT: Final = 6
_VBUCKET = struct.Struct(">H")
_CAS = struct.Struct(">Q")
_CAS_AT: Final = HEADER_SIZE - _CAS.size
#: The header of stored frames, as a format of `struct`; their opaque is 0.
STORED_HEADER: Final = (
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


class Header(NamedTuple):
    magic: int
    opcode: int
    frames_length: int
    key_length: int
    extras_length: int
    datatype: int
    #: The vbucket of a request, the status of a response.
    vbucket: int
    body_length: int
    opaque: int
    cas: int

    @property
    def is_response(self) -> bool:
        return self.magic in _RESPONSES

    @property
    def is_flexible(self) -> bool:
        return self.magic in _FLEXIBLE

    @property
    def of_server(self) -> bool:
        """Whether it is a request from a server to a client, or the response to one."""
        return self.magic in (SERVER_REQUEST, SERVER_RESPONSE)


def parse_header(data: bytes | bytearray | memoryview) -> Header:
    """Parses the first 24 bytes, which must be there; no field is validated."""
    magic, opcode, keys, extras, datatype, vbucket, body, opaque, cas = _HEADER.unpack_from(data)
    frames, key = (keys >> 8, keys & 0xFF) if magic in _FLEXIBLE else (0, keys)
    return Header(magic, opcode, frames, key, extras, datatype, vbucket, body, opaque, cas)


def vbucket_of(packet: bytes) -> int:
    """The vbucket in the header of a request."""
    vbucket: int = _VBUCKET.unpack_from(packet, VBUCKET_AT)[0]
    return vbucket


def cas_of(packet: bytes) -> int:
    """The CAS in the header."""
    cas: int = _CAS.unpack_from(packet, _CAS_AT)[0]
    return cas


def pack_header(header: Header) -> bytes:
    """The 24 bytes of a header; struct.error where a number does not fit."""
    keys = header.key_length
    if header.magic in _FLEXIBLE:
        if header.key_length > 0xFF:
            raise struct.error("a flexible packet's key is at most 255 bytes")
        keys |= header.frames_length << 8
    return _HEADER.pack(
        header.magic,
        header.opcode,
        keys,
        header.extras_length,
        header.datatype,
        header.vbucket,
        header.body_length,
        header.opaque,
        header.cas,
    )
