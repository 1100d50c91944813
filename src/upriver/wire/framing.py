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
        self._is_002: bool | None = None

    @property
    def pending(self) -> int:
        """How many bytes wait for the rest of their packet."""
        return len(self._buffer) - self._start

    def feed(self, chunk: bytes | bytearray | memoryview) -> Iterator[bytes]:
        """Takes a chunk and yields the packets that it completes."""
        self._buffer += chunk
        return self._packets()

    def _packets(self) -> Iterator[bytes]:
        while True:
            length = packet_length(self._buffer, self._start, max_body=self._max_body)
            if self._start < len(self._buffer):
                self._pin(self._buffer[self._start])
            if length is None or len(self._buffer) - self._start < length:
                break
            packet = bytes(memoryview(self._buffer)[self._start : self._start + length])
            self._start += length
            yield packet
        if self._start:
            del self._buffer[: self._start]
            self._start = 0

    def _pin(self, first: int) -> None:
        is_002 = first in _OPCODES_002
        if self._is_002 is None:
            self._is_002 = is_002
        elif self._is_002 is not is_002:
            raise DecodeError(
                dialect="002" if self._is_002 else "memcached",
                packet="packet",
                field="first byte",
                offset=0,
                rule=f"{first:#04x} belongs to a draft with another header than the packets before",
                usable=False,
            )
