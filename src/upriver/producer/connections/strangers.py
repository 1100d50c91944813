"""Connections whose peers have not said yet who they are: the oldest makes room for a new one.

A server has a place for a limited number of connections. If those that stay silent kept theirs
until a deadline, whoever opens enough of them would lock out everybody else. A client that means to
work says who it is in milliseconds; whoever wants to push it out before must open as many
connections in that time as the limit allows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable


class Strangers:
    """Oldest first. Only the event loop's thread may use it."""

    def __init__(self) -> None:
        self._drop: OrderedDict[object, Callable[[], bool]] = OrderedDict()

    def add(self, who: object, drop: Callable[[], bool]) -> None:
        """Adds one, unless it is there.

        ``drop`` ends it and frees its place at once, or returns false if it is known by now.
        """
        self._drop.setdefault(who, drop)

    def discard(self, who: object) -> None:
        """Removes one that is known now, or closed."""
        self._drop.pop(who, None)

    def drop_oldest(self) -> bool:
        """Drops the one that has been a stranger for the longest; false if there is none."""
        while self._drop:
            _, drop = self._drop.popitem(last=False)
            if drop():
                return True
        return False
