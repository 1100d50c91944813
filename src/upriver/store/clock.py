"""Where CAS values come from: a hybrid logical clock that never goes back.

A CAS is nanoseconds since 1970 with the low 16 bits a counter. The clock follows the wall clock
while that moves on, and counts while it stands still or was set back. What it has given out must
stay below what it gives out after a restart, so an upper bound is stored now and then; the
owner of the clock stores it, in the same batch as the values that made it necessary.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

__all__ = ["HybridClock"]

_TIME_BITS: Final = ~0xFFFF
_NANOSECONDS: Final = 1_000_000_000

#: No CAS above this is followed: half of what 64 bits hold is the year 2262, and a clock that was
#: taken to the end of them could give out no more.
_LAST_FOLLOWED: Final = 2**63

#: How far the bound runs ahead of the clock: one small write in this time, and after a crash the
#: clock may be ahead of the wall clock by as much.
_AHEAD: Final = 10 * _NANOSECONDS


class HybridClock:
    """Not safe for several threads at once: its owner holds the lock of the writers."""

    __slots__ = ("_bound", "_last", "_wall")

    def __init__(self, wall: Callable[[], int] = time.time_ns, *, bound: int = 0) -> None:
        self._wall = wall
        self._last = bound
        self._bound = bound

    def next(self) -> int:
        """A CAS above every other one, as near to the time as that allows."""
        cas = self._wall() & _TIME_BITS
        if cas <= self._last:
            cas = self._last + 1
        self._last = cas
        return cas

    def take(self, count: int) -> int:
        """The first of ``count`` values in a row, which the caller may give out or not."""
        first = self.next()
        self._last = first + count - 1
        return first

    def observe(self, cas: int) -> None:
        """Another server gave out this CAS: ours follow it, unless it is no time at all."""
        if self._last < cas <= _LAST_FOLLOWED:
            self._last = cas

    def seconds(self) -> int:
        """The wall clock's time, for expiries and ages."""
        return self._wall() // _NANOSECONDS

    def new_bound(self) -> int | None:
        """A bound to store before the values given out so far may be answered; None if it holds."""
        if self._last <= self._bound:
            return None
        self._bound = self._last + _AHEAD
        return self._bound
