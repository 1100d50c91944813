"""A line of the log about one thing at most every so often, however many notice it."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable


class LineLimit:
    """Says whether a line is due; any thread may ask."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        #: By thing, when a line about it was written.
        self._told: dict[Hashable, float] = {}

    def is_due(self, thing: Hashable) -> bool:
        """Whether a line about this is due, which the caller then writes."""
        now = time.monotonic()
        with self._lock:
            if now - self._told.get(thing, now - self._seconds) < self._seconds:
                return False
            self._told[thing] = now
            return True
