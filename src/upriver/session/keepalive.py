"""Finding out that a peer is gone: a producer's noops, and both sides' patience.

Time comes as an argument; nothing here knows a clock.
"""

from __future__ import annotations

from typing import Final

__all__ = ["DEFAULT_INTERVAL", "FIRST_OPAQUE", "IDLE_TIMEOUT", "ProducerKeepalive", "Silence"]

#: Seconds between noops unless the consumer asks for others.
DEFAULT_INTERVAL: Final = 20.0

#: A producer drops a peer that has sent nothing for this long, however short its interval.
IDLE_TIMEOUT: Final = 360.0

#: Noops count their opaques up from here, so that they are never taken for a stream's.
FIRST_OPAQUE: Final = 10_000_001
_OPAQUES: Final = 2**32


class ProducerKeepalive:
    """A producer's side: asks in intervals, and gives up a peer that says nothing at all.

    quiet ──interval passed──> asked ──answer with its opaque──> quiet
                                 └──nothing for max(2 intervals, idle timeout)──> gone
    """

    __slots__ = ("_asked_at", "_heard_at", "_next", "_open", "enabled", "idle_timeout", "interval")

    def __init__(self, *, now: float, idle_timeout: float = IDLE_TIMEOUT) -> None:
        #: Off until the consumer asks for it.
        self.enabled = False
        self.interval = DEFAULT_INTERVAL
        self.idle_timeout = idle_timeout
        self._asked_at = now
        self._heard_at = now
        self._next = FIRST_OPAQUE
        self._open: int | None = None

    def heard(self, now: float) -> None:
        """Anything came from the peer."""
        self._heard_at = now

    def due(self, now: float) -> int | None:
        """The opaque of a noop to send now, if it is time for one and none is unanswered."""
        if not self.enabled or self._open is not None or now - self._asked_at < self.interval:
            return None
        self._asked_at = now
        self._open = self._next
        self._next = (self._next + 1) % _OPAQUES
        return self._open

    def answered(self, opaque: int) -> bool:
        """Takes an answer; false if nobody asked that, which ends the connection."""
        if opaque != self._open:
            return False
        self._open = None
        return True

    def is_gone(self, now: float) -> bool:
        """Whether to give the peer up."""
        patience = max(2 * self.interval, self.idle_timeout)
        return self.enabled and now - self._heard_at >= patience


class Silence:
    """A consumer's side: a producer that sends nothing for two intervals is gone.

    Real servers ask for signs of life only where there is a stream, so a consumer without one has
    to ask itself.
    """

    __slots__ = ("_asked", "_heard_at", "interval")

    def __init__(self, interval: float, *, now: float) -> None:
        self.interval = interval
        self._heard_at = now
        self._asked = False

    def heard(self, now: float) -> None:
        self._heard_at = now
        self._asked = False

    def ask_now(self, now: float) -> bool:
        """Whether a question is due, which then counts as asked: one in each silence."""
        if self._asked or now - self._heard_at < self.interval:
            return False
        self._asked = True
        return True

    def is_gone(self, now: float) -> bool:
        return now - self._heard_at >= 2 * self.interval
