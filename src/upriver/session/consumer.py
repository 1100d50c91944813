"""A consumer's conversation with one node: bytes in, events out; commands in, bytes out.

Each stream goes its own way:

    open ──from 0──────────────────────────> REQUESTED ──accepted──> OPEN ──end──> gone
      └──else──> ASKED_LOG ──logs agree──────────^ │
                    ^  └──they part: RolledBack────┤
                    └───rollback: RolledBack───────┘

Drafts 002 and 000 accept a stream without saying which history it is of, so they are always asked
before, and once more while it flows (CHECKING): after a failover in between, the conversation must
begin anew.

Every rule that a producer must keep is checked before a row is let through; the first one broken
ends the conversation (`broken`), with everything before it delivered. It knows no socket and no
clock, and nothing of other nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from ..errors import DecodeError, RemoteProtocolError, Status
from ..model import NO_END, FailoverLog, Snapshot, StreamEndReason, StreamOffset
from ..wire import kv
from ..wire import messages as m
from ..wire.dialects import Dcp, Dialect, Draft001, Draft002
from ..wire.names import Command, MarkerFlag, StreamFlag
from .agreement import agree, lowered
from .events import (
    Answered,
    Event,
    Flushed,
    MapPushed,
    RollbackReason,
    RolledBack,
    StateAsked,
    StreamFinished,
    StreamOpened,
    StreamRefused,
    SystemHappened,
)
from .inbound import Chunk, Inbound, inbound_for
from .position import Position, PositionTracker
from .rows import RowCheck, Stream, broken_rule

__all__ = ["ConsumerSession", "StreamOptions"]

#: Opaques below are streams'; whoever asks something else on the connection counts from here.
FIRST_OTHER_OPAQUE: Final = 0x4000_0000

_SYSTEM: Final = (
    m.CollectionCreated,
    m.CollectionDropped,
    m.ScopeCreated,
    m.ScopeDropped,
    m.SystemEvent,
)


class _Phase(Enum):
    ASKED_LOG = auto()
    REQUESTED = auto()
    CHECKING = auto()
    OPEN = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """How a stream is asked for."""

    end: int = NO_END
    flags: StreamFlag = StreamFlag.NONE
    #: A JSON object that chooses collections.
    filter: bytes = b""
    #: Only what belongs to the branch that the position names, even where it has a later one.
    same_branch: bool = False
    #: Ask the producer for its history before a stream from anywhere but the beginning. A reader
    #: that can go back to any seqno by itself need not: it is told where to, as a rollback that is
    #: not carried out (``refused``), and asks for the stream again.
    asks_log: bool = True
    #: Drafts 002 and 000 name the group of readers.
    group: str = "upriver"


class _Conversation(Stream):
    """One stream, and how far the talk about it has come."""

    __slots__ = ("options", "phase", "served")

    def __init__(self, vbucket: int, opaque: int, position: Position, options: StreamOptions):
        super().__init__(vbucket, opaque, PositionTracker(position))
        self.options = options
        self.phase = _Phase.ASKED_LOG
        #: The history that the producer last said it serves.
        self.served = FailoverLog(())


class ConsumerSession:
    """The streams of one connection, from when it is open until it is lost."""

    def __init__(self, dialect: Dialect, *, refuse_rollback: bool = False) -> None:
        self._dialect = dialect
        self._modern = isinstance(dialect, Dcp)
        self._log_comes_apart = not isinstance(dialect, Dcp | Draft001)
        self._refuse_rollback = refuse_rollback
        self._inbound: Inbound = inbound_for(dialect, self._vbucket_of)
        self._outbox: list[bytes] = []
        self._streams: dict[int, _Conversation] = {}
        self._vbuckets: dict[int, int] = {}
        self._next_opaque = 1
        self._rows = RowCheck(self._streams, self._was_a_stream)
        #: Counted bytes of what was not handed out: nobody else will give them back.
        self._freed = 0
        #: The rule that the producer broke; nothing more is read then.
        self.broken: RemoteProtocolError | None = None

    # ---- commands ------------------------------------------------------------------------

    def open(self, vbucket: int, position: Position, options: StreamOptions | None = None) -> None:
        """Asks for the changes of a vbucket after a position."""
        if vbucket in self._vbuckets:
            raise ValueError(f"there is a stream of vbucket {vbucket}")
        opaque, self._next_opaque = self._next_opaque, self._next_opaque + 1
        stream = _Conversation(vbucket, opaque, position, options or StreamOptions())
        self._streams[opaque] = stream
        self._vbuckets[vbucket] = opaque
        if (position.seqno and stream.options.asks_log) or self._log_comes_apart:
            self._ask_log(stream, _Phase.ASKED_LOG)
        else:
            self._request(stream)

    def close(self, vbucket: int) -> None:
        """Forgets a stream; what is still under way for it is dropped."""
        opaque = self._vbuckets.pop(vbucket)
        del self._streams[opaque]
        if self._modern or isinstance(self._dialect, Draft001):
            self.send(m.CloseStream(vbucket=vbucket, opaque=opaque))

    def confirm_state(self, vbucket: int) -> None:
        """The reader's copy has the state that was asked for."""
        opaque = self._vbuckets.get(vbucket)
        if opaque is not None and self._modern:
            self.send(m.PlainResponse(command=Command.SET_STREAM_STATE, opaque=opaque))

    def acknowledge(self, size: int) -> None:
        """Gives the producer room for more."""
        self.send(m.BufferAck(size=size))

    def send(self, *messages: m.Message) -> None:
        """Queues messages; those that are asked from outside must not use a stream's opaque."""
        self._outbox += map(self._dialect.encode, messages)

    def data_to_send(self) -> bytes:
        data, self._outbox = b"".join(self._outbox), []
        return data

    def take_freed(self) -> int:
        """Counted bytes that were received and are of no use to anybody, since the last call."""
        freed, self._freed = self._freed, 0
        return freed

    @property
    def vbuckets(self) -> frozenset[int]:
        """Those with a stream, whatever its phase."""
        return frozenset(self._vbuckets)

    def is_open(self, vbucket: int) -> bool:
        """Whether changes of a vbucket flow."""
        opaque = self._vbuckets.get(vbucket)
        return opaque is not None and self._streams[opaque].flowing

    def opaque(self, vbucket: int) -> int:
        """What the messages of a vbucket's stream have in common."""
        return self._vbuckets[vbucket]

    def position(self, vbucket: int) -> Position:
        """How far the stream of a vbucket was received."""
        return self._streams[self._vbuckets[vbucket]].tracker.position()

    def seqno(self, vbucket: int) -> int:
        """Only how far, for those who want to know often."""
        return self._streams[self._vbuckets[vbucket]].tracker.seqno

    # ---- bytes in ------------------------------------------------------------------------

    def space(self) -> memoryview:
        """Where received bytes may be written, for `received`."""
        return self._inbound.space()

    def received(self, size: int) -> list[Event]:
        """Takes bytes that were written to `space`."""
        return self._events(self._inbound.wrote(size))

    def feed(self, data: bytes | memoryview) -> list[Event]:
        """Takes bytes from elsewhere."""
        return self._events(self._inbound.feed(data))

    def _events(self, chunks: Iterator[Chunk]) -> list[Event]:
        events: list[Event] = []
        if self.broken is not None:
            return events
        try:
            for chunk in chunks:
                self._take(chunk, events)
        except (DecodeError, RemoteProtocolError) as broken:
            self.broken = broken
        return events

    def _take(self, chunk: Chunk, events: list[Event]) -> None:
        """Rows and other messages in their order; what comes before a broken rule is good."""
        check = self._rows
        self._freed += chunk.others_counted
        check.begin(chunk.batch, chunk.rows_counted)
        try:
            for rows_before, message in chunk.others:
                check.rows_until(rows_before)
                self._handle(message, events)
            check.rows_until(chunk.batch.num_rows)
        finally:
            self._freed += check.finish(events)
            for stream in check.owed:
                answer = m.PlainResponse(command=Command.SNAPSHOT_MARKER, opaque=stream.opaque)
                self.send(answer)
            check.owed.clear()

    def _handle(self, message: m.Message, events: list[Event]) -> None:
        if isinstance(message, m.StreamNoop):
            self.send(m.PlainResponse(command=Command.STREAM_NOOP, opaque=message.opaque))
        elif isinstance(message, m.Response):
            self._answer(message, events)
        elif isinstance(message, kv.ClustermapChanged):
            events.append(MapPushed(message.config))
        elif isinstance(message, m.UnknownCommand) and message.from_server:
            pass  # a command to clients from after our time, which has nothing to do with streams
        elif isinstance(message, m.RequestError):
            self._refused(message, _status_in(message.text), b"", events)
        else:
            stream = self._streams.get(message.opaque)
            if stream is not None:
                self._stream_message(stream, message, events)
            elif not self._was_a_stream(message.opaque):
                name = type(message).__name__
                raise broken_rule("opaque", None, f"{name} has the opaque {message.opaque}")

    def _was_a_stream(self, opaque: int) -> bool:
        return 0 < opaque < self._next_opaque

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
        elif stream.phase is not _Phase.REQUESTED:
            self._answer_for_log(stream, answer, events)
        elif isinstance(answer, m.StreamAccepted):
            self._accepted(stream, FailoverLog(answer.failover_log), events)
        elif isinstance(answer, m.StreamRollback):
            self._go_back(stream, answer.seqno, events)
        elif answer.status is Status.NOT_FOUND and stream.tracker.seqno:
            self._go_back(stream, 0, events)  # how draft 001 says that it knows no such branch
        else:
            self._refused(answer, answer.status, _value(answer), events)

    def _answer_for_log(
        self, stream: _Conversation, answer: m.Response, events: list[Event]
    ) -> None:
        """Draft 002 does not say what an answer is for; other drafts do, so there it is wrong."""
        if not isinstance(self._dialect, Draft002) or stream.phase is _Phase.OPEN:
            raise broken_rule("answer", stream.vbucket, f"{answer.command} was not asked")
        if isinstance(answer, m.StreamAccepted):
            self._learn_log(stream, FailoverLog(()), events)  # a log without entries looks so
        else:
            self._refused(answer, answer.status, _value(answer), events)

    def _learn_log(self, stream: _Conversation, log: FailoverLog, events: list[Event]) -> None:
        log = log.sanitised()
        if stream.phase is _Phase.ASKED_LOG:
            stream.served = log
            if self._left_behind(stream, log, events):
                return
            position, reason = agree(stream.tracker.position(), log)
            if reason is None:
                stream.tracker = PositionTracker(position)
            elif not self._roll_back(stream, position, reason, events):
                return
            self._request(stream)
        elif stream.phase is not _Phase.CHECKING:
            raise broken_rule("answer", stream.vbucket, "a failover log that was not asked for")
        elif log == stream.served:
            stream.phase = _Phase.OPEN
        else:
            # What flows may be of either history, and these drafts cannot close a stream.
            detail = "the history changed while the stream was opened"
            raise broken_rule("branch", stream.vbucket, detail)

    def _accepted(self, stream: _Conversation, log: FailoverLog, events: list[Event]) -> None:
        if self._log_comes_apart:
            self._opened(stream, stream.served, events)
            self._ask_log(stream, _Phase.CHECKING)
            return
        stream.served = log = log.sanitised()
        if self._left_behind(stream, log, events):
            return
        if stream.skip_until:
            # accepted at a boundary, but what was read beyond it may be of a lost branch
            position, reason = agree(stream.tracker.position(), log)
            if reason is not None:
                if not self._roll_back(stream, position, reason, events):
                    return
                stream.skip_until = 0
        self._opened(stream, log, events)

    def _left_behind(self, stream: _Conversation, log: FailoverLog, events: list[Event]) -> bool:
        """Whether a reader that keeps to one branch is too late for it; its stream is closed."""
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

    def _opened(self, stream: _Conversation, log: FailoverLog, events: list[Event]) -> None:
        stream.phase = _Phase.OPEN
        stream.flowing = True
        stream.tracker.follow(log)
        events.append(StreamOpened(stream.vbucket, log))

    def _go_back(self, stream: _Conversation, seqno: int, events: list[Event]) -> None:
        """The producer wants the reader further back than the logs said."""
        if not stream.tracker.seqno:
            detail = "there is nothing before the beginning to go back to"
            raise broken_rule("rollback", stream.vbucket, detail)
        if not stream.options.asks_log:
            to = Position(StreamOffset(stream.tracker.vbuuid, seqno, Snapshot(seqno, seqno)))
            reason = RollbackReason.DIVERGED if seqno else RollbackReason.UNKNOWN_BRANCH
            self._forget(stream)
            events.append(RolledBack(stream.vbucket, stream.tracker.seqno, to, reason, True))
            return
        position, reason = lowered(stream.tracker.position(), seqno)
        if self._roll_back(stream, position, reason, events):
            if position.seqno:
                self._ask_log(stream, _Phase.ASKED_LOG)  # there may have been another failover
            else:
                self._request(stream)

    def _roll_back(
        self,
        stream: _Conversation,
        position: Position,
        reason: RollbackReason,
        events: list[Event],
    ) -> bool:
        """Tells the reader to forget; false if it does not want to."""
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

    # ---- questions -----------------------------------------------------------------------

    def _ask_log(self, stream: _Conversation, phase: _Phase) -> None:
        stream.phase = phase
        self.send(m.FailoverLogRequest(vbucket=stream.vbucket, opaque=stream.opaque))

    def _request(self, stream: _Conversation) -> None:
        stream.phase = _Phase.REQUESTED
        position, options = stream.tracker.position(), stream.options
        offset = position.offset
        stream.skip_until = 0
        start, snapshot = offset.seqno, offset.snapshot
        if not self._modern or snapshot.end == NO_END:
            # what cannot be named is read again from where it began, and not handed out twice
            start = position.last_boundary
            snapshot = Snapshot(start, start)
            stream.skip_until = offset.seqno if start != offset.seqno else 0
        request = m.StreamRequest(
            vbucket=stream.vbucket,
            opaque=stream.opaque,
            start=start,
            end=max(options.end, start),
            vbuuid=offset.vbuuid if start else 0,
            snapshot_start=snapshot.start if self._modern else None,
            snapshot_end=snapshot.end if self._modern else None,
            high_seqno=None if self._modern else _branch_start(position),
            group="" if self._modern or isinstance(self._dialect, Draft001) else options.group,
            flags=options.flags,
            filter=options.filter,
        )
        self.send(request)

    def _forget(self, stream: _Conversation) -> None:
        del self._streams[stream.opaque]
        del self._vbuckets[stream.vbucket]

    # ---- what a stream says --------------------------------------------------------------

    def _stream_message(
        self, stream: _Conversation, message: m.Message, events: list[Event]
    ) -> None:
        vbucket = getattr(message, "vbucket", stream.vbucket)
        if vbucket not in (stream.vbucket, m.VBUCKET_NOT_CARRIED):
            raise broken_rule("vbucket", stream.vbucket, f"a message is of vbucket {vbucket}")
        if not stream.flowing:
            name = type(message).__name__
            raise broken_rule("message", stream.vbucket, f"{name} came before the stream did")
        if isinstance(message, m.SnapshotMarker):
            self._marker(stream, message)
        elif isinstance(message, m.SnapshotStart):
            stream.open_snapshot()
        elif isinstance(message, m.SnapshotEnd):
            self._rows.closed(stream)
        elif isinstance(message, m.StreamStart):
            pass
        elif isinstance(message, m.SeqnoAdvanced):
            # real servers may say twice that a backfill is at its end
            at_end = stream.tracker.is_consistent and message.seqno == stream.tracker.seqno
            if not at_end:
                self._rows.advanced(stream, message.seqno)
        elif isinstance(message, _SYSTEM):
            self._system(stream, message, events)
        elif isinstance(message, m.StreamEnd):
            self._ended(stream, message, events)
        elif isinstance(message, m.SetStreamState):
            self._rows.flush(events)
            events.append(StateAsked(stream.vbucket, message.state))
        elif isinstance(message, m.FlushStream):
            self._rows.flush(events)
            events.append(Flushed(stream.vbucket))
        else:
            name = type(message).__name__
            raise broken_rule("message", stream.vbucket, f"{name} was not negotiated")

    def _marker(self, stream: _Conversation, marker: m.SnapshotMarker) -> None:
        if marker.start is None or marker.end is None:
            # draft 001: a marker ends the snapshot before it, and may begin another
            if stream.tracker.snapshot.end == NO_END:
                self._rows.closed(stream)
            stream.open_snapshot()
            return
        stream.begin_snapshot(Snapshot(marker.start, marker.end))
        if marker.purge_seqno is not None:
            stream.tracker.purge_seqno = marker.purge_seqno
        stream.owes_ack = bool(marker.flags & MarkerFlag.ACK)

    def _system(
        self,
        stream: _Conversation,
        message: m.CollectionCreated
        | m.CollectionDropped
        | m.ScopeCreated
        | m.ScopeDropped
        | m.SystemEvent,
        events: list[Event],
    ) -> None:
        self._rows.flush(events)
        self._rows.advanced(stream, message.seqno)
        if not isinstance(message, m.SystemEvent):
            stream.tracker.manifest_uid = max(stream.tracker.manifest_uid, message.manifest_uid)
        events.append(SystemHappened(stream.vbucket, message))

    def _ended(self, stream: _Conversation, end: m.StreamEnd, events: list[Event]) -> None:
        if end.reason is StreamEndReason.OK and stream.tracker.snapshot.end == NO_END:
            self._rows.closed(stream)
        self._finish(stream, end.reason, events)

    def _finish(self, stream: _Conversation, reason: StreamEndReason, events: list[Event]) -> None:
        self._rows.flush(events)
        self._forget(stream)
        events.append(StreamFinished(stream.vbucket, reason, stream.tracker.position()))


def _branch_start(position: Position) -> int:
    """Where the reader's branch began, which the oldest drafts ask for."""
    return next((e.seqno for e in position.log if e.vbuuid == position.offset.vbuuid), 0)


def _status_in(text: str) -> Status:
    """What a refusal of draft 002 is about: it has no codes, but ours begin with the status."""
    return Status.__members__.get(text.partition(":")[0], Status.INVALID)


def _value(answer: m.Response) -> bytes:
    return answer.value if isinstance(answer, m.PlainResponse) else b""
