"""The receive buffer of a connection: bytes that were read, split into packets on demand.

Packets are split off only when they are handled, so reading is cheap however much arrives, and an
invalid packet is found only after all packets before it were handled.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Final

from ...errors import DecodeError
from ...wire.framing import Framer

#: Packets that are split off at a time, which is cheaper than one by one.
_AT_ONCE: Final = 64


class ReceiveBuffer:
    """The received bytes of one connection."""

    def __init__(self) -> None:
        self._framer = Framer()
        self._packets: deque[bytes] = deque()
        #: Bytes of the packets that are split off already.
        self._cut_out = 0
        self._at_once = 1

    def expect(self, max_body: int, *, uniform: bool) -> None:
        """Sets the longest body; unless ``uniform``, any packet may change that limit."""
        self._framer.max_body = max_body
        self._at_once = _AT_ONCE if uniform else 1

    @property
    def held(self) -> int:
        """Bytes that were added and not yet taken."""
        return self._framer.pending + self._cut_out

    @property
    def awaited(self) -> int:
        """The length of the next packet; 0 if its header has not arrived."""
        return self._framer.awaited

    def add(self, data: bytes) -> None:
        self._framer.add(data)

    def peek(self) -> bytes | None:
        """Returns the next whole packet without removing it; None if there is none.

        Raises a `DecodeError` if the bytes are not a valid packet.
        """
        if not self._packets:
            try:
                for packet in islice(self._framer.packets(), self._at_once):
                    self._packets.append(packet)
                    self._cut_out += len(packet)
            except DecodeError:
                if not self._packets:  # else the error is found again after these packets
                    raise
            if not self._packets:
                return None
        return self._packets[0]

    def take(self) -> bytes | None:
        """Removes and returns the next whole packet; None if there is none."""
        packet = self.peek()
        if packet is not None:
            self._packets.popleft()
            self._cut_out -= len(packet)
        return packet

    def put_back(self, packet: bytes) -> None:
        """Puts back the packet that was taken last."""
        self._packets.appendleft(packet)
        self._cut_out += len(packet)

    def clear(self) -> None:
        """Drops everything and releases its memory."""
        self._packets.clear()
        self._cut_out = 0
        self._framer = Framer()
