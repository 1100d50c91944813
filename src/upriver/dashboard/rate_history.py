"""Rates over the last minutes, from which the charts are drawn.

Rates are differences of counts between two samples. A smaller count means that it was reset.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from .figures import HistoryFigures, ServerFigures

__all__ = ["RateHistory"]

#: The number of samples that are kept: five minutes.
_KEPT: Final = 300


class _Point(NamedTuple):
    time: float
    writes: float
    reads: float
    messages: float
    bytes: float
    lag: int


class RateHistory:
    """Points in time, oldest first."""

    def __init__(self) -> None:
        self._points: deque[_Point] = deque(maxlen=_KEPT)
        self._before: tuple[float, tuple[int, int, int, int]] | None = None

    def add(self, time: float, server: ServerFigures, changes: int) -> None:
        """Adds the counts of one sample; ``changes`` is the sum over all buckets."""
        counts = changes, server["reads"], server["messages"], server["bytes"]
        if self._before is not None and time > self._before[0]:
            passed = time - self._before[0]
            writes, reads, messages, sent = (
                max(0, count - was) / passed
                for count, was in zip(counts, self._before[1], strict=True)
            )
            lag = sum(connection["lag"] for connection in server["connections"])
            self._points.append(_Point(time, writes, reads, messages, sent, lag))
        self._before = time, counts

    def figures(self) -> HistoryFigures:
        points = self._points
        return HistoryFigures(
            time=[round(point.time, 2) for point in points],
            writes=[round(point.writes, 1) for point in points],
            reads=[round(point.reads, 1) for point in points],
            messages=[round(point.messages, 1) for point in points],
            bytes=[round(point.bytes, 1) for point in points],
            lag=[point.lag for point in points],
        )
