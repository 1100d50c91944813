"""The CAS clock: a hybrid logical clock that never goes back.

A CAS is nanoseconds since 1970, with the low 16 bits as a counter. The clock follows the wall
clock while that advances, and counts up while it stands still or was set back. After a restart
every CAS must be higher than those before it. So an upper bound is stored from time to time. The
owner of the clock stores it in the same write batch as the values that require it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_TIME_BITS: Final = ~0xFFFF
_NANOSECONDS: Final = 1_000_000_000

#: The highest CAS that the clock follows, in the year 2262. A clock that was advanced to the end of
#: 64 bits could return no higher CAS.
_LAST_FOLLOWED: Final = 2**63

#: How far the stored bound is ahead of the clock. This needs one small write per interval, and
#: after a crash the clock may be ahead of the wall clock by as much.
_AHEAD: Final = 10 * _NANOSECONDS


class HybridClock:
    """A hybrid logical clock. Not thread-safe: the caller must hold the write lock."""

    __slots__ = ("_bound", "_last", "_wall")

    def __init__(self, wall: Callable[[], int] = time.time_ns, *, bound: int = 0) -> None:
        self._wall = wall
        self._last = bound
        self._bound = bound

    def next(self) -> int:
        """Returns a CAS above all earlier ones, as close to the wall clock as possible."""
        cas = self._wall() & _TIME_BITS
        if cas <= self._last:
            cas = self._last + 1
        self._last = cas
        return cas

    def take(self, count: int) -> int:
        """Reserves ``count`` consecutive values and returns the first. Not all need be used."""
        first = self.next()
        self._last = first + count - 1
        return first

    def observe(self, cas: int) -> None:
        """Advances the clock past a CAS of another server, unless that CAS is not a valid time."""
        if self._last < cas <= _LAST_FOLLOWED:
            self._last = cas

    def seconds(self) -> int:
        """Returns the wall clock in seconds, for expiries and ages."""
        return self._wall() // _NANOSECONDS

    def new_bound(self) -> int | None:
        """Returns a bound to store before the returned values are used; None if it still holds."""
        if self._last <= self._bound:
            return None
        self._bound = self._last + _AHEAD
        return self._bound
