"""Framing: splits a byte stream into packets by their length fields.

Only the length of a packet is checked: a bad one is fatal, because the next packet cannot be found.
The first byte distinguishes draft 002 (opcodes 1 to 7, a 12-byte header) from all other drafts (the
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
_LENGTH_AT: Final = 8  # the offset of the length in both headers
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
        #: The longest body that is accepted; callers change it, for example after authentication.
        self.max_body = max_body
        #: The first bytes that packets of this connection may have; known after the first packet.
        self._first_bytes: frozenset[int] = frozenset()
        self._header_size = 0

    @property
    def pending(self) -> int:
        """The number of buffered bytes."""
        return len(self._buffer) - self._start

    def take_pending(self) -> bytes:
        """Removes and returns the buffered bytes, for a caller that parses the stream itself."""
        pending = bytes(self._buffer[self._start :])
        self._buffer.clear()
        self._start = 0
        return pending

    @property
    def awaited(self) -> int:
        """The length of the next packet; 0 while its header is incomplete or invalid."""
        try:
            return packet_length(self._buffer, self._start, max_body=self.max_body) or 0
        except DecodeError:
            return 0

    def add(self, chunk: bytes | bytearray | memoryview) -> None:
        """Buffers a chunk without parsing it."""
        self._buffer += chunk

    def feed(self, chunk: bytes | bytearray | memoryview) -> Iterator[bytes]:
        """Buffers a chunk and yields the packets that it completes."""
        self._buffer += chunk
        return self.packets()

    def packets(self) -> Iterator[bytes]:
        """Yields the complete packets. A caller may stop early and call it again later."""
        buffer, unpack = self._buffer, _LENGTH.unpack_from
        try:
            while len(buffer) - self._start >= _LENGTH_AT + _LENGTH.size:
                start = self._start
                body = unpack(buffer, start + _LENGTH_AT)[0]
                if buffer[start] not in self._first_bytes or body > self.max_body:
                    self._pin(buffer[start])
                    packet_length(buffer, start, max_body=self.max_body)  # raises the error
                length = self._header_size + body
                if len(buffer) - start < length:
                    break
                self._start = start + length
                yield bytes(memoryview(buffer)[start : start + length])
            else:
                if self._start < len(buffer):
                    self._pin(buffer[self._start])
        finally:
            if self._start:
                del buffer[: self._start]
                self._start = 0

    def _pin(self, first: int) -> None:
        """Fixes the header format of the connection by its first packet."""
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
        packet_length(bytes([first]))  # raises: not the first byte of a packet
