"""Replica side of a connection: after Open and Add Stream, this node is the DCP consumer.

    Add Stream ──checks──> REQUESTED ──accepted──> RECEIVING ──end, Close Stream──> gone
         └──refused            ^  └──rollback: the replica goes back, and asks again
                               └──────────┘

A cluster manager opens the connection to this node and relays it to a producer. This node sends its
own requests on that same connection, and receives the streams on it. Messages come in and go out as
bytes. The session decodes them, and `ReplicaWriter` stores them.

Without Hello nothing says whether the producer speaks draft 001 or is of a release up to 4.1. Then
the first stream request finds it out (`PeerDialects`): all others, and what only one of both knows,
wait for its answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from ...errors import Status, StoreRefusal
from ...model import MAX_FAILOVER_ENTRIES, Snapshot, StreamOffset, VBucketState
from ...session.consumer_events import (
    Answered,
    Event,
    RolledBack,
    Rows,
    StateAsked,
    StreamFinished,
    StreamOpened,
    StreamRefused,
)
from ...session.consumer_session import FIRST_OTHER_OPAQUE, ConsumerSession
from ...session.flow_control import ReceiveWindow
from ...session.keepalive import Silence
from ...session.requested_stream import StreamOptions
from ...session.stream_position import Position
from ...store import Bucket
from ...wire import messages as m
from ...wire.dialects import Dcp, Dialect
from ...wire.header import FLEX_REQUEST, REQUEST
from ...wire.protocol_enums import Command, StreamFlag
from .dcp_producer import ACKNOWLEDGE_SEQNOS
from .replica_writer import ReplicaWriter

logger = logging.getLogger("upriver.producer")

#: Flow-control window in bytes that this node offers a producer: the size that Couchbase nodes use.
_WINDOW: Final = 10 * 1024 * 1024
#: Seconds between two noops of a producer.
_NOOP_INTERVAL: Final = 20
#: Rollbacks of one request. More rollbacks than a failover log has entries would never end.
_MOST_ROLLBACKS: Final = 2 * MAX_FAILOVER_ENTRIES
#: Opcodes of the requests that a producer sends on a stream.
_FROM_PRODUCER: Final = frozenset(
    opcode
    for command, opcode in Dcp.table.opcodes.items()
    if command.from_server and command is not Command.CLUSTERMAP_CHANGED
)
#: The control with which a replica announces that it accepts prepares, commits and aborts, and that
#: it acknowledges prepares. The producer counts only a consumer that has a name.
_SYNC_WRITES: Final = "enable_sync_writes"
_COPIES: Final = (VBucketState.REPLICA, VBucketState.PENDING)


def is_from_producer(packet: bytes) -> bool:
    """Whether a packet on such a connection comes from the producer, not from the manager."""
    return packet[0] not in (REQUEST, FLEX_REQUEST) or packet[1] in _FROM_PRODUCER


class Inlet(Protocol):
    """What `DcpConsumer` needs of its connection and server."""

    def now(self) -> float: ...
    def reply(self, *messages: m.Message) -> None: ...
    def send(self, data: bytes) -> None: ...
    def close(self, reason: str = "") -> None: ...
    def claim(self, vbucket: int) -> bool:
        """Claims the vbucket for this connection; false if another connection receives it."""

    def release(self, vbucket: int) -> None: ...
    def answered(self, dialect: Dialect) -> None:
        """Notes that the producer speaks this dialect, which was not known before."""

    def unanswered(self, dialect: Dialect) -> None:
        """Notes that it did not answer in this dialect before the connection was lost."""


@dataclass(frozen=True, slots=True)
class Unread:
    """Events to write. `write` must run in a thread; pass its result to `stored`."""

    events: list[Event]
    write: Callable[[], dict[int, StoreRefusal]]


@dataclass(slots=True)
class _Stream:
    """A requested stream, and the Add Stream request that waits for its result."""

    flags: StreamFlag
    #: 0 until it is requested.
    opaque: int
    #: The request to answer once the stream is accepted or refused.
    waiting: m.AddStream | None
    rollbacks: int = 0


class DcpConsumer:
    """The streams that one connection receives as a consumer."""

    def __init__(
        self,
        bucket: Bucket,
        dialect: Dialect,
        inlet: Inlet,
        name: str,
        consumer_name: str = "",
        *,
        other: Dialect | None = None,
    ) -> None:
        """``consumer_name`` is this node's name among the copies of a vbucket, if it has one.

        ``other`` is what the producer speaks if it refuses the form that ``dialect`` gives to the
        first stream request; None if it is known to speak ``dialect``.
        """
        self.name = name
        self._consumer_name = consumer_name
        #: The key of each control sent to the producer, by opaque.
        self._controls: dict[int, str] = {}
        #: Whether the producer wants seqno acknowledgements of what is on disk.
        self._tells_seqnos = False
        self.dialect = dialect
        #: The dialect to turn to, while it is not known which one the producer speaks; and the
        #: vbucket whose request finds it out.
        self._other = other
        self._asking: int | None = None
        self._bucket = bucket
        self._inlet = inlet
        self._session = self._new_session()
        self._writer = ReplicaWriter(bucket)
        self._streams: dict[int, _Stream] = {}
        self._introduced = False
        self._window = ReceiveWindow(0, now=inlet.now())
        self._silence: Silence | None = None
        self._writing = False
        self._closed = False

    def _new_session(self) -> ConsumerSession:
        return ConsumerSession(self.dialect, sync_writes=bool(self._consumer_name))

    @property
    def vbuckets(self) -> tuple[int, ...]:
        """The vbuckets with a stream that was requested or is being received."""
        return tuple(self._streams)

    @property
    def window(self) -> int:
        return self._window.size

    # ---- requests of the manager ---------------------------------------------------------

    def answer(self, request: m.Request, dialect: Dialect) -> list[m.Message]:
        """Returns immediate responses. Add Stream is answered when its request is settled."""
        match request:
            case m.AddStream():
                status = self._add(request)
                return [] if status is None else [_plain(request, dialect, status)]
            case m.CloseStream():
                if request.vbucket not in self._streams:
                    return [_plain(request, dialect, Status.NOT_FOUND)]
                self._close(request.vbucket)
                return [_plain(request, dialect, Status.SUCCESS)]
            case m.Open():
                self._inlet.close("it was opened twice")
                return []
            case _:
                command = dialect.command_of(request)
                self._inlet.close(f"{command} is for connections on which we are the producer")
                return []

    def _add(self, request: m.AddStream) -> Status | None:
        vbucket = request.vbucket
        if vbucket >= self._bucket.settings.vbuckets:
            return Status.NOT_MY_VBUCKET
        if self._bucket.state(vbucket) not in _COPIES:
            return Status.NOT_MY_VBUCKET
        if vbucket in self._streams or not self._inlet.claim(vbucket):
            return Status.EXISTS
        self._streams[vbucket] = _Stream(request.flags, 0, request)
        self._ask()
        self._send()
        return None

    def _ask(self) -> None:
        """Requests the streams that are not requested yet: one, until the dialect is known."""
        if self._other is None:
            self._introduce()
        elif self._asking is not None:
            return
        for vbucket, stream in self._streams.items():
            if stream.opaque == 0:
                self._request(vbucket)
                if self._other is not None:
                    self._asking = vbucket
                    return

    def _learn_dialect(self, event: Event) -> bool:
        """Learns from the first answer what the producer speaks; false if it must be asked again.

        A release that wants the longer request refuses the shorter one as invalid, and the other
        way round.
        """
        assert self._other is not None
        is_other = isinstance(event, StreamRefused) and event.status is Status.INVALID
        if is_other:
            self.dialect = self._other
            self._session = self._new_session()
            for stream in self._streams.values():
                stream.opaque = 0
        self._other = self._asking = None
        self._inlet.answered(self.dialect)
        self._ask()
        return not is_other

    def _introduce(self) -> None:
        """Sends the controls of this node without waiting: only current producers know Control."""
        if self._introduced or not self.dialect.negotiates:
            return
        self._introduced = True
        wanted = {
            "connection_buffer_size": str(_WINDOW),
            "enable_noop": "true",
            "set_noop_interval": str(_NOOP_INTERVAL),
            "enable_expiry_opcode": "true",
        }
        if self._consumer_name:
            wanted |= {
                _SYNC_WRITES: "true",
                "consumer_name": self._consumer_name,
                ACKNOWLEDGE_SEQNOS: "true",
            }
        for opaque, (key, value) in enumerate(wanted.items(), FIRST_OTHER_OPAQUE):
            self._controls[opaque] = key
            self._session.send(m.Control(key=key, value=value, opaque=opaque))
        self._window = ReceiveWindow(_WINDOW, now=self._inlet.now())
        self._silence = Silence(_NOOP_INTERVAL, now=self._inlet.now())

    def _request(self, vbucket: int) -> None:
        """Requests the changes that follow the last one of the replica."""
        stream = self._streams[vbucket]
        options = StreamOptions(flags=stream.flags, asks_log=False)
        self._session.open(vbucket, self._position(vbucket), options)
        stream.opaque = self._session.opaque(vbucket)

    def _position(self, vbucket: int) -> Position:
        bucket = self._bucket
        log, snapshot = bucket.failover_log(vbucket), bucket.replica_snapshot(vbucket)
        high = bucket.vbucket_stats(vbucket).high_seqno
        if high >= snapshot.end or high <= snapshot.start:
            snapshot = Snapshot(high, high)
        whole = bucket.consistent_until(vbucket, high)
        return Position(
            offset=StreamOffset(log.newest.vbuuid, high, snapshot) if high else _BEGINNING,
            log=log,
            boundaries=(whole,) if whole else (),
        )

    def _close(self, vbucket: int) -> None:
        """Closes a stream from this side. Events of it that still arrive are dropped."""
        if vbucket in self._session.vbuckets:
            self._session.close(vbucket)
        self._settle(vbucket, Status.NOT_MY_VBUCKET)
        self._forget(vbucket)
        self._send()

    # ---- messages of the producer --------------------------------------------------------

    def received(self, data: bytes) -> Unread | None:
        """Decodes received packets. Returns None if there is nothing to write."""
        if self._silence is not None:
            self._silence.heard(self._inlet.now())
        events = self._session.feed(data)
        if self._session.broken is not None:
            logger.warning("%s: %s", self.name, self._session.broken)
        if not any(not isinstance(event, Answered) for event in events):
            self._after(events, {})
            return None
        takeovers = frozenset(
            vbucket
            for vbucket, stream in self._streams.items()
            if stream.flags & StreamFlag.TAKEOVER
        )
        self._writing = True
        draft = not self.dialect.negotiates
        return Unread(events, lambda: self._writer.write(events, takeovers, draft=draft))

    def stored(self, unread: Unread, refused: dict[int, StoreRefusal] | None) -> None:
        """Continues after events were written. ``refused`` is None if the store failed."""
        self._writing = False
        if self._closed or refused is None:
            self._closed = True
            self._release_all()
            return
        self._after(unread.events, refused)

    def _after(self, events: list[Event], refused: dict[int, StoreRefusal]) -> None:
        moved: set[int] = set()
        for event in events:
            if isinstance(event, Rows):
                self._window.consumed(event.counted)
                moved.update(step.vbucket for step in event.steps)
            elif isinstance(event, Answered):
                self._answered(event.response)
            elif (vbucket := getattr(event, "vbucket", None)) in self._streams:
                if vbucket == self._asking and not self._learn_dialect(event):
                    continue
                self._go_on(event, refused)
                if isinstance(event, StreamOpened):
                    moved.add(event.vbucket)
        for vbucket, refusal in refused.items():
            if vbucket in self._streams:
                logger.warning("%s: vbucket %d: %s", self.name, vbucket, refusal)
                self._close(vbucket)
        if self._tells_seqnos:
            self._tell_seqnos(moved)
        self._window.consumed(self._session.take_freed())
        self._acknowledge()
        self._send()
        if self._session.broken is not None:
            self._inlet.close(str(self._session.broken))

    def _go_on(self, event: Event, refused: dict[int, StoreRefusal]) -> None:
        if isinstance(event, StreamFinished):
            self._forget(event.vbucket)
        elif isinstance(event, StreamRefused):
            self._settle(event.vbucket, event.status)
            self._forget(event.vbucket)
        elif not isinstance(event, StreamOpened | StateAsked | RolledBack):
            return
        elif event.vbucket in refused:
            return  # the stream is closed already
        elif isinstance(event, StreamOpened):
            self._settle(event.vbucket, Status.SUCCESS)
        elif isinstance(event, StateAsked):
            self._session.confirm_state(event.vbucket)
            if event.state is VBucketState.DEAD:
                self._close(event.vbucket)  # nothing is written to a dead copy
        else:
            self._rolled_back(event.vbucket)

    def _rolled_back(self, vbucket: int) -> None:
        stream = self._streams[vbucket]
        stream.rollbacks += 1
        if stream.rollbacks > _MOST_ROLLBACKS:
            logger.warning("%s: vbucket %d was rolled back too often", self.name, vbucket)
            self._settle(vbucket, Status.TEMPORARY_FAILURE)
            self._forget(vbucket)
        elif self._bucket.state(vbucket) in _COPIES:
            self._request(vbucket)
        else:
            self._close(vbucket)

    def _answered(self, answer: m.Response) -> None:
        control = self._controls.pop(answer.opaque, "")
        if control in (ACKNOWLEDGE_SEQNOS, _SYNC_WRITES):
            self._tells_seqnos = self._tells_seqnos or answer.status is Status.SUCCESS
        elif answer.status is Status.SUCCESS:
            return
        elif control == "connection_buffer_size":
            self._window = ReceiveWindow(0, now=self._inlet.now())
        elif control in ("enable_noop", "set_noop_interval"):
            self._silence = None

    def _tell_seqnos(self, vbuckets: set[int]) -> None:
        """Acknowledges to the producer the whole snapshots that are on this node's disk."""
        for vbucket in vbuckets:
            stream = self._streams.get(vbucket)
            if stream is not None and vbucket in self._session.vbuckets:
                persisted = self._bucket.vbucket_stats(vbucket).persisted_seqno
                seqno = self._bucket.consistent_until(vbucket, persisted)
                self._session.send(
                    m.SeqnoAcknowledged(vbucket=vbucket, opaque=stream.opaque, prepared_seqno=seqno)
                )

    def _settle(self, vbucket: int, status: Status) -> None:
        """Answers the Add Stream of a vbucket, unless that has been done."""
        stream = self._streams[vbucket]
        request, stream.waiting = stream.waiting, None
        if request is None:
            return
        if status is Status.SUCCESS:
            self._inlet.reply(
                m.AddStreamResponse(opaque=request.opaque, stream_opaque=stream.opaque)
            )
        else:
            self._inlet.reply(_plain(request, self.dialect, status))

    # ---- timers and closing --------------------------------------------------------------

    def tick(self, now: float) -> bool:
        """Sends due flow-control acknowledgements; false if the producer is silent too long."""
        self._acknowledge()
        self._send()
        return self._silence is None or self._writing or not self._silence.is_gone(now)

    def state_changed(self, vbucket: int) -> None:
        """Closes the stream of a vbucket whose state is neither replica nor pending any more."""
        stream = self._streams.get(vbucket)
        if stream is None or self._writing or stream.flags & StreamFlag.TAKEOVER:
            return  # the write that is under way fails by itself
        if self._bucket.state(vbucket) not in _COPIES:
            self._close(vbucket)

    def close(self) -> None:
        """Releases all streams, after the write that is under way has finished."""
        if self._asking is not None and not self._closed:
            self._inlet.unanswered(self.dialect)
        self._closed = True
        if not self._writing:
            self._release_all()

    def _release_all(self) -> None:
        for vbucket in list(self._streams):
            self._forget(vbucket)

    def _forget(self, vbucket: int) -> None:
        del self._streams[vbucket]
        self._inlet.release(vbucket)
        if vbucket == self._asking:
            self._asking = None
            if not self._closed:
                self._ask()

    def _acknowledge(self) -> None:
        due = self._window.due(self._inlet.now())
        if due:
            self._session.acknowledge(due)

    def _send(self) -> None:
        """Sends the session's messages, once the events that they refer to are written."""
        if not self._writing and not self._closed:
            data = self._session.data_to_send()
            if data:
                self._inlet.send(data)


_BEGINNING: Final = StreamOffset.beginning()


def _plain(request: m.Request, dialect: Dialect, status: Status) -> m.Message:
    return m.PlainResponse(
        command=dialect.command_of(request), status=status, opaque=request.opaque
    )
