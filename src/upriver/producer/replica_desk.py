"""The other role of a node: a connection on which it is the consumer, told by Open and Add Stream.

    Add Stream ──checks──> REQUESTED ──accepted──> RECEIVING ──end, Close Stream──> gone
         └──refused            ^  └──rollback: the replica goes back, and asks again
                               └──────────┘

A manager opens it and relays it to a producer: the node's own requests go out on the very
connection on which it was opened, and the streams come in there. Messages come in and go out as
bytes; what they mean is the session's business, and what is written the `ReplicaWriter`'s.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from ..errors import Status, StoreRefusal
from ..model import MAX_FAILOVER_ENTRIES, Snapshot, StreamOffset, VBucketState
from ..session.consumer import FIRST_OTHER_OPAQUE, ConsumerSession, StreamOptions
from ..session.events import (
    Answered,
    Event,
    RolledBack,
    Rows,
    StateAsked,
    StreamFinished,
    StreamOpened,
    StreamRefused,
)
from ..session.flow import ReceiveWindow
from ..session.keepalive import Silence
from ..session.position import Position
from ..store import Bucket
from ..wire import messages as m
from ..wire.dialects import Dcp, Dialect
from ..wire.header import FLEX_REQUEST, REQUEST
from ..wire.names import StreamFlag
from .replica_writer import ReplicaWriter
from .stream_desk import ACKNOWLEDGE_SEQNOS

__all__ = ["ReplicaDesk", "Unread", "is_from_producer"]

logger = logging.getLogger("upriver.producer")

#: Bytes that a producer may have under way to this node: what real nodes ask for.
_WINDOW: Final = 10 * 1024 * 1024
#: Seconds between a producer's signs of life.
_NOOP_INTERVAL: Final = 20
#: Rollbacks of one request: more than a failover log has branches means that no end is in sight.
_MOST_ROLLBACKS: Final = 2 * MAX_FAILOVER_ENTRIES
#: What producers send as requests: Stream End up to noop, and what came later.
_FROM_PRODUCER: Final = frozenset({*range(0x55, 0x5D), *range(0x5F, 0x68)})
_COPIES: Final = (VBucketState.REPLICA, VBucketState.PENDING)


def is_from_producer(packet: bytes) -> bool:
    """Whether a packet on such a connection is the producer's, and not the manager's."""
    return packet[0] not in (REQUEST, FLEX_REQUEST) or packet[1] in _FROM_PRODUCER


class Inlet(Protocol):
    """What the desk needs of its connection and server."""

    def now(self) -> float: ...
    def reply(self, *messages: m.Message) -> None: ...
    def send(self, data: bytes) -> None: ...
    def close(self, reason: str = "") -> None: ...
    def claim(self, vbucket: int) -> bool:
        """Whether no other connection receives the vbucket; it is ours from then on."""

    def release(self, vbucket: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Unread:
    """Events that wait to be written. `write` is for a thread, and its result for `stored`."""

    events: list[Event]
    write: Callable[[], dict[int, StoreRefusal]]


@dataclass(slots=True)
class _Stream:
    """A stream that was asked for, and who waits to hear of it."""

    flags: StreamFlag
    opaque: int
    #: The request to answer once the stream is settled.
    waiting: m.AddStream | None
    rollbacks: int = 0


class ReplicaDesk:
    """The streams that one connection receives."""

    def __init__(
        self, bucket: Bucket, dialect: Dialect, inlet: Inlet, name: str, consumer_name: str = ""
    ) -> None:
        """``consumer_name`` is what this node is called among its copies, if it has a name."""
        self.name = name
        self._consumer_name = consumer_name
        #: What was asked of the producer under which opaque.
        self._controls: dict[int, str] = {}
        #: Whether the producer wants to know what is on disk.
        self._tells_seqnos = False
        self.dialect = dialect
        self._bucket = bucket
        self._inlet = inlet
        self._session = ConsumerSession(dialect)
        self._writer = ReplicaWriter(bucket)
        self._streams: dict[int, _Stream] = {}
        self._introduced = False
        self._window = ReceiveWindow(0, now=inlet.now())
        self._silence: Silence | None = None
        self._writing = False
        self._closed = False

    @property
    def vbuckets(self) -> tuple[int, ...]:
        """Those that are received, or asked for."""
        return tuple(self._streams)

    @property
    def window(self) -> int:
        return self._window.size

    # ---- what the manager says -----------------------------------------------------------

    def answer(self, request: m.Request, dialect: Dialect) -> list[m.Message]:
        """What to answer at once; Add Stream is answered when its stream is settled."""
        match request:
            case m.AddStream():
                status = self._add(request)
                return [] if status is None else [_plain(request, dialect, status)]
            case m.CloseStream():
                if request.vbucket not in self._streams:
                    return [_plain(request, dialect, Status.NOT_FOUND)]
                self._close(request.vbucket)
                return [_plain(request, dialect, Status.SUCCESS)]
            case m.StreamRequest() | m.BufferAck() | m.Control():
                self._inlet.close("a consumer was asked for what producers do")
                return []
            case m.Open():
                return [_plain(request, dialect, Status.INVALID)]
            case _:
                return [_plain(request, dialect, Status.NOT_SUPPORTED)]

    def _add(self, request: m.AddStream) -> Status | None:
        vbucket = request.vbucket
        if vbucket >= self._bucket.settings.vbuckets:
            return Status.NOT_MY_VBUCKET
        if self._bucket.state(vbucket) not in _COPIES:
            return Status.NOT_MY_VBUCKET
        if vbucket in self._streams or not self._inlet.claim(vbucket):
            return Status.EXISTS
        if not self._introduced:
            self._introduced = True
            self._introduce()
        self._streams[vbucket] = _Stream(request.flags, 0, request)
        self._request(vbucket)
        self._send()
        return None

    def _introduce(self) -> None:
        """Says what we want of the producer, without waiting: only today's have Control."""
        if not isinstance(self.dialect, Dcp):
            return
        wanted = {
            "connection_buffer_size": str(_WINDOW),
            "enable_noop": "true",
            "set_noop_interval": str(_NOOP_INTERVAL),
            "enable_expiry_opcode": "true",
        }
        if self._consumer_name:
            wanted |= {"consumer_name": self._consumer_name, ACKNOWLEDGE_SEQNOS: "true"}
        for opaque, (key, value) in enumerate(wanted.items(), FIRST_OTHER_OPAQUE):
            self._controls[opaque] = key
            self._session.send(m.Control(key=key, value=value, opaque=opaque))
        self._window = ReceiveWindow(_WINDOW, now=self._inlet.now())
        self._silence = Silence(_NOOP_INTERVAL, now=self._inlet.now())

    def _request(self, vbucket: int) -> None:
        """Asks for what comes after what the replica has."""
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
        """Ends a stream from our side; what is under way for it is dropped."""
        if vbucket in self._session.vbuckets:
            self._session.close(vbucket)
        self._settle(vbucket, Status.NOT_MY_VBUCKET)
        self._forget(vbucket)
        self._send()

    # ---- what the producer says ----------------------------------------------------------

    def received(self, data: bytes) -> Unread | None:
        """Takes packets; None if nothing of them must be written."""
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
        return Unread(events, lambda: self._writer.write(events, takeovers))

    def stored(self, unread: Unread, refused: dict[int, StoreRefusal] | None) -> None:
        """Goes on after events were written; None says that the store failed."""
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
            elif getattr(event, "vbucket", None) in self._streams:
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
            return  # its stream is closed
        elif isinstance(event, StreamOpened):
            self._settle(event.vbucket, Status.SUCCESS)
        elif isinstance(event, StateAsked):
            self._session.confirm_state(event.vbucket)
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
        if control == ACKNOWLEDGE_SEQNOS:
            self._tells_seqnos = answer.status is Status.SUCCESS
        elif answer.status is Status.SUCCESS:
            return
        elif control == "connection_buffer_size":
            self._window = ReceiveWindow(0, now=self._inlet.now())
        elif control in ("enable_noop", "set_noop_interval"):
            self._silence = None

    def _tell_seqnos(self, vbuckets: set[int]) -> None:
        """Tells the producer what nobody can take from us: whole snapshots on our disk."""
        for vbucket in vbuckets:
            stream = self._streams.get(vbucket)
            if stream is not None and vbucket in self._session.vbuckets:
                persisted = self._bucket.vbucket_stats(vbucket).persisted_seqno
                seqno = self._bucket.consistent_until(vbucket, persisted)
                self._session.send(
                    m.SeqnoAcknowledged(vbucket=vbucket, opaque=stream.opaque, prepared_seqno=seqno)
                )

    def _settle(self, vbucket: int, status: Status) -> None:
        """Answers the Add Stream of a vbucket, if nobody did yet."""
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

    # ---- time and end --------------------------------------------------------------------

    def tick(self, now: float) -> bool:
        """Gives room back that is due; false if the producer is gone."""
        self._acknowledge()
        self._send()
        return self._silence is None or self._writing or not self._silence.is_gone(now)

    def state_changed(self, vbucket: int) -> None:
        """Somebody changed what a vbucket is; one that is no copy any more receives nothing."""
        stream = self._streams.get(vbucket)
        if stream is None or self._writing or stream.flags & StreamFlag.TAKEOVER:
            return  # what is being written finds out by itself
        if self._bucket.state(vbucket) not in _COPIES:
            self._close(vbucket)

    def close(self) -> None:
        """Lets go of everything, but not before what is being written is."""
        self._closed = True
        if not self._writing:
            self._release_all()

    def _release_all(self) -> None:
        for vbucket in list(self._streams):
            self._forget(vbucket)

    def _forget(self, vbucket: int) -> None:
        del self._streams[vbucket]
        self._inlet.release(vbucket)

    def _acknowledge(self) -> None:
        due = self._window.due(self._inlet.now())
        if due:
            self._session.acknowledge(due)

    def _send(self) -> None:
        """Sends what the session has to say, once what it is about is written."""
        if not self._writing and not self._closed:
            data = self._session.data_to_send()
            if data:
                self._inlet.send(data)


_BEGINNING: Final = StreamOffset.beginning()


def _plain(request: m.Request, dialect: Dialect, status: Status) -> m.Message:
    return m.PlainResponse(
        command=dialect.command_of(request), status=status, opaque=request.opaque
    )
