"""State of one vbucket in the engine: position, current connection, time of the next attempt.

The state outlives connections: the engine moves readers from one connection to another. This module
does no I/O. Times are on the event loop's clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import UpriverError
from ...session.stream_position import Position
from ..topology.cluster_view import Backoff
from ..transport.async_connection import AsyncConnection


@dataclass(slots=True)
class VBucketFetchState:
    """Position, connection and retry state of one vbucket."""

    vbucket: int
    #: The last known position. While a session streams the vbucket, the session's is newer.
    position: Position
    end: int
    backoff: Backoff
    #: The connection on which its stream is open or requested.
    carrier: AsyncConnection | None = None
    done: bool = False
    #: Whether a rollback was refused once without a failover log of the served history.
    sent_back: bool = False
    #: Whether the stream ended because the vbucket changed its state on the node. The cluster map
    #: and the owner's vbucket state must then be confirmed before the next request, because old
    #: servers accept a stream of a dead vbucket and never send anything on it.
    unconfirmed: bool = False
    #: Earliest time of the next stream request.
    not_before: float = 0.0
    #: Time and seqno of the last stream request, and whether the node accepted it.
    asked_at: float = 0.0
    asked_seqno: int = 0
    flowed: bool = False
    #: Whether the last stream that a node accepted was of no use.
    futile: bool = False
    #: Since when the vbucket has had no stream of use, over all attempts.
    idle_since: float = 0.0
    #: Why the last stream or attempt failed; raised when the engine gives up.
    trouble: UpriverError | None = None
    #: For the watchdog: the session's progress at the last check, since when it has not changed,
    #: and how often the stream has stalled.
    seen: int = -1
    seen_at: float = 0.0
    stalls: int = 0

    @property
    def waits(self) -> bool:
        """Whether the vbucket needs a stream."""
        return self.carrier is None and not self.done

    def put_off(self, now: float) -> None:
        self.not_before = now + self.backoff.next_pause()

    def asked(self, now: float, node: AsyncConnection) -> None:
        """The stream was requested from a node."""
        self.carrier, self.asked_at, self.asked_seqno = node, now, self.position.seqno

    def leave(self, now: float, trouble: UpriverError, steady: float) -> bool:
        """Detaches the vbucket from its connection; returns whether its stream was of use.

        It was if it has brought anything, or stayed open for ``steady`` seconds: that a node
        accepts streams over and over is no progress.
        """
        self.carrier = None
        self.trouble = trouble
        moved = self.position.seqno != self.asked_seqno
        was_of_use = self.flowed and (moved or now - self.asked_at >= steady)
        if self.flowed:
            self.flowed, self.futile = False, not was_of_use
        if was_of_use:
            self.idle_since = now
            self.backoff.reset()
        return was_of_use

    def stands_still(self, heard: int, now: float, patience: float) -> float:
        """Seconds left before the stream counts as stalled; 0 or less if it has stalled.

        ``patience`` doubles with each stall, so that a slow node is not reconnected over and over.
        """
        if heard != self.seen:
            self.seen, self.seen_at = heard, now
        return self.seen_at + patience * 2.0 ** min(self.stalls, 10) - now
