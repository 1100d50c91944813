"""Leaves documents of dropped collections out of a backfill until maintenance has erased them.

A Couchbase server does so when it reads from disk. The event that drops the collection has a higher
seqno than all its documents and is in the same snapshot, so a consumer misses nothing: it would
have to forget these documents at once. Prepares, aborts and system events stay.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...store import FrameChunk
from ...wire import canonical, leb128
from ...wire.framing import packet_length
from ...wire.header import HEADER_SIZE
from ...wire.prepares import is_hidden


def without_dropped(chunk: FrameChunk, dropped: Mapping[int, int]) -> FrameChunk:
    """Returns a chunk without documents older than the drop of their collection.

    ``dropped`` has the seqno of the drop by collection. If all frames are left out, the last seqno
    of the result is 0.
    """
    frames = chunk.frames
    if not dropped or _seqno(frames) > max(dropped.values()):
        return chunk
    kept: list[bytes] = []
    at = 0
    while at < len(frames):
        end = at + (packet_length(frames, at) or len(frames))
        frame, at = frames[at:end], end
        if canonical.is_event(frame) or is_hidden(frame):
            kept.append(frame)
            continue
        collection, _ = leb128.decode(canonical.key_of(frame))
        if _seqno(frame) > dropped.get(collection, 0):
            kept.append(frame)
    last = _seqno(kept[-1]) if kept else 0
    return FrameChunk(b"".join(kept), len(kept), last)


def _seqno(frame: bytes) -> int:
    """Returns the seqno of the first stored frame: the first field of its extras."""
    return int.from_bytes(frame[HEADER_SIZE : HEADER_SIZE + 8])
