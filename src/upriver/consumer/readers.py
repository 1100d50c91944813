"""One vbucket's reading across connections: where it is, whether it is carried, when to try again.

It knows no sockets; the engine moves readers between connections.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

from ..errors import UpriverError
from ..session.position import Position
from .node import NodeConnection

__all__ = ["Backoff", "Reader"]

_GROWTH: Final = 2.0


@dataclass(slots=True)
class Backoff:
    """Pauses that grow, shortened at random so that many readers do not come at once."""

    first: float
    most: float
    attempts: int = 0

    def next_pause(self) -> float:
        longest = min(self.most, self.first * _GROWTH ** min(self.attempts, 32))
        self.attempts += 1
        return random.uniform(longest / 2, longest)

    def reset(self) -> None:
        self.attempts = 0


@dataclass(slots=True)
class Reader:
    """The reading of one vbucket."""

    vbucket: int
    #: How far it was received; a session that carries it knows better.
    position: Position
    end: int
    backoff: Backoff
    #: Who carries it now.
    carrier: NodeConnection | None = None
    done: bool = False
    #: Whether it was sent back without a word about the history that is served.
    sent_back: bool = False
    #: Not to be tried again before, on the loop's clock.
    not_before: float = 0.0
    #: When it was last asked for, on the loop's clock, and whether that was granted.
    asked_at: float = 0.0
    flowed: bool = False
    #: Since when its changes do not flow, on the loop's clock, however often it was asked for.
    idle_since: float = 0.0
    trouble: UpriverError | None = field(default=None, repr=False)

    @property
    def waits(self) -> bool:
        return self.carrier is None and not self.done
