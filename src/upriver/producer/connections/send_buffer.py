"""Send buffer of a connection: passes long data to the transport piece by piece.

The transport copies all data that it cannot send at once. So data longer than a piece waits here,
without a copy, and is passed on in the connection's turns as the peer reads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from ...wire import kv_messages as kv
from ...wire import messages as m
from ...wire.dialects import Dialect

#: Longer data waits here.
_PIECE_BYTES: Final = 256 * 1024
#: Bytes of such pieces in one turn: copying them to a socket takes less than a millisecond.
_FLUSH_BYTES: Final = 1024 * 1024
#: Position of the body length in a packet header.
_BODY_LENGTH: Final = slice(8, 12)


class SendBuffer:
    """The data of one connection that its transport has not got yet, in order."""

    def __init__(self, wants_turn: Callable[[], None]) -> None:
        """``wants_turn`` is called when data waits for `flush`."""
        self._wants_turn = wants_turn
        self._transport: asyncio.Transport | None = None
        self._unsent: deque[memoryview] = deque()
        self._bytes = 0
        self._limit = 0
        #: Whether the transport accepts more, and whether all data has been passed to it.
        self.transport_takes = self.writable = True

    def __bool__(self) -> bool:
        """Whether data waits for the transport."""
        return bool(self._unsent)

    @property
    def size(self) -> int:
        """Bytes that are not sent yet, here and in the transport."""
        waiting = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return waiting + self._bytes

    def attach(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def limit(self, size: int) -> None:
        """Sets how many bytes the transport may hold before it accepts no more."""
        if size != self._limit and self._transport is not None:
            self._limit = size
            self._transport.set_write_buffer_limits(high=size)

    def pause(self) -> None:
        """Called when the transport accepts no more."""
        self.transport_takes = self.writable = False

    def resume(self) -> None:
        """Called when the transport accepts more."""
        self.transport_takes = True
        self.writable = not self._unsent

    def write_messages(self, dialect: Dialect, messages: Iterable[m.Message]) -> None:
        """Writes messages. The value of a large document is not copied into its packet."""
        packets: list[bytes] = []
        for message in messages:
            if isinstance(message, kv.DocumentResponse) and len(message.value) > _PIECE_BYTES:
                packets.append(_without_value(dialect, message))
                self.write(b"".join(packets))
                self.write(message.value)
                packets.clear()
            else:
                packets.append(dialect.encode(message))
        self.write(b"".join(packets))

    def write(self, packets: bytes) -> None:
        if not packets or not self.connected:
            return
        assert self._transport is not None
        if self._unsent or len(packets) > _PIECE_BYTES:
            self._unsent.append(memoryview(packets))
            self._bytes += len(packets)
            self.writable = False
            self._wants_turn()
        else:
            self._transport.write(packets)

    def flush(self) -> bool:
        """Passes the next waiting pieces to the transport; returns whether it accepts more."""
        assert self._transport is not None
        left = _FLUSH_BYTES
        while self._unsent and self.transport_takes and left > 0 and self.connected:
            first = self._unsent.popleft()
            piece, rest = first[:_PIECE_BYTES], first[_PIECE_BYTES:]
            if rest:
                self._unsent.appendleft(rest)
            self._bytes -= len(piece)
            left -= len(piece)
            self._transport.write(piece)
        self.writable = self.transport_takes and not self._unsent
        return self.transport_takes

    def flush_all(self) -> None:
        """Passes everything to the transport, before the connection is closed."""
        assert self._transport is not None
        for data in self._unsent:
            self._transport.write(data)
        self.clear()

    def clear(self) -> None:
        """Drops what the transport has not got."""
        self._unsent.clear()
        self._bytes = 0

    @property
    def connected(self) -> bool:
        """Whether written data can still be sent."""
        return self._transport is not None and not self._transport.is_closing()


def _without_value(dialect: Dialect, message: kv.DocumentResponse) -> bytes:
    """Encodes a response up to its value, which comes last in the packet."""
    packet = bytearray(dialect.encode(replace(message, value=b"")))
    length = int.from_bytes(packet[_BODY_LENGTH], "big") + len(message.value)
    packet[_BODY_LENGTH] = length.to_bytes(4, "big")
    return bytes(packet)
