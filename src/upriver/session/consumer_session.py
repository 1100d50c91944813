"""Consumer session: the sans-I/O protocol state of one connection to a producer node.

It takes received bytes and returns events. It takes commands and returns bytes to send. Each
stream has a state of its own, by the table `CONSUMER` in `stream_states`.

In drafts 002 and 000 a producer accepts a stream without its failover log. So the session always
requests the log before the stream, and again while changes flow (CHECKING). If a failover
happened in between, the session fails and the connection must be opened again.

Every rule of the protocol is checked before a row is emitted. The first broken rule ends the
session (`broken`); everything before it is delivered. A message of a stream that the session does
not have is refused (`stray_messages`). The session knows neither sockets nor clocks, and nothing of
other nodes.
"""

from __future__ import annotations

from typing import Any, Final

import numpy.typing as npt

from ..errors import DecodeError, RemoteProtocolError, Status
from ..model import NO_END, FailoverLog, StreamEndReason, StreamOffset
from ..wire import kv_messages as kv
from ..wire import messages as m
from ..wire.dialects import Dialect, SnapshotStyle
from ..wire.protocol_enums import Command
from .consumer_events import (
    Answered,
    Event,
    MapPushed,
    RollbackReason,
    RolledBack,
    StreamFinished,
    StreamOpened,
    StreamRefused,
)
from .inbound_row_checks import RowCheck
from .inbound_rows import Unreadable, inbound_for
from .inbound_stream_messages import InboundStreamMessages
from .requested_stream import RequestedStream, StreamOptions, broken_rule
from .rollback_point import agree, lowered
from .stray_messages import StrayMessages
from .stream_position import Position, PositionTracker
from .stream_states import ConsumerEvent
from .stream_states import ConsumerState as State

#: Lower opaques belong to streams. Other requests on the connection use opaques from here on.
FIRST_OTHER_OPAQUE: Final = 0x4000_0000
#: Packets of one connection of draft 002 that may be unreadable: each costs a stream.
_MOST_UNREADABLE: Final = 8


class ConsumerSession:
    """The streams of one open connection."""

    def __init__(
        self,
        dialect: Dialect,
        *,
        refuse_rollback: bool = False,
        sync_writes: bool = False,
        out_of_order: bool = False,
        purge_seqnos: bool = False,
    ) -> None:
        """The keyword arguments after ``refuse_rollback`` were negotiated: see `Opened`."""
        self._dialect = dialect
        self._names_purge_seqnos = purge_seqnos
        self._refuse_rollback = refuse_rollback
        #: The receive buffer and decoder. Bytes are received into `Inbound.space`.
        self.inbound = inbound_for(dialect, self._vbucket_of)
        self._outbox: list[bytes] = []
        self._streams: dict[int, RequestedStream] = {}
        self._vbuckets: dict[int, int] = {}
        self._next_opaque = 1
        self._messages = InboundStreamMessages(
            sync_writes=sync_writes, out_of_order=out_of_order, refuse_rollback=refuse_rollback
        )
        self._strays = StrayMessages(dialect)
        self._unreadable_packets = 0
        #: Counted bytes of packets that no event carries. `take_freed` returns them, so that they
        #: are acknowledged.
        self._freed = 0
        #: Increases with every chunk of complete packets. Received bytes alone do not prove that
        #: the producer works.
        self.packets_taken = 0
        #: The rule that the producer broke. If it is set, nothing more is read.
        self.broken: RemoteProtocolError | None = None

    # ---- commands ------------------------------------------------------------------------

    def open(self, vbucket: int, position: Position, options: StreamOptions | None = None) -> None:
        """Requests the changes of a vbucket after a position."""
        if vbucket in self._vbuckets:
            raise ValueError(f"there is a stream of vbucket {vbucket}")
        opaque, self._next_opaque = self._next_opaque, self._next_opaque + 1
        stream = RequestedStream(vbucket, opaque, position, options or StreamOptions())
        self._streams[opaque] = stream
        self._vbuckets[vbucket] = opaque
        if (
            position.seqno and stream.options.asks_log
        ) or not self._dialect.accepts_with_failover_log:
            self._ask_log(stream, ConsumerEvent.ASK_LOG)
        else:
            self._request(stream)

    def close(self, vbucket: int) -> None:
        """Closes a stream. Packets of it that are still in transit are dropped.

        Drafts 002 and 000 have no message for that: there the next packet is refused, at which the
        producer ends the stream.
        """
        opaque = self._vbuckets.pop(vbucket)
        del self._streams[opaque]
        self._strays.closed(opaque)
        if self._dialect.opens_connections:
            self.send(m.CloseStream(vbucket=vbucket, opaque=opaque))

    def confirm_state(self, vbucket: int) -> None:
        """Confirms that the vbucket has the state that `StateAsked` named."""
        opaque = self._vbuckets.get(vbucket)
        if opaque is not None and self._dialect.acknowledges_state:
            self.send(m.PlainResponse(command=Command.SET_STREAM_STATE, opaque=opaque))

    def acknowledge(self, size: int) -> None:
        """Sends a flow-control acknowledgement, so that the producer can send more."""
        self.send(m.BufferAck(size=size))

    def send(self, *messages: m.Message) -> None:
        """Queues messages. Requests of the caller must not use the opaque of a stream."""
        self._outbox += map(self._dialect.encode, messages)

    def data_to_send(self) -> bytes:
        data, self._outbox = b"".join(self._outbox), []
        return data

    def take_freed(self) -> int:
        """Returns the counted bytes since the last call that belong to no event."""
        freed, self._freed = self._freed, 0
        return freed

    @property
    def vbuckets(self) -> frozenset[int]:
        """The vbuckets with a stream, in any state."""
        return frozenset(self._vbuckets)

    def is_open(self, vbucket: int) -> bool:
        """Whether the producer has accepted the stream of a vbucket."""
        opaque = self._vbuckets.get(vbucket)
        return opaque is not None and self._streams[opaque].flowing

    def awaits_answer(self, vbucket: int) -> bool:
        """Whether the session still waits for a response about a vbucket's stream."""
        return self._streams[self._vbuckets[vbucket]].state is not State.OPEN

    def opaque(self, vbucket: int) -> int:
        """Returns the opaque that the messages of a vbucket's stream carry."""
        return self._vbuckets[vbucket]

    def position(self, vbucket: int) -> Position:
        """Returns the position up to which a vbucket's stream was received."""
        return self._streams[self._vbuckets[vbucket]].tracker.position()

    def seqno(self, vbucket: int) -> int:
        """Returns only the seqno of `position`, which is cheap to call often."""
        return self._streams[self._vbuckets[vbucket]].tracker.seqno

    def heard(self, vbucket: int) -> int:
        """Returns a counter that changes whenever something arrives on a vbucket's stream."""
        return self._streams[self._vbuckets[vbucket]].heard

    # ---- bytes in ------------------------------------------------------------------------

    def received(self, size: int) -> list[Event]:
        """Processes ``size`` bytes that were written to ``inbound.space()``.

        Rows and other messages are processed in order, and what precedes a broken rule is emitted.
        """
        events: list[Event] = []
        if self.broken is not None:
            return events
        try:
            for chunk in self.inbound.wrote(size):
                self.packets_taken += 1
                self._freed += chunk.others_counted
                rows = RowCheck(chunk, self._streams, self._refuse_rows, events)
                try:
                    for rows_before, message in chunk.others:
                        rows.check_until(rows_before)
                        self._handle(message, rows)
                    rows.check_until(chunk.batch.num_rows)
                finally:
                    self._freed += rows.finish()
                    for stream in rows.owed:
                        ack = m.PlainResponse(command=Command.SNAPSHOT_MARKER, opaque=stream.opaque)
                        self.send(ack)
        except (DecodeError, RemoteProtocolError) as broken:
            self.broken = broken
        return events

    def feed(self, data: bytes | memoryview) -> list[Event]:
        """Processes received bytes from another buffer."""
        events: list[Event] = []
        while data:
            space = self.inbound.space()
            size = min(len(space), len(data))
            space[:size] = data[:size]
            space.release()
            events += self.received(size)
            data = data[size:]
        return events

    def _handle(self, message: m.Message, rows: RowCheck) -> None:
        """Handles a message that is not a row, and follows the rows checked so far."""
        events = rows.events
        if isinstance(message, m.StreamNoop):
            self.send(m.PlainResponse(command=Command.STREAM_NOOP, opaque=message.opaque))
        elif isinstance(message, m.Response):
            self._answer(message, events)
        elif isinstance(message, kv.ClustermapChanged):
            events.append(MapPushed(message.config))
        elif isinstance(message, m.UnknownCommand) and message.from_server:
            pass  # a newer server-to-client command, which does not concern streams
        elif isinstance(message, Unreadable):
            self._unreadable(message, rows)
        elif isinstance(message, m.RequestError | m.ResponseError):
            self._refused(message, _status_in(message.text), b"", events)
        else:
            stream = self._streams.get(message.opaque)
            if stream is not None:
                reason = self._messages.apply(stream, message, rows)
                if reason is not None:
                    rows.flush()
                    self._forget(stream)
                    events.append(StreamFinished(stream.vbucket, reason, stream.tracker.position()))
                elif self._refuse_rollback and isinstance(message, m.FlushStream):
                    self.close(stream.vbucket)
            else:
                self._outbox += self._strays.message(message)

    def _unreadable(self, packet: Unreadable, rows: RowCheck) -> None:
        """Says that a packet cannot be read, and closes its stream: it may have been a change."""
        self._unreadable_packets += 1
        if self._unreadable_packets > _MOST_UNREADABLE:
            raise packet.problem
        self.send(m.ResponseError(opaque=packet.opaque, text=str(packet.problem)))
        stream = self._streams.get(packet.opaque)
        if stream is not None:
            rows.flush()
            self._forget(stream)
            self._strays.closed(stream.opaque)
            position = stream.tracker.position()
            rows.events.append(StreamFinished(stream.vbucket, StreamEndReason.CLOSED, position))

    def _refuse_rows(self, opaque: int, ops: npt.NDArray[Any]) -> None:
        self._outbox += self._strays.rows(opaque, ops)

    def _vbucket_of(self, opaque: int) -> int:
        stream = self._streams.get(opaque)
        return 0 if stream is None else stream.vbucket

    # ---- answers -------------------------------------------------------------------------

    def _answer(self, answer: m.Response, events: list[Event]) -> None:
        stream = self._streams.get(answer.opaque)
        if stream is None:
            events.append(Answered(answer))
        elif isinstance(answer, m.FailoverLogResponse):
            self._learn_log(stream, FailoverLog(answer.failover_log), events)
        elif answer.command in (Command.FAILOVER_LOG, Command.GET_FAILOVER_LOG):
            self._refused(answer, answer.status, _value(answer), events)
        elif stream.state is not State.REQUESTED:
            self._answer_for_log(stream, answer, events)
        elif isinstance(answer, m.StreamAccepted):
            self._accepted(stream, FailoverLog(answer.failover_log), events)
        elif isinstance(answer, m.StreamRollback):
            self._go_back(stream, answer.seqno, events)
        elif answer.status is Status.NOT_FOUND and stream.tracker.seqno:
            self._go_back(stream, 0, events)  # draft 001 answers so if it lacks the branch
        else:
            self._refused(answer, answer.status, _value(answer), events)

    def _answer_for_log(
        self, stream: RequestedStream, answer: m.Response, events: list[Event]
    ) -> None:
        """Handles a response to a failover log request that does not name its request.

        Draft 002 omits the command. In the other drafts such a response breaks a rule.
        """
        if self._dialect.has_memcached_header or stream.state is State.OPEN:
            raise broken_rule("answer", stream.vbucket, f"{answer.command} was not asked")
        if isinstance(answer, m.StreamAccepted):
            self._learn_log(stream, FailoverLog(()), events)  # the form of an empty log
        else:
            self._refused(answer, answer.status, _value(answer), events)

    def _learn_log(self, stream: RequestedStream, log: FailoverLog, events: list[Event]) -> None:
        log = log.newest_first()
        if stream.state is State.ASKED_LOG:
            stream.served = log
            if self._left_behind(stream, log, events):
                return
            position, reason = agree(stream.tracker.position(), log)
            if reason is None:
                stream.tracker = PositionTracker(position)
            elif not self._roll_back(stream, position, reason, events):
                return
            self._request(stream)
        elif stream.state is not State.CHECKING:
            raise broken_rule("answer", stream.vbucket, "a failover log that was not asked for")
        elif log == stream.served:
            stream.move(ConsumerEvent.LOG_UNCHANGED)
        else:
            # The changes may belong to either history, and these drafts cannot close a stream.
            detail = "the history changed while the stream was opened"
            raise broken_rule("branch", stream.vbucket, detail)

    def _accepted(self, stream: RequestedStream, log: FailoverLog, events: list[Event]) -> None:
        if not self._dialect.accepts_with_failover_log:
            self._opened(stream, stream.served, events)
            self._ask_log(stream, ConsumerEvent.CHECK_LOG)
            return
        stream.served = log = log.newest_first()
        if self._left_behind(stream, log, events):
            return
        if stream.skip_until:
            # The producer accepted a boundary, but rows read beyond it may be of a lost branch.
            position, reason = agree(stream.tracker.position(), log)
            if reason is not None:
                if not self._roll_back(stream, position, reason, events):
                    return
                stream.skip_until = 0
        self._opened(stream, log, events)

    def _left_behind(self, stream: RequestedStream, log: FailoverLog, events: list[Event]) -> bool:
        """Closes a stream with ``same_branch`` if the newest branch is another; returns whether."""
        wanted = stream.tracker.vbuuid
        keeps_to_one = stream.options.same_branch and wanted != 0
        if not keeps_to_one or not len(log) or log.newest.vbuuid == wanted:
            return False
        known = log.branch_end(wanted, NO_END) is not None
        reason = RollbackReason.DIVERGED if known else RollbackReason.UNKNOWN_BRANCH
        position = stream.tracker.position()
        events.append(
            RolledBack(stream.vbucket, position.seqno, position, reason, refused=True, served=log)
        )
        self.close(stream.vbucket)
        return True

    def _opened(self, stream: RequestedStream, log: FailoverLog, events: list[Event]) -> None:
        stream.move(ConsumerEvent.ACCEPTED)
        stream.flowing = True
        if self._dialect.snapshot_style is SnapshotStyle.BARE_MARKER:
            # Servers of draft 001 send a backfill first, then the marker that closes it.
            stream.open_snapshot()
            stream.implied = True
        stream.tracker.follow(log)
        events.append(StreamOpened(stream.vbucket, log))

    def _go_back(self, stream: RequestedStream, seqno: int, events: list[Event]) -> None:
        """Handles a rollback response: the producer asks for a lower seqno than the logs gave."""
        if not stream.tracker.seqno:
            detail = "there is nothing before the beginning to go back to"
            raise broken_rule("rollback", stream.vbucket, detail)
        if not stream.options.asks_log:
            to = Position(StreamOffset.at(stream.tracker.vbuuid, seqno))
            reason = RollbackReason.DIVERGED if seqno else RollbackReason.UNKNOWN_BRANCH
            self._forget(stream)
            events.append(RolledBack(stream.vbucket, stream.tracker.seqno, to, reason, True))
            return
        position, reason = lowered(stream.tracker.position(), seqno)
        if self._roll_back(stream, position, reason, events):
            if position.seqno:
                self._ask_log(stream, ConsumerEvent.ASK_LOG)  # another failover may have happened
            else:
                self._request(stream)

    def _roll_back(
        self,
        stream: RequestedStream,
        position: Position,
        reason: RollbackReason,
        events: list[Event],
    ) -> bool:
        """Emits a rollback event. Returns False, and closes the stream, if rollback is refused."""
        refused = self._refuse_rollback
        from_seqno = stream.tracker.seqno
        events.append(
            RolledBack(stream.vbucket, from_seqno, position, reason, refused, served=stream.served)
        )
        if refused:
            self.close(stream.vbucket)
            return False
        stream.tracker = PositionTracker(position)
        return True

    def _refused(
        self, message: m.Message, status: Status, value: bytes, events: list[Event]
    ) -> None:
        stream = self._streams.get(message.opaque)
        if stream is not None:
            self._forget(stream)
            position = stream.tracker.position()
            events.append(StreamRefused(stream.vbucket, status, position, value))

    # ---- requests ------------------------------------------------------------------------

    def _ask_log(self, stream: RequestedStream, why: ConsumerEvent) -> None:
        stream.move(why)
        self.send(m.FailoverLogRequest(vbucket=stream.vbucket, opaque=stream.opaque))

    def _request(self, stream: RequestedStream) -> None:
        self.send(stream.request(self._dialect, names_purge_seqno=self._names_purge_seqnos))

    def _forget(self, stream: RequestedStream) -> None:
        del self._streams[stream.opaque]
        del self._vbuckets[stream.vbucket]


def _status_in(text: str) -> Status:
    """Returns the status of a draft 002 refusal, from its text.

    Draft 002 has no status codes; Upriver's own refusals begin with the name of the status.
    """
    return Status.__members__.get(text.partition(":")[0], Status.INVALID)


def _value(answer: m.Response) -> bytes:
    return answer.value if isinstance(answer, m.PlainResponse) else b""
