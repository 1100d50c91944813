"""How far a table is behind its bucket, asked of the nodes at that moment."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ..batches.offsets import Offset
from ..batches.options import ReadOptions
from ..batches.stream_driver import Driver
from ..errors import UpriverError

#: Looks at the bucket that are remembered until the table has reached them.
_MOST_LOOKS: Final = 256


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a table is behind."""

    #: Seqnos, which are an upper bound of changes.
    changes: int
    #: The table shows at least all that the bucket had so many seconds ago; 0 if it is equal.
    seconds: float


class LagMeter:
    """Knows how far the table is, and can ask how far the bucket is. Any thread may use it."""

    def __init__(
        self,
        driver: Driver | None,
        clock: Callable[[], float] = lambda: time.monotonic(),
    ) -> None:
        """None for a bucket that cannot be asked how far it is."""
        self._driver = driver
        self._asked = driver
        self._lock = threading.Lock()
        self._clock = clock
        #: When the bucket was looked at, and its high seqnos then, as far as they are not reached.
        self._looks: deque[tuple[float, dict[int, int]]] = deque(maxlen=_MOST_LOOKS)
        self._equal_at = clock()
        self._closed = False
        #: Up to where readers of the table see everything.
        self.shown: Offset | None = None

    def choose(self, options: ReadOptions | None) -> None:
        """Measures other collections from now on; None if there is none to read."""
        with self._lock:
            self._driver = None if options is None else self._asked
            if options is not None and self._asked is not None:
                self._asked.choose(options)

    @property
    def waits(self) -> tuple[float, str] | None:
        """Since when no node answers its questions, and why."""
        return None if self._asked is None else self._asked.waits

    def measure(self) -> Lag | None:
        """None while nobody can be asked."""
        try:
            return self._measured()
        finally:
            if self._closed:
                self.close()

    def _measured(self) -> Lag | None:
        with self._lock:
            if self._closed or self._asked is None:
                return None
            now = self._clock()
            try:
                highs = self._driver.target() if self._driver is not None else {}
            except UpriverError:
                return None
            shown = self.shown

            def behind(highs: dict[int, int]) -> int:
                return sum(
                    max(0, high - (shown.at(vb).seqno if shown is not None else 0))
                    for vb, high in highs.items()
                )

            self._looks.append((now, highs))
            while self._looks and not behind(self._looks[0][1]):
                self._equal_at = self._looks.popleft()[0]
            changes = behind(highs)
            return Lag(changes, self._clock() - self._equal_at if changes else 0.0)

    def close(self) -> None:
        """Ends it; a measurement that waits for a node is not waited for."""
        self._closed = True
        if self._asked is None:
            return
        self._asked.interrupt()
        if self._lock.acquire(blocking=False):
            try:
                self._asked.close()
            finally:
                self._lock.release()
