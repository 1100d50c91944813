"""The statistics of a bucket, without a scan of documents or vbuckets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from ..model import VBucketState
from .bucket_core import BucketCore

#: The size on disk that statistics report may be this many seconds old.
_SIZE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketStats:
    """The statistics of a bucket at one moment."""

    items: int
    tombstones: int
    #: Bytes of older versions that are kept for rollbacks.
    history_bytes: int
    disk_bytes: int
    #: Open backfills and scans. Each keeps the data that it may still read on disk.
    readers: int
    #: Write groups that were committed since the bucket was opened.
    commits: int
    #: The number of vbuckets in each state.
    states: Mapping[VBucketState, int]


class StatsReader:
    """Reads the statistics of an open bucket; the size of its files once a second at most."""

    def __init__(self, core: BucketCore, clock: Callable[[], float]) -> None:
        self._core = core
        self._clock = clock
        self._size, self._size_due = 0, 0.0

    def read(self) -> BucketStats:
        totals = self._core.totals
        return BucketStats(
            items=totals.items,
            tombstones=totals.tombstones,
            history_bytes=totals.history_bytes,
            disk_bytes=self._disk_bytes(),
            readers=len(self._core.readers),
            commits=self._core.commits,
            states=dict(totals.states),
        )

    def _disk_bytes(self) -> int:
        now = self._clock()
        if now >= self._size_due:  # there may be thousands of files
            self._size_due = now + _SIZE_SECONDS
            self._size = self._core.engine.size()
        return self._size
