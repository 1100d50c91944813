"""Finds the last seqno of a snapshot that a consumer without collections gets, in bounded steps.

Such a consumer gets only the default collection and gets no message about skipped seqnos. So
each snapshot marker must end at the last change that the consumer gets. The store knows the last
seqno of the default collection, and in most cases this is the end. It is not if that change was
purged, or is a deletion that the consumer does not want. Then all changes are read, one chunk per
turn, from the same frozen view of the store that is sent afterwards.
"""

from __future__ import annotations

from typing import Final, Protocol

from ...store import Backfill, Bucket, FrameChunk

_DEFAULT: Final = 0


class Visible(Protocol):
    def __call__(self, chunk: FrameChunk) -> int:
        """Returns the last seqno of a chunk that the consumer gets; 0 if there is none."""


class VisibleEnd:
    """A backfill for a consumer without collections, and the last seqno that the consumer gets."""

    def __init__(self, bucket: Bucket, vbucket: int, position: int, visible: Visible) -> None:
        self._visible = visible
        self._last = 0
        self._ahead: Backfill | None = None
        before = bucket.collection_seqnos(vbucket)
        self.backfill = bucket.open_reader(vbucket, position)
        #: The last seqno that the consumer gets, 0 if it gets none; None until it is found.
        self.end: int | None = None
        for highs in (before, bucket.collection_seqnos(vbucket)):
            if self.end is None:
                self.end = self._known_end(bucket, highs)
        if self.end is None:
            self.backfill.close()
            self.backfill, self._ahead = bucket.open_readers(vbucket, position)

    def _known_end(self, bucket: Bucket, highs: dict[int, int]) -> int | None:
        """Returns the end as the store knows it; None if that does not fit the snapshot."""
        whole = self.backfill.snapshot
        last = highs.get(_DEFAULT, 0)
        if max(highs.values(), default=0) < whole.end or last > whole.end:
            return None  # the seqnos and the snapshot differ in time
        if last < whole.start:
            return 0
        with bucket.open_reader(self.backfill.vbucket, last - 1) as reader:
            chunk = reader.read(max_bytes=1)
        # The change may be purged, or not be for this consumer.
        found = chunk is not None and chunk.last_seqno == last and self._visible(chunk) == last
        return last if found else None

    def step(self, max_bytes: int) -> int:
        """Reads some more changes. Returns their size in bytes."""
        assert self._ahead is not None
        chunk = self._ahead.read(max_bytes)
        if chunk is None:
            self._ahead.close()
            self.end = self._last
            return 0
        self._last = max(self._last, self._visible(chunk))
        return len(chunk.frames)

    def close(self) -> None:
        """Closes the backfill."""
        self.backfill.close()
        if self._ahead is not None:
            self._ahead.close()
