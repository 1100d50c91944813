"""Keepalive: the producer's noops, and the timeouts of both sides.

Time is an argument; this module reads no clock.
"""

from __future__ import annotations

from typing import Final

#: Seconds between noops unless the consumer sets another interval.
DEFAULT_INTERVAL: Final = 20.0

#: The shortest silence of a peer after which a producer closes the connection, however short the
#: noop interval is.
IDLE_TIMEOUT: Final = 360.0

#: The first opaque of noops. They count up from here, so that no stream has the same opaque.
FIRST_OPAQUE: Final = 10_000_001
_OPAQUES: Final = 2**32


class ProducerKeepalive:
    """The producer's keepalive: sends noops, and closes a connection that stays silent.

    quiet ──interval passed──> asked ──answer with its opaque──> quiet
                                 └──nothing for max(2 intervals, idle timeout)──> gone
    """

    __slots__ = ("_asked_at", "_heard_at", "_next", "_open", "enabled", "idle_timeout", "interval")

    def __init__(self, *, now: float, idle_timeout: float = IDLE_TIMEOUT) -> None:
        #: Disabled until the consumer enables it with a control.
        self.enabled = False
        self.interval = DEFAULT_INTERVAL
        self.idle_timeout = idle_timeout
        self._asked_at = now
        self._heard_at = now
        self._next = FIRST_OPAQUE
        self._open: int | None = None

    def heard(self, now: float) -> None:
        """Notes that bytes arrived from the peer."""
        self._heard_at = now

    def due(self, now: float) -> int | None:
        """Returns the opaque of a noop to send now; None if none is due or one is unanswered."""
        if not self.enabled or self._open is not None or now < self._asked_at + self.interval:
            return None
        self._asked_at = now
        self._open = self._next
        self._next = (self._next + 1) % _OPAQUES
        return self._open

    def answered(self, opaque: int) -> bool:
        """Takes a noop response. False means that its opaque is unknown: close the connection."""
        if opaque != self._open:
            return False
        self._open = None
        return True

    def is_gone(self, now: float) -> bool:
        """Whether the peer has timed out."""
        return self.enabled and now >= self._heard_at + self._patience

    def next_look(self) -> float:
        """Returns the time at which `due` or `is_gone` must be checked next."""
        if not self.enabled:
            return float("inf")
        gone = self._heard_at + self._patience
        return gone if self._open is not None else min(gone, self._asked_at + self.interval)

    @property
    def _patience(self) -> float:
        return max(2 * self.interval, self.idle_timeout)


class Silence:
    """The consumer's timeout: a producer that sends nothing for two intervals is gone.

    Couchbase servers send noops only if there is a stream, and the old drafts never do. So after
    one silent interval the consumer may have to send a request itself, once per silence.
    """

    __slots__ = ("_asked", "_heard_at", "interval")

    def __init__(self, interval: float, *, now: float) -> None:
        self.interval = interval
        self._heard_at = now
        self._asked = False

    def heard(self, now: float) -> None:
        self._heard_at = now
        self._asked = False

    @property
    def due_at(self) -> float:
        """The time of the next check, if nothing arrives until then."""
        return self._heard_at + (2 * self.interval if self._asked else self.interval)

    def ask_now(self, now: float) -> bool:
        """Whether a request is due. If so it counts as sent: there is one per silence."""
        if self._asked or now < self._heard_at + self.interval:
            return False
        self._asked = True
        return True

    def is_gone(self, now: float) -> bool:
        return now >= self._heard_at + 2 * self.interval
