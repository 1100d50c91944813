"""Watchdog: detects streams on which nothing arrives although something should.

Two kinds of silence are faults: a stream request without an answer, and a stream with an end seqno
that makes no progress before reaching it. In the second case the node may have announced a seqno
that it does not have, may have lost it in a failover, or may have dropped the stream. The vbucket's
high seqno decides which. A stream without an end seqno may be silent for as long as nothing is
written; there only the connection's keepalive counts (`async_connection`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

from ...errors import ConnectionFailed
from ...model import NO_END, StreamEndReason
from ...session.consumer_events import StreamFinished
from ...session.consumer_session import ConsumerSession
from ..consumer_settings import ConsumerSettings
from ..transport.async_connection import AsyncConnection
from .vbucket_fetch_state import VBucketFetchState


class StreamWatchdog:
    """Checks the readers of an engine; calls ``finished`` for streams that reached their end."""

    def __init__(
        self,
        sessions: Mapping[AsyncConnection, ConsumerSession],
        settings: ConsumerSettings,
        high_seqnos: Callable[[], Awaitable[dict[int, int]]],
        finished: Callable[[StreamFinished], None],
    ) -> None:
        self._sessions = sessions
        self._patience = settings.answer_timeout
        self._until_now = settings.end == "now"
        self._high_seqnos = high_seqnos
        self._finished = finished

    def leave_unresponsive(
        self, readers: Iterable[VBucketFetchState], now: float
    ) -> Iterator[float]:
        """Closes connections with an overdue stream request; yields the time left for others."""
        for reader in readers:
            node = reader.carrier
            if node is None or not node.listens:
                continue
            if not self._sessions[node].awaits_answer(reader.vbucket):
                continue
            left = reader.asked_at + self._patience - now
            if left > 0:
                yield left
                continue
            asked = f"the stream request of vbucket {reader.vbucket}"
            problem = f"did not answer {asked} for {self._patience:g} s"
            node.leave(ConnectionFailed(problem, "is it overloaded?"))

    def stalled(
        self, readers: Iterable[VBucketFetchState], now: float
    ) -> tuple[list[VBucketFetchState], list[float]]:
        """Readers that make no progress before their end, and seconds until the next check."""
        stalled, pauses = [], []
        for reader in readers:
            node = reader.carrier
            if node is None or reader.end == NO_END:
                continue
            session = self._sessions[node]
            if session.awaits_answer(reader.vbucket) or node.held or not node.listens:
                reader.seen = -1  # no progress is expected: unanswered, or the application is slow
                pauses.append(self._patience)
                continue
            left = reader.stands_still(session.heard(reader.vbucket), now, self._patience)
            if left > 0:
                pauses.append(left)
            else:
                stalled.append(reader)
                reader.stalls += 1
                reader.seen = -1
                pauses.append(self._patience)
        return stalled, pauses

    async def ask_about(self, stalled: Iterable[VBucketFetchState]) -> None:
        """Finishes stalled streams that are complete; closes connections that withhold changes."""
        highs = await self._high_seqnos()
        for reader in stalled:
            node = reader.carrier
            if node is None:
                continue
            session = self._sessions[node]
            seqno, high = session.seqno(reader.vbucket), highs.get(reader.vbucket)
            nothing_more = self._until_now and high is not None and high <= seqno
            if seqno >= reader.end or nothing_more:
                position = session.position(reader.vbucket)
                session.close(reader.vbucket)
                node.flush()
                self._finished(StreamFinished(reader.vbucket, StreamEndReason.OK, position))
            elif high is not None and high > seqno:
                reader.flowed = seqno != reader.asked_seqno  # it was not of use for being open
                problem = f"sends nothing of vbucket {reader.vbucket} after seqno {seqno}"
                node.leave(ConnectionFailed(f"{problem}, though it has {high}", "see its log"))
