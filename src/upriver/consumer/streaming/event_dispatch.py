"""Applies what connections report to the readers of their vbuckets, and delivers events in order.

This is where the rows of all sessions arrive. Streams that end, and the streams of a connection
that is lost, are requested again by the engine, or end reading with an error. No I/O.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from ...errors import (
    InternalError,
    RemoteProtocolError,
    RollbackRequired,
    Status,
    StatusError,
    StreamEnded,
    StreamRuleBroken,
    UpriverError,
)
from ...model import NO_END, StreamEndReason
from ...session.consumer_events import (
    Event,
    Flushed,
    MapPushed,
    RollbackReason,
    RolledBack,
    Rows,
    StateAsked,
    StreamFinished,
    StreamOpened,
    StreamRefused,
    SystemHappened,
)
from ...session.consumer_session import ConsumerSession
from ...session.dcp_open import denied
from ...wire import messages as m
from ..consumer_settings import ConsumerSettings, RollbackPolicy
from ..transport.async_connection import AsyncConnection
from ..transport.async_pool import AsyncNodes
from ..transport.background_errors import as_upriver_error
from .inbox import Delivery
from .vbucket_fetch_state import VBucketFetchState

_log = logging.getLogger(__name__)

#: Stream end reasons after which the stream is requested again, from the same or another node.
_REOPENED: Final = frozenset(
    {
        StreamEndReason.OK,  # ended although no end seqno was requested
        StreamEndReason.CLOSED,
        StreamEndReason.STATE_CHANGED,
        StreamEndReason.DISCONNECTED,
        StreamEndReason.TOO_SLOW,
        StreamEndReason.BACKFILL_FAILED,
        StreamEndReason.ROLLBACK,
    }
)


#: Reading fails after this many protocol violations with no rows received in between.
_MOST_BROKEN_IN_A_ROW: Final = 8


class EventDispatch:
    """Owner of all connections that carry sessions; shares readers and sessions with the engine."""

    def __init__(
        self,
        readers: Mapping[int, VBucketFetchState],
        sessions: dict[AsyncConnection, ConsumerSession],
        nodes: AsyncNodes,
        settings: ConsumerSettings,
        *,
        deliver: Callable[[Delivery], None],
        fail: Callable[[UpriverError], None],
        wake: Callable[[], None],
        warn: Callable[..., None],
    ) -> None:
        self._readers = readers
        self._sessions = sessions
        self._nodes = nodes
        self._topology = nodes.topology
        self._rollback = settings.rollback
        #: Seconds for which a stream stays open that is of use although it brings nothing.
        self._steady = settings.retry_most
        self._deliver = deliver
        self._fail = fail
        self._wake = wake
        self._warn = warn
        #: Protocol violations with no rows received in between.
        self._broken_in_a_row = 0
        #: Event counters: lost connections, rollbacks by reason, broken protocol rules by name.
        self.counts: Counter[str] = Counter()

    def on_events(self, connection: AsyncConnection, events: list[Event]) -> None:
        """Applies the events of a session; an exception ends reading with that error."""
        try:
            for event in events:
                if isinstance(event, Rows):
                    self._broken_in_a_row = 0
                    self._deliver(Delivery(event, connection))
                elif isinstance(event, StreamFinished):
                    self.finished(event)
                elif isinstance(event, StreamRefused):
                    self._refused(connection, event)
                elif isinstance(event, RolledBack):
                    self._rolled_back(event)
                elif isinstance(event, MapPushed):
                    self._topology.map_is_old = True
                    self._wake()
                elif isinstance(event, StateAsked):
                    self._sessions[connection].confirm_state(event.vbucket)
                    connection.flush()
                    self._deliver(Delivery(event))
                else:
                    self._note(event)
                    self._deliver(Delivery(event))
        except Exception as fault:
            self._fail(as_upriver_error(fault))

    def on_lost(self, connection: AsyncConnection) -> None:
        """Keeps the positions that its vbuckets have reached; their next streams begin there."""
        try:
            self._leave(connection)
        except Exception as fault:
            self._fail(as_upriver_error(fault))

    def _leave(self, connection: AsyncConnection) -> None:
        session = self._sessions.pop(connection)
        self._nodes.forget(connection)
        error = connection.lost
        assert error is not None
        self.counts["connections lost"] += 1
        if isinstance(error, InternalError):
            self._fail(error)
        if isinstance(error, RemoteProtocolError):
            self._broken_in_a_row += 1
            rule = error.rule if isinstance(error, StreamRuleBroken) else "decoding"
            self.counts[f"broken rule: {rule}"] += 1
            if self._broken_in_a_row >= _MOST_BROKEN_IN_A_ROW:
                self._fail(error)
        now = self._topology.clock()
        backoff = self._topology.backoff(connection.address)
        left = [self._readers[vbucket] for vbucket in session.vbuckets]
        for reader in left:
            reader.position = session.position(reader.vbucket)
            if reader.leave(now, error, self._steady):
                backoff.reset()
        pause = backoff.next_pause()
        for reader in left:
            reader.not_before = now + pause
        self._warn(connection.address, "%s; trying again in %.2f s", error, pause)
        self._topology.map_is_old = True
        self._wake()

    def _note(self, event: Event) -> None:
        if isinstance(event, StreamOpened):
            self._readers[event.vbucket].flowed = True
        elif isinstance(event, Flushed):
            self.counts[f"rollback: {RollbackReason.FLUSHED.value}"] += 1
        elif isinstance(event, SystemHappened) and not isinstance(event.event, m.SystemEvent):
            topology = self._topology
            topology.collections = topology.collections.with_event(event.event)

    def _rolled_back(self, event: RolledBack) -> None:
        if event.refused:
            reader = self._readers[event.vbucket]
            reader.carrier = None
            self._wake()
            keeps_to_one = self._rollback is RollbackPolicy.STOP
            if keeps_to_one and not len(event.served) and not reader.sent_back:
                reader.sent_back = True  # request it once more, after asking for the failover log
                return
            reader.done = True
        self.counts[f"rollback: {event.reason.value}"] += 1
        if self._rollback is RollbackPolicy.FAIL:
            reason = event.reason.value
            self._fail(RollbackRequired(vbucket=event.vbucket, seqno=event.to.seqno, reason=reason))
        else:
            self._deliver(Delivery(event))

    def finished(self, event: StreamFinished) -> None:
        reader = self._readers[event.vbucket]
        reader.position = event.position
        now = self._topology.clock()
        ended = event.reason.name.lower().replace("_", " ")
        reader.leave(now, StreamEnded(vbucket=event.vbucket, reason=ended), self._steady)
        self._wake()
        at_its_end = event.reason is StreamEndReason.OK and reader.end != NO_END
        if at_its_end or event.reason is StreamEndReason.FILTER_EMPTY:
            reader.done = True
            self._deliver(Delivery(event))
        elif event.reason in _REOPENED:
            self.counts[f"stream ended: {ended}"] += 1
            changed = event.reason is StreamEndReason.STATE_CHANGED
            reader.unconfirmed = changed and not self._topology.map_is_assumed
            reader.put_off(now)
            self._topology.map_is_old = True
        else:
            self._fail(StreamEnded(vbucket=event.vbucket, reason=ended))

    def _is_behind(self, event: StreamRefused) -> bool:
        """Whether a node refused a collection only because its manifest is older than ours."""
        if event.status not in (Status.UNKNOWN_COLLECTION, Status.UNKNOWN_SCOPE):
            return False
        try:
            return int(json.loads(event.value)["manifest_uid"], 16) < self._topology.collections.uid
        except (ValueError, KeyError, TypeError, RecursionError):
            return False

    def _refused(self, connection: AsyncConnection, event: StreamRefused) -> None:
        reader = self._readers[event.vbucket]
        reader.position = event.position
        now = self._topology.clock()
        error = StatusError(
            event.status,
            request=f"the stream of vbucket {event.vbucket}",
            context=denied(event.status),
        )
        reader.leave(now, error, self._steady)
        later = event.status.retriable or event.status is Status.EXISTS
        if not later and not self._is_behind(event):
            self._fail(error)
            return
        reader.put_off(now)
        self._wake()
        if event.status is Status.NOT_MY_VBUCKET:
            self._topology.map_is_old = True
            if event.value:
                try:
                    self._topology.learn_map(event.value, connection.address)
                except RemoteProtocolError as problem:
                    _log.warning("%s", problem)
