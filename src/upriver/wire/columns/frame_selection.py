"""Parameters and result of selecting and patching stored frames for one stream."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag
from typing import Final, NamedTuple

#: The most frames that one call leaves to its caller; it stops before the next, so that the memory
#: for their positions is bounded.
MAX_LEFT: Final = 1024


class Part(IntFlag):
    """The parts of a change that a stream sends. The C accelerator has the same bits."""

    #: The collection id before the key.
    PREFIX = 1
    VALUE = 2
    #: The datatype of the value, even if the value is not sent.
    DATATYPE = 4
    XATTRS = 8
    #: All xattrs of deleted documents, and not only system xattrs.
    DELETED_USER_XATTRS = 16
    DELETE_TIMES = 32
    #: Expirations as expirations, and not as deletions.
    EXPIRATIONS = 64
    #: Deletions and expirations.
    DELETIONS = 128
    #: Values that are stored compressed, unchanged.
    SNAPPY_VALUES = 256
    #: Values that are stored uncompressed, unchanged; without it the caller compresses them.
    PLAIN_VALUES = 512
    #: System events, unchanged; without it the selection stops before one.
    EVENTS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The changes that a stream sends, and the form of their packets."""

    parts: Part
    opaque: int
    stream_id: int | None = None
    #: The ids of the stream's collections in ascending order; None for all.
    collections: tuple[int, ...] | None = None


class LeftFrame(NamedTuple):
    """A frame that the caller has to process: its position, and how much was output before it."""

    packets_before: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Selected:
    """The packets made from stored frames."""

    packets: bytearray
    #: The number of packets.
    count: int
    #: The seqno of the last of them; 0 if there are none.
    last_seqno: int
    #: Frames that need more than selecting and patching, in order: values to decompress or to
    #: compress, xattrs of deleted documents to filter, and frames that break a rule.
    left: tuple[LeftFrame, ...]
    #: Bytes of the frames that were processed. The next frame is neither a change nor an event to
    #: be sent unchanged, or would be the first beyond `MAX_LEFT`.
    consumed: int
