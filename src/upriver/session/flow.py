"""Flow control: how many bytes a producer may have under way, and what a consumer owes for them.

The window belongs to the connection. A producer may send while less than the window is
outstanding, so one message of any size may overshoot it; a consumer gives room back in lumps.
Time comes as an argument; nothing here knows a socket.
"""

from __future__ import annotations

from typing import Final

from ..wire.header import FLEX_REQUEST, REQUEST

__all__ = ["ACK_AFTER_SECONDS", "ReceiveWindow", "SendWindow", "counted_size"]

_NOOP: Final = 0x5C
_PREPARE: Final = 0x60
#: Real servers count a prepare two bytes larger than it is, and expect both back.
_PREPARE_SURPLUS: Final = 2

#: Room is given back at least this often, however little it is.
ACK_AFTER_SECONDS: Final = 5.0


def counted_size(packet: bytes | memoryview) -> int:
    """How many bytes of the window a producer's packet takes: its requests, but not its noops."""
    if packet[0] not in (REQUEST, FLEX_REQUEST) or packet[1] == _NOOP:
        return 0
    return len(packet) + (_PREPARE_SURPLUS if packet[1] == _PREPARE else 0)


class SendWindow:
    """A producer's side. A size of 0 means no flow control."""

    __slots__ = ("outstanding", "size")

    def __init__(self, size: int = 0) -> None:
        self.size = size
        self.outstanding = 0

    @property
    def is_open(self) -> bool:
        """Whether another message may be sent, whatever its size."""
        return not self.size or self.outstanding < self.size

    def sent(self, counted: int) -> None:
        """Takes note of bytes under way; without flow control there is nobody to give them back."""
        if self.size:
            self.outstanding += counted

    def acknowledged(self, counted: int) -> None:
        """Takes an acknowledgement; one of more than was sent only empties the window."""
        self.outstanding = max(0, self.outstanding - counted)


class ReceiveWindow:
    """A consumer's side: collects what the application is done with until it is worth a message."""

    __slots__ = ("_last_ack", "freed", "size", "threshold")

    def __init__(self, size: int, *, now: float, fraction: float = 0.2) -> None:
        self.size = size
        self.threshold = int(size * fraction)
        #: Bytes that are done with and not yet given back.
        self.freed = 0
        self._last_ack = now

    def consumed(self, counted: int) -> None:
        self.freed += counted

    def due(self, now: float) -> int:
        """The bytes to acknowledge now, 0 if that can wait; they then count as given back."""
        waited = now - self._last_ack >= ACK_AFTER_SECONDS
        if not self.size or not self.freed or (self.freed <= self.threshold and not waited):
            return 0
        freed, self.freed, self._last_ack = self.freed, 0, now
        return freed
