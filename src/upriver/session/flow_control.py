"""Flow control: the producer's window of unacknowledged bytes, and the consumer's acknowledgements.

The window belongs to the connection, not to a stream. A producer may send while fewer bytes than
the window are outstanding, so one message of any size may exceed it. A consumer collects
acknowledgements and sends them in batches. Time is an argument; this module knows no socket.
"""

from __future__ import annotations

from typing import Final

from ..wire.dialects import Dcp
from ..wire.framing import packet_length
from ..wire.header import FLEX_REQUEST, REQUEST
from ..wire.protocol_enums import Command

_NOOP: Final = Dcp.table.opcodes[Command.STREAM_NOOP]
_PREPARE: Final = Dcp.table.opcodes[Command.PREPARE]
#: Couchbase servers count a prepare two bytes larger than it is, and expect both acknowledged.
PREPARE_SURPLUS: Final = 2

#: The part of the window after which processed bytes are acknowledged.
_ACKNOWLEDGED_PART: Final = 0.2
#: The longest time that processed bytes stay unacknowledged, however few they are.
ACK_AFTER_SECONDS: Final = 5.0


def counted_size(packet: bytes | memoryview) -> int:
    """Returns the bytes of the window that a packet occupies: only requests count, except noops."""
    if packet[0] not in (REQUEST, FLEX_REQUEST) or packet[1] == _NOOP:
        return 0
    return len(packet) + (PREPARE_SURPLUS if packet[1] == _PREPARE else 0)


class SendWindow:
    """The producer's window. A size of 0 means no flow control."""

    __slots__ = ("outstanding", "size")

    def __init__(self, size: int = 0) -> None:
        self.size = size
        self.outstanding = 0

    @property
    def is_open(self) -> bool:
        """Whether another message may be sent, whatever its size."""
        return not self.size or self.outstanding < self.size

    def whole_packets(self, packets: memoryview) -> int:
        """Returns the bytes of whole packets that may be sent; each starts in an open window."""
        if not self.size:
            return len(packets)
        room = self.size - self.outstanding
        if room >= len(packets):
            return len(packets)
        at = 0
        while at < room and at < len(packets):
            at += packet_length(packets, at) or len(packets)
        return at

    def sent(self, counted: int) -> None:
        """Adds sent bytes. Without flow control nothing is counted: no acknowledgement comes."""
        if self.size:
            self.outstanding += counted

    def acknowledged(self, counted: int) -> None:
        """Takes an acknowledgement. One for more bytes than outstanding resets the window."""
        self.outstanding = max(0, self.outstanding - counted)


class ReceiveWindow:
    """The consumer's window: collects processed bytes until an acknowledgement is due."""

    __slots__ = ("_last_ack", "freed", "size", "threshold")

    def __init__(self, size: int, *, now: float) -> None:
        self.size = size
        self.threshold = int(size * _ACKNOWLEDGED_PART)
        #: Bytes that the application has processed and that are not yet acknowledged.
        self.freed = 0
        self._last_ack = now

    def consumed(self, counted: int) -> None:
        self.freed += counted

    @property
    def due_at(self) -> float:
        """When the processed bytes are acknowledged at the latest, however few they are."""
        return self._last_ack + ACK_AFTER_SECONDS

    def due(self, now: float) -> int:
        """Returns the bytes to acknowledge now, and resets the count; 0 if none are due."""
        waited = now >= self.due_at
        if not self.size or not self.freed or (self.freed <= self.threshold and not waited):
            return 0
        freed, self.freed, self._last_ack = self.freed, 0, now
        return freed
