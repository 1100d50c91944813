"""Detects which draft a peer speaks from its first packets, and keeps it for the connection.

No draft negotiates a version and all reuse the same opcodes, but the first request is unambiguous
except in one case: after an Open the peer speaks draft 001 or today's DCP, and its first Stream
Request or Control decides which. Until then both decode alike, and DCP's table is used.
"""

from __future__ import annotations

from ...errors import DecodeError
from ..header import HEADER_SIZE, MAGICS, REQUEST, parse_header
from .dcp import Dcp
from .draft000 import Draft000
from .draft001 import Draft001
from .draft002 import OPCODE_NAMES, Draft002
from .interface import Dialect

_OPEN = 0x50
_FAILOVER_LOG_000 = 0x51
_STREAM_REQUEST = 0x53
_CONTROL = 0x5E
_STREAM_REQUEST_EXTRAS_000 = 40
_STREAM_REQUEST_EXTRAS_001 = 40
_OPEN_EXTRAS = 8


def sniff(packet: bytes, draft001: Draft001 | None = None) -> Dialect | None:
    """The dialect of a first packet; None if it may be 001 or DCP.

    ``draft001`` is the form of draft 001 that this server speaks.
    """
    first = packet[0] if packet else -1
    if first in OPCODE_NAMES:
        return Draft002()
    if first not in MAGICS or len(packet) < HEADER_SIZE:
        raise DecodeError(
            dialect="any draft",
            packet="first packet",
            field="first byte",
            offset=0,
            rule=f"{first:#04x} begins no packet of any draft" if packet else "the packet is empty",
            usable=False,
        )
    header = parse_header(packet)
    if first != REQUEST:
        return Dcp()
    if header.opcode == _OPEN:
        if header.extras_length == _STREAM_REQUEST_EXTRAS_000:
            return Draft000()
        return None if header.extras_length == _OPEN_EXTRAS else Dcp()
    if header.opcode == _FAILOVER_LOG_000 and header.extras_length == 0 == header.key_length:
        return Draft000()
    if header.opcode == _STREAM_REQUEST and header.extras_length == _STREAM_REQUEST_EXTRAS_001:
        return draft001 or Draft001()
    return Dcp()


class DialectPin:
    """Observes a peer's packets until its draft is known.

    first packet ──> 002 | 000 | 001 | DCP      (pinned)
               └───> Open: 001 or DCP ──> Stream Request of 40 bytes: 001
                                     └──> Stream Request, Control:    DCP
    """

    def __init__(self, draft001: Draft001 | None = None) -> None:
        """``draft001`` is how 001 is spoken here."""
        self._draft001 = draft001 or Draft001()
        self._dialect: Dialect = Dcp()
        self._seen_any = False
        self._pinned = False

    @property
    def dialect(self) -> Dialect:
        """The dialect to decode and answer with now."""
        return self._dialect

    @property
    def pinned(self) -> bool:
        """Whether the peer's draft is known."""
        return self._pinned

    def observe(self, packet: bytes) -> Dialect:
        """Observes the peer's next packet and returns the dialect to decode it with."""
        if self._pinned:
            return self._dialect
        if not self._seen_any:
            self._seen_any = True
            found = sniff(packet, self._draft001)
            if found is not None:
                self._dialect, self._pinned = found, True
        elif packet[0] == REQUEST and packet[1] == _STREAM_REQUEST:
            old = packet[4] == _STREAM_REQUEST_EXTRAS_001
            self._dialect, self._pinned = (self._draft001 if old else Dcp()), True
        elif packet[0] != REQUEST or packet[1] == _CONTROL:
            self._pinned = True
        return self._dialect
