"""Remembers which draft producers speak of which this node is the consumer, by connection name.

A producer that was never told to say Hello is asked for its first stream in the form of draft 001;
one of a later release refuses that, and is asked again. A manager opens a lost connection again
under its name, so what was found out spares the next connection the refusal. A producer that hangs
up instead of refusing is found out by the connections that follow.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

#: Most names that are remembered: more than a node has peers and buckets.
_MOST_NAMES: Final = 1024
#: Connections in a row that were lost with the first request unanswered, after which the next one
#: begins with the other form. One can be lost for any reason.
_MOST_UNANSWERED: Final = 3


class PeerDialects:
    """What is known of producers that do not say Hello."""

    def __init__(self) -> None:
        #: By name whether the producer negotiates, and how many requests it left unanswered.
        self._known: OrderedDict[str, tuple[bool, int]] = OrderedDict()

    def negotiates(self, name: str) -> bool:
        """Whether the first request on a connection is to have the form of today."""
        return self._known.get(name, (False, 0))[0]

    def answered(self, name: str, *, negotiates: bool) -> None:
        """A producer has accepted the form of a request, one of today or of draft 001."""
        self._note(name, negotiates, 0)

    def unanswered(self, name: str, *, negotiates: bool) -> None:
        """A connection was lost before the first request was answered."""
        times = self._known.get(name, (negotiates, 0))[1] + 1
        if times >= _MOST_UNANSWERED:
            negotiates, times = not negotiates, 0
        self._note(name, negotiates, times)

    def _note(self, name: str, negotiates: bool, unanswered: int) -> None:
        self._known[name] = negotiates, unanswered
        self._known.move_to_end(name)
        if len(self._known) > _MOST_NAMES:
            self._known.popitem(last=False)
