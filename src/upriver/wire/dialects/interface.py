"""The interface of a dialect, which is all that sessions know of the drafts."""

from __future__ import annotations

from enum import Enum, auto
from typing import ClassVar, Protocol

from ..messages import Message
from ..protocol_enums import Command


class SnapshotStyle(Enum):
    """How a draft marks the changes of a snapshot."""

    #: Snapshot Start before them, Snapshot End after them.
    EDGES = auto()
    #: A Snapshot Marker before them, without seqnos.
    BARE_MARKER = auto()
    #: A Snapshot Marker before them with the first and the last seqno; a Stream Request resumes
    #: with both.
    RANGE_MARKER = auto()


class Dialect(Protocol):
    """One draft of the protocol: its codec and its capabilities."""

    #: The name of the draft: ``002``, ``000``, ``001`` or ``dcp``.
    name: ClassVar[str]
    snapshot_style: ClassVar[SnapshotStyle]
    #: Whether packets have memcached's 24-byte header. Without it, responses do not name their
    #: request, and errors are messages with a text.
    has_memcached_header: ClassVar[bool]
    #: Whether a connection begins with Open. If not, the first Stream Request opens it, a stream
    #: cannot be closed, and a request may name a group of readers.
    opens_connections: ClassVar[bool]
    #: Whether Hello, the flags of Open and Control choose what a stream carries: datatypes,
    #: collections, times of deletions, flow control, noops, refusals with a reason.
    negotiates: ClassVar[bool]
    #: Whether the response that accepts a stream carries the failover log.
    accepts_with_failover_log: ClassVar[bool]
    #: Whether consumers acknowledge snapshot markers (on request) and takeover states.
    acknowledges_state: ClassVar[bool]
    #: Whether a stream can announce a flush of the vbucket.
    has_flush: ClassVar[bool]
    #: Whether `wire.columns` can decode and select its changes in bulk.
    has_columns: ClassVar[bool]

    @property
    def sends_nru(self) -> bool:
        """Whether mutations carry the field "not recently used"."""

    @property
    def collections(self) -> bool:
        """Whether keys of documents carry their collection id."""

    def encode(self, message: Message) -> bytes:
        """The packet of a message; `EncodeError` if the draft cannot carry it."""

    def decode(self, packet: bytes) -> Message:
        """The message of one whole packet; `DecodeError` if it breaks a rule."""

    def command_of(self, message: Message) -> Command | int:
        """The command of a message, which responses to it must carry."""
