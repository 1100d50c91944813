"""Histogram of latencies with fixed bounds, from which percentiles are read."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

#: Upper bounds of the buckets in seconds, in steps of 1, 2 and 5; the last bucket has none.
BOUNDS: Final = tuple(
    step * 10.0**power for power in range(-4, 2) for step in (1, 2, 5) if step * 10**power <= 50
)


class LatencyHistogram:
    """Counts that only grow. One thread adds; any thread may read."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        #: One count per bound, and one for everything longer.
        self.counts = [0] * (len(BOUNDS) + 1)
        #: The sum of all latencies in seconds.
        self.total = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """Counts ``count`` observations of the same latency."""
        self.counts[bisect_left(BOUNDS, seconds)] += count
        self.total += max(0.0, seconds) * count
