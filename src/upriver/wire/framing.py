"""Cuts a stream of bytes into packets, whatever chunks it arrives in.

Only a packet's own length is looked at: a bad one is fatal, because nothing behind it can be
found. The first byte tells draft 002 (opcodes 1 to 7 behind 12 bytes) from every other (the
memcached magics); a connection never changes between the two.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from ..errors import DecodeError
from .header import HEADER_SIZE, MAGICS
from .limits import MAX_BODY

__all__ = ["HEADER_002_SIZE", "Framer", "packet_length"]

HEADER_002_SIZE: Final = 12

_LENGTH = struct.Struct(">I")
_LENGTH_AT: Final = 8  # in both headers
_OPCODES_002: Final = frozenset(range(1, 8))


def packet_length(
    data: bytes | bytearray | memoryview, offset: int = 0, *, max_body: int = MAX_BODY
) -> int | None:
    """The length of the packet at ``offset``; None while its header is incomplete.

    Raises a fatal `DecodeError` for a first byte that begins no packet, and for a length above
    ``max_body``.
    """
    available = len(data) - offset
    if available <= 0:
        return None
    first = data[offset]
    if first in MAGICS:
        header_size, dialect = HEADER_SIZE, "memcached"
    elif first in _OPCODES_002:
        header_size, dialect = HEADER_002_SIZE, "002"
    else:
        raise DecodeError(
            dialect="any draft",
            packet="packet",
            field="first byte",
            offset=0,
            rule=f"{first:#04x} is neither a memcached magic nor an opcode of draft 002",
            usable=False,
        )
    if available < _LENGTH_AT + _LENGTH.size:
        return None
    body: int = _LENGTH.unpack_from(data, offset + _LENGTH_AT)[0]
    if body > max_body:
        raise DecodeError(
            dialect=dialect,
            packet="packet",
            field="total body length",
            offset=_LENGTH_AT,
            rule=f"{body} bytes are more than the limit of {max_body}",
            usable=False,
        )
    return header_size + body


class Framer:
    """Collects chunks and hands out whole packets, in order."""

    def __init__(self, *, max_body: int = MAX_BODY) -> None:
        self._buffer = bytearray()
        self._start = 0
        self._max_body = max_body
        #: What packets of this connection begin with, once its first one told.
        self._first_bytes: frozenset[int] = frozenset()
        self._header_size = 0

    @property
    def pending(self) -> int:
        """How many bytes wait for the rest of their packet."""
        return len(self._buffer) - self._start

    def feed(self, chunk: bytes | bytearray | memoryview) -> Iterator[bytes]:
        """Takes a chunk and yields the packets that it completes."""
        self._buffer += chunk
        return self._packets()

    def _packets(self) -> Iterator[bytes]:
        buffer, unpack = self._buffer, _LENGTH.unpack_from
        while len(buffer) - self._start >= _LENGTH_AT + _LENGTH.size:
            start = self._start
            body = unpack(buffer, start + _LENGTH_AT)[0]
            if buffer[start] not in self._first_bytes or body > self._max_body:
                self._pin(buffer[start])
                packet_length(buffer, start, max_body=self._max_body)  # says what is wrong
            length = self._header_size + body
            if len(buffer) - start < length:
                break
            self._start = start + length
            yield bytes(memoryview(buffer)[start : start + length])
        else:
            if self._start < len(buffer):
                self._pin(buffer[self._start])
        if self._start:
            del buffer[: self._start]
            self._start = 0

    def _pin(self, first: int) -> None:
        """Holds the connection to the header that its first packet has."""
        if first in self._first_bytes:
            return
        if not self._first_bytes and first in MAGICS | _OPCODES_002:
            old = first in _OPCODES_002
            self._first_bytes = _OPCODES_002 if old else MAGICS
            self._header_size = HEADER_002_SIZE if old else HEADER_SIZE
            return
        if first in MAGICS | _OPCODES_002:
            raise DecodeError(
                dialect="002" if self._first_bytes is _OPCODES_002 else "memcached",
                packet="packet",
                field="first byte",
                offset=0,
                rule=f"{first:#04x} belongs to a draft with another header than the packets before",
                usable=False,
            )
        packet_length(bytes([first]))  # says that it begins no packet
