"""Leaves documents of dropped collections out of a backfill until maintenance has erased them.

A Couchbase server does so when it reads from disk. The event that drops the collection has a higher
seqno than all its documents and is in the same snapshot, so a consumer misses nothing: it would
have to forget these documents at once. Prepares, aborts and system events stay.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...store import FrameChunk
from ...wire import canonical, leb128
from ...wire.stored_prepares import is_hidden


def without_dropped(chunk: FrameChunk, dropped: Mapping[int, int]) -> FrameChunk:
    """Returns a chunk without documents older than the drop of their collection.

    ``dropped`` has the seqno of the drop by collection. If all frames are left out, the last seqno
    of the result is 0.
    """
    if not dropped or canonical.seqno_of(chunk.frames) > max(dropped.values()):
        return chunk
    kept = [frame for frame in canonical.frames_in(chunk.frames) if _stays(frame, dropped)]
    last = canonical.seqno_of(kept[-1]) if kept else 0
    return FrameChunk(b"".join(kept), len(kept), last)


def _stays(frame: bytes, dropped: Mapping[int, int]) -> bool:
    if canonical.is_event(frame) or is_hidden(frame):
        return True
    collection, _ = leb128.decode(canonical.key_of(frame))
    return canonical.seqno_of(frame) > dropped.get(collection, 0)
