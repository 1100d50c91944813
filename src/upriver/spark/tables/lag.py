"""How far a table is behind its bucket, asked of the nodes at that moment."""

from __future__ import annotations

import threading

from ...errors import UpriverError
from ..offsets import Offset
from ..stream_driver import Driver

__all__ = ["LagMeter"]


class LagMeter:
    """Knows how far the table is, and can ask how far the bucket is. Any thread may use it."""

    def __init__(self, driver: Driver, shown: Offset | None = None) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        #: Up to where readers of the table see everything.
        self.shown = shown

    def measure(self) -> int | None:
        """Seqnos, which are an upper bound of changes; None while nobody can be asked."""
        with self._lock:
            try:
                highs = self._driver.target()
            except UpriverError:
                return None
        shown = self.shown
        return sum(
            max(0, high - (shown.at(vb).seqno if shown else 0)) for vb, high in highs.items()
        )

    def close(self) -> None:
        with self._lock:
            self._driver.close()
