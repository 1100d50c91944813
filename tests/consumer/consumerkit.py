"""What the tests of consumers share: a session without a socket, and servers that say anything."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from accepting import Accepting
from packets import Packets
from waiting import until

from upriver.consumer import Change, Consumer
from upriver.consumer.changes import changes_of
from upriver.errors import Status
from upriver.model import FailoverLog, Snapshot, StreamOffset
from upriver.session.consumer_events import Event, Rows, Step
from upriver.session.consumer_session import ConsumerSession
from upriver.session.requested_stream import StreamOptions
from upriver.session.stream_position import Position
from upriver.store import Applied, SetDocument, document_key
from upriver.testing import TemporaryProducer
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp, Dialect, Draft000, Draft001, Draft002
from upriver.wire.framing import Framer
from upriver.wire.protocol_enums import Feature

#: How long a test waits for something that should come; never reached when all is well.
PATIENCE = 300.0

DIALECTS: dict[str, Dialect] = {
    "dcp": Dcp(),
    "001": Draft001(),
    "000": Draft000(),
    "002": Draft002(),
}
#: The branch that most tests are on.
LOG = FailoverLog.of((7, 0))

_E = TypeVar("_E", bound=Event)
_T = TypeVar("_T")


# ---- a session and its producer, without a socket ----------------------------------------


class Wire:
    """A consumer's session, and what is said on both sides of it."""

    def __init__(self, dialect: Dialect | None = None, **options: Any) -> None:
        self.dialect = dialect or Dcp()
        self.session = ConsumerSession(self.dialect, **options)
        self.events: list[Event] = []
        self._framer = Framer()

    def asked(self) -> list[Any]:
        """What the session has said since the last call."""
        packets = self._framer.feed(self.session.data_to_send())
        return [self.dialect.decode(packet) for packet in packets]

    def say(self, *messages: m.Message) -> list[Event]:
        """What the producer says; returns what the session makes of it."""
        return self.raw(packets(self.dialect, *messages))

    def raw(self, data: bytes) -> list[Event]:
        events = self.session.feed(data)
        self.events += events
        return events

    def opened(
        self,
        vbucket: int = 3,
        position: Position | None = None,
        log: FailoverLog = LOG,
        **options: Any,
    ) -> int:
        """Opens a stream that the producer accepts; returns its opaque."""
        self.session.open(vbucket, position or Position(), StreamOptions(**options))
        opaque: int
        while True:
            (question,) = self.asked()
            opaque = question.opaque
            if isinstance(question, m.FailoverLogRequest):
                self.say(m.FailoverLogResponse(opaque=opaque, failover_log=log.entries))
                if self.session.is_open(vbucket):
                    return opaque
            else:
                carried = isinstance(self.dialect, Dcp | Draft001)
                self.say(
                    m.StreamAccepted(opaque=opaque, failover_log=log.entries if carried else ())
                )
                if carried:
                    return opaque

    @property
    def rule(self) -> str:
        """The rule that the producer broke."""
        assert self.session.broken is not None
        return getattr(self.session.broken, "rule", "")

    def rows(self) -> list[tuple[int, int]]:
        return rows_of(self.events)

    def steps(self) -> list[Step]:
        return steps_of(self.events)


def packets(dialect: Dialect, *messages: m.Message) -> bytes:
    return b"".join(map(dialect.encode, messages))


def rows_of(events: Iterable[Event]) -> list[tuple[int, int]]:
    """The vbucket and seqno of every row that was handed out."""
    return [
        (change.vbucket, change.seqno)
        for event in events
        if isinstance(event, Rows)
        for change in changes_of(event.batch)
    ]


def steps_of(events: Iterable[Event]) -> list[Step]:
    """The last step of each vbucket, and those that close a snapshot."""
    return [step for event in events if isinstance(event, Rows) for step in event.steps]


def only(events: Iterable[Event], kind: type[_E]) -> list[_E]:
    return [event for event in events if isinstance(event, kind)]


def at(
    seqno: int,
    snapshot: tuple[int, int] | None = None,
    *,
    vbuuid: int = 7,
    log: FailoverLog = LOG,
    boundaries: Sequence[int] = (),
) -> Position:
    """A position that a reader may have."""
    start, end = snapshot or (seqno, seqno)
    offset = StreamOffset(vbuuid, seqno, Snapshot(start, end))
    return Position(offset, log, tuple(boundaries))


def mutation(seqno: int, *, opaque: int = 1, vbucket: int = 3, **more: Any) -> m.Mutation:
    more.setdefault("key", b"key%d" % seqno)
    more.setdefault("value", b"value%d" % seqno)
    return m.Mutation(vbucket=vbucket, opaque=opaque, seqno=seqno, **more)


def marker(start: int, end: int, *, opaque: int = 1, vbucket: int = 3, **more: Any) -> m.Message:
    return m.SnapshotMarker(vbucket=vbucket, opaque=opaque, start=start, end=end, **more)


# ---- servers that say what a test wants --------------------------------------------------


class Conversation:
    """A server's end of one connection."""

    def __init__(self, connection: socket.socket, dialect: Dialect) -> None:
        self.socket = connection
        self.dialect = dialect

    def send(self, *messages: m.Message) -> None:
        self.socket.sendall(packets(self.dialect, *messages))

    def answer(
        self, request: m.Request, status: Status = Status.SUCCESS, value: bytes = b""
    ) -> None:
        command = self.dialect.command_of(request)
        opaque = request.opaque
        self.send(m.PlainResponse(command=command, opaque=opaque, status=status, value=value))

    def hang_up(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)


#: Says something to a request; false leaves it to what a server would say.
Script = Callable[[Conversation, Any], bool]


class Scripted(Accepting):
    """A server of one node whose script answers what it wants to, on as many connections as come.

    What the script leaves, a small server of today answers: a bucket with empty vbuckets, whose
    streams are accepted and never have anything.
    """

    def __init__(
        self,
        script: Script = lambda talk, request: False,
        *,
        vbuckets: int = 2,
        bucket: str = "default",
        dialect: Dialect | None = None,
        features: tuple[Feature, ...] = (Feature.SELECT_BUCKET,),
        seqno: int = 5,
    ) -> None:
        self.script = script
        self.vbuckets = vbuckets
        self.bucket = bucket
        self.revision = 1
        self._dialect = dialect or Dcp()
        self._features = features
        self._seqno = seqno
        super().__init__()

    @property
    def map(self) -> bytes:
        server = f"127.0.0.1:{self.port}"
        rows = [[0]] * self.vbuckets
        servers = {"serverList": [server], "vBucketMap": rows}
        known = {
            "rev": self.revision,
            "name": self.bucket,
            "uuid": "u",
            "vBucketServerMap": servers,
        }
        return json.dumps(known).encode()

    def _serve(self, connection: socket.socket) -> None:
        talk = Conversation(connection, self._dialect)
        with connection, suppress(OSError):
            for packet in Packets(connection):
                request = self._dialect.decode(packet)
                if not self.script(talk, request):
                    self._answer(talk, request)

    def _answer(self, talk: Conversation, request: Any) -> None:
        opaque = request.opaque
        match request:
            case kv.Hello():
                talk.send(kv.HelloResponse(opaque=opaque, features=self._features))
            case kv.GetClusterConfig():
                talk.answer(request, value=self.map)
            case kv.GetAllSeqnos():
                seqnos = tuple((vbucket, self._seqno) for vbucket in range(self.vbuckets))
                talk.send(kv.AllSeqnosResponse(opaque=opaque, seqnos=seqnos))
            case m.FailoverLogRequest():
                talk.send(m.FailoverLogResponse(opaque=opaque, failover_log=LOG.entries))
            case m.StreamRequest():
                talk.send(m.StreamAccepted(opaque=opaque, failover_log=LOG.entries))
            case m.Response() | m.BufferAck():
                pass
            case _:
                talk.answer(request)


def streaming(*messages: m.Message) -> Script:
    """A script that accepts a stream and says these on it."""

    def script(talk: Conversation, request: Any) -> bool:
        if not isinstance(request, m.StreamRequest):
            return False
        accepted = m.StreamAccepted(opaque=request.opaque, failover_log=LOG.entries)
        said = [_of_stream(message, request) for message in messages]
        talk.send(accepted, *said)
        return True

    return script


def _of_stream(message: m.Message, request: m.StreamRequest) -> m.Message:
    """A message as one of the stream that was asked for, unless it says otherwise."""
    if message.opaque:
        return message
    message = replace(message, opaque=request.opaque)
    if getattr(message, "vbucket", None) == 0:
        return replace(message, vbucket=request.vbucket)  # type: ignore[call-arg]
    return message


# ---- reading -----------------------------------------------------------------------------


def everything(source: str, **options: Any) -> list[Change]:
    """What a reader gets that reads until now."""
    options.setdefault("end", "now")
    with Consumer(source, **options) as consumer:
        return list(consumer)


def drain(consumer: Consumer) -> None:
    """Takes all events that have come once every stream is open, the openings among them."""
    until(lambda: consumer.status().is_whole)
    while consumer.poll(timeout=0.1) is not None:
        pass


def places(changes: Iterable[Change]) -> list[tuple[int, int]]:
    return [(change.vbucket, change.seqno) for change in changes]


def in_order(changes: Iterable[Change]) -> dict[int, list[int]]:
    """The seqnos of each vbucket as they came."""
    found: dict[int, list[int]] = {}
    for change in changes:
        found.setdefault(change.vbucket, []).append(change.seqno)
    return found


def fill(producer: TemporaryProducer, changes: int, *, start: int = 0, size: int = 10) -> None:
    """Writes documents, one after the other over all vbuckets."""
    count = producer.bucket.settings.vbuckets
    many = [
        SetDocument(number % count, document_key(b"key-%d" % number), b"v" * size)
        for number in range(start, start + changes)
    ]
    for outcome in producer.bucket.write_many(many):
        assert isinstance(outcome, Applied)


def high_seqnos(producer: TemporaryProducer) -> dict[int, int]:
    bucket = producer.bucket
    return {
        vbucket: bucket.vbucket_stats(vbucket).high_seqno
        for vbucket in range(bucket.settings.vbuckets)
    }


def in_thread(call: Callable[[], _T]) -> Future[_T]:
    """Runs something beside the test; its outcome must be waited for."""
    done: Future[_T] = Future()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run).start()
    return done
