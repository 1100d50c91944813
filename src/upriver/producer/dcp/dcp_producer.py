"""DCP producer side of one connection: answers the consumer's requests and sends its streams.

Requests come in and messages go out as decoded values. The dialect encodes them, and the connection
decides when to write them. Drafts without an Open command (002, 000) are opened by their first
request.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Final, Protocol

from ...errors import Status, StoreError
from ...model import Datatype, StreamEndReason
from ...session.change_writer import Shape
from ...session.keepalive import ProducerKeepalive
from ...session.producer_options import (
    OutOfOrder,
    ProducerOptions,
    check_open_flags,
    is_for_consumer,
    set_control,
)
from ...session.stream_output import StreamOutput
from ...session.stream_request_checks import Acceptance, Policy, Refusal, RollbackTo, decide
from ...session.stream_states import ProducerState
from ...store import Bucket
from ...wire import messages as m
from ...wire.dialects import Dcp, Dialect
from ...wire.protocol_enums import Command, Feature, OpenFlag, StreamFlag
from ..connections.client_info import ClientInfo
from ..connections.server_counters import Traffic
from ..server_settings import PeerRelease
from .active_stream import ActiveStream
from .open_value import consumer_name, open_value_problem
from .vbucket_facts import vbucket_facts

logger = logging.getLogger("upriver.producer")

#: A control of Upriver: the consumer reports with Seqno Acknowledged what is on its disk. Couchbase
#: Server does not know this control and refuses it.
ACKNOWLEDGE_SEQNOS: Final = "acknowledge_seqnos"
#: Refused stream requests of one connection that are warnings; later ones are only logged by a
#: server that is verbose.
_WARNED: Final = 8
#: Refusals that belong to a cluster's life.
_USUAL: Final = frozenset({Status.NOT_MY_VBUCKET, Status.TEMPORARY_FAILURE})
#: Characters of a refused value that are repeated in the error text.
_SHOWN: Final = 40
#: Bytes of stored changes that one connection may read before other connections get their turn.
_SCAN_BYTES: Final = 1024 * 1024
#: The least that one step of a stream counts for: it opens readers and checks vbucket states.
_STEP_BYTES: Final = 4 * 1024
#: Ended streams that are kept for statistics: as many as a large bucket has vbuckets.
_ENDED: Final = 1024
_ACKNOWLEDGED: Final = frozenset({Command.SNAPSHOT_MARKER, Command.SET_STREAM_STATE})


class Outlet(Protocol):
    """What `DcpProducer` needs of its connection and server."""

    def now(self) -> float: ...
    def opened(self, name: str) -> None:
        """Called when the connection got a name; an older one of that name must be closed."""

    def follow(self, vbucket: int) -> None:
        """Has `DcpProducer.wake` called when the vbucket has new changes or another state."""

    def commit(
        self,
        call: Callable[[], object],
        then: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Runs ``call``, which waits for the disk, in a thread; then one of the others here."""

    def consume(self, name: str, consumer_name: str) -> None:
        """Called when Open made this node the consumer of the connection."""

    def close(self, reason: str = "") -> None: ...
    def bucket(self) -> Bucket | None: ...
    def cluster_map(self) -> bytes: ...


class _LiveStreams(Container[tuple[int, int | None]]):
    """The keys of streams that have not ended; a connection may have thousands."""

    def __init__(self, streams: Mapping[tuple[int, int | None], ActiveStream]) -> None:
        self._streams = streams

    def __contains__(self, key: object) -> bool:
        stream = self._streams.get(key)  # type: ignore[call-overload]
        return stream is not None and stream.state is not ProducerState.DEAD


class DcpProducer:
    """The streams that one connection sends."""

    def __init__(
        self,
        client: ClientInfo,
        outlet: Outlet,
        *,
        policy: Policy,
        max_streams: int,
        idle_timeout: float,
        takeover_time: float,
        traffic: Traffic,
        peers: PeerRelease = PeerRelease.TODAY,
    ) -> None:
        self._peers = peers
        self._client = client
        self._outlet = outlet
        self._policy = policy
        self._max_streams = max_streams
        self._idle_timeout = idle_timeout
        self._takeover_time = takeover_time
        self._traffic = traffic
        self.name = ""
        #: When the connection was opened, by the event loop's clock.
        self.opened_at = 0.0
        self.bytes_sent = 0
        self.acknowledged_bytes = 0
        #: Streams that ended while the connection was open, newest last; for statistics.
        self.ended: dict[tuple[int, int | None], ActiveStream] = {}
        self._refusals = 0
        #: Open streams by vbucket and stream id.
        self.streams: dict[tuple[int, int | None], ActiveStream] = {}
        #: How many of the open streams are takeovers.
        self._takeovers = 0
        self._of_vbucket: dict[int, list[ActiveStream]] = {}
        self._ready: deque[ActiveStream] = deque()

    # ---- requests ------------------------------------------------------------------------

    def answer(self, request: m.Request, dialect: Dialect) -> list[m.Message]:
        """Returns the responses to a DCP request."""
        if isinstance(request, m.Open):
            return self._open(request)
        if self._client.options is None:
            if dialect.opens_connections:
                if isinstance(request, m.FailoverLogRequest) and not self._policy.log_needs_open:
                    return [self._failover_log(request, dialect)]
                # Couchbase Server closes the connection, too: such a client does not follow the
                # protocol.
                self._outlet.close(f"{dialect.command_of(request)} without Open")
                return []
            self._begin(OpenFlag.PRODUCER, "")
        match request:
            case m.StreamRequest():
                return [self._stream_request(request, dialect)]
            case m.CloseStream():
                return self._close(request, dialect)
            case m.FailoverLogRequest():
                return [self._failover_log(request, dialect)]
            case m.Control() if (request.key, request.value) == (ACKNOWLEDGE_SEQNOS, "true"):
                return [_plain(dialect, request, Status.SUCCESS)]
            case m.Control():
                status = set_control(self._options, request.key, request.value)
                if status is Status.SUCCESS:
                    return [_plain(dialect, request, status)]
                text = f"{request.key} cannot be {request.value[:_SHOWN]!r} here"
                return [self._refusal(dialect, request, status, text)]
            case m.SeqnoAcknowledged():
                for stream in self._of_vbucket.get(request.vbucket, ()):
                    if stream.opaque == request.opaque:
                        stream.copied_until = request.prepared_seqno
                return []
            case m.BufferAck():
                self.acknowledged_bytes += request.size
                self._options.window.acknowledged(request.size)
                return []
            case _:
                command = dialect.command_of(request)
                self._outlet.close(f"{command} is for connections on which we are the consumer")
                return []

    def answered(self, response: m.Response) -> bool:
        """Handles a response of the consumer. Returns false if the connection must be closed.

        An error status is a NACK: it ends the stream whose message it answers, and only that
        stream, whatever the status is. A response that belongs to no stream may be of one that was
        closed meanwhile, and changes nothing.
        """
        options = self._client.options
        if options is None:
            return False
        if response.command is Command.STREAM_NOOP:
            return options.keepalive.answered(response.opaque)
        if response.status is not Status.SUCCESS:
            self.nacked(response.opaque, response.status.name)
        elif response.command in _ACKNOWLEDGED:
            stream = self._stream_of(response.opaque)
            if stream is not None:
                stream.acknowledged(Command(response.command))
                self._make_ready(stream)
        return True

    def nacked(self, opaque: int, why: str) -> None:
        """Ends the stream with this opaque, if there is one, because the consumer refused it."""
        stream = self._stream_of(opaque)
        if stream is not None:
            logger.info("%s refused vbucket %d: %s", self.name, stream.vbucket, why)
            self._drop(stream)

    def _stream_of(self, opaque: int) -> ActiveStream | None:
        return next((s for s in self.streams.values() if s.opaque == opaque), None)

    @property
    def _options(self) -> ProducerOptions:
        options = self._client.options
        assert options is not None
        return options

    def _begin(self, flags: OpenFlag, name: str) -> None:
        keepalive = ProducerKeepalive(now=self._outlet.now(), idle_timeout=self._idle_timeout)
        self.name = name
        self.opened_at = self._outlet.now()
        self._client.options = ProducerOptions(
            flags=flags,
            keepalive=keepalive,
            snappy=self._client.has(Feature.SNAPPY),
            collections=self._client.has(Feature.COLLECTIONS),
        )
        self._outlet.opened(name)

    def _open(self, request: m.Open) -> list[m.Message]:
        dialect = Dcp()
        if self._client.options is not None:
            self._outlet.close("it was opened twice")
            return []
        problem = check_open_flags(request.flags) or open_value_problem(request)
        if problem:
            return [self._refusal(dialect, request, Status.INVALID, problem)]
        if self._outlet.bucket() is None:
            return [self._refusal(dialect, request, Status.NO_BUCKET, "select a bucket first")]
        if is_for_consumer(request.flags):
            self._client.consumes = True
            self._outlet.consume(request.name, consumer_name(request))
        else:
            self._begin(request.flags, request.name)
        return [m.PlainResponse(command=Command.OPEN, opaque=request.opaque)]

    def _failover_log(self, request: m.FailoverLogRequest, dialect: Dialect) -> m.Message:
        bucket = self._outlet.bucket()
        if bucket is None or request.vbucket >= bucket.settings.vbuckets:
            text = f"there is no vbucket {request.vbucket}"
            return self._refusal(dialect, request, Status.NOT_MY_VBUCKET, text)
        log = bucket.failover_log(request.vbucket)
        return m.FailoverLogResponse(opaque=request.opaque, failover_log=log.entries)

    def _stream_request(self, request: m.StreamRequest, dialect: Dialect) -> m.Message:
        bucket = self._outlet.bucket()
        options = self._options
        # The group id of drafts 002 and 000: a name for statistics, which several may have.
        self.name = self.name or request.group
        facts = None if bucket is None else vbucket_facts(bucket, request.vbucket)
        decision = decide(
            request,
            facts,
            options,
            streams=_LiveStreams(self.streams),
            short_of_memory=len(self.streams) >= self._max_streams,
            policy=self._policy,
        )
        if isinstance(decision, Refusal):
            asked = f"the stream request of vbucket {request.vbucket} (draft {dialect.name})"
            self.log_refusal(asked, decision.status, decision.context)
            return self._refusal(
                dialect, request, decision.status, decision.context, decision.manifest_uid
            )
        if isinstance(decision, RollbackTo):
            name = "" if bucket is None else bucket.name
            self._traffic.sent_back(self.name, name, request.vbucket, decision.seqno)
            return m.StreamRollback(opaque=request.opaque, seqno=decision.seqno)
        assert bucket is not None
        assert facts is not None
        self._add(bucket, request, decision, dialect, facts.purge_seqno)
        log = (
            bucket.failover_log(request.vbucket).entries
            if dialect.accepts_with_failover_log
            else ()
        )
        return m.StreamAccepted(opaque=request.opaque, failover_log=log)

    def _add(
        self,
        bucket: Bucket,
        request: m.StreamRequest,
        accepted: Acceptance,
        dialect: Dialect,
        purge_seqno: int,
    ) -> None:
        options = self._options
        output = StreamOutput(
            dialect,
            vbucket=request.vbucket,
            opaque=request.opaque,
            shape=Shape.of(options) if dialect.negotiates else Shape(),
            filter=accepted.filter,
            sync_writes=options.sync_writes and dialect.negotiates,
            draft_states=dialect.negotiates and self._peers is PeerRelease.RELEASE_3_0,
        )
        stream = ActiveStream(
            bucket,
            accepted,
            output,
            vbucket=request.vbucket,
            opaque=request.opaque,
            purge_seqno=purge_seqno,
            skip_deletions=options.has(OpenFlag.SKIP_DELETES_IN_BACKFILL),
            ignore_purged=bool(request.flags & StreamFlag.IGNORE_PURGED),
            marker_2_2=options.marker_2_2,
            out_of_order=options.out_of_order if dialect.negotiates else OutOfOrder.NO,
            acknowledged=dialect.acknowledges_state,
            notifies=options.notifies,
            hand_over=self._hand_over,
        )
        older = self.streams.get((request.vbucket, accepted.filter.stream_id))
        if older is not None:
            self._forget(older)
        self.streams[request.vbucket, accepted.filter.stream_id] = stream
        self.ended.pop((request.vbucket, accepted.filter.stream_id), None)
        self._takeovers += stream.is_takeover
        self._of_vbucket.setdefault(request.vbucket, []).append(stream)
        self._outlet.follow(request.vbucket)
        self._make_ready(stream)

    def _close(self, request: m.CloseStream, dialect: Dialect) -> list[m.Message]:
        wanted = request.stream_id
        if (wanted is not None) is not self._options.stream_ids:
            text = "stream ids are required" if wanted is None else "stream ids were not enabled"
            return [self._refusal(dialect, request, Status.STREAM_ID_INVALID, text)]
        stream = self.streams.get((request.vbucket, wanted))
        if stream is None or stream.state is ProducerState.DEAD:
            text = f"there is no stream of vbucket {request.vbucket}"
            return [self._refusal(dialect, request, Status.NOT_FOUND, text)]
        if self._options.stream_end_on_close:
            stream.finish(StreamEndReason.CLOSED)
            self._make_ready(stream)
        else:
            self._drop(stream)
        return [_plain(dialect, request, Status.SUCCESS)]

    def log_refusal(self, request: str, status: Status, case: str) -> None:
        """Logs why a stream request is refused: most drafts have no room for it in the answer.

        The first of a connection are warnings, but for what happens where all is well.
        """
        self._refusals += 1
        told = self._refusals <= _WARNED and status not in _USUAL
        who = f"{self._client.peer} {self.name}".rstrip()
        level = logging.WARNING if told else logging.INFO
        logger.log(level, "%s: %s is refused with %s: %s", who, request, status.name, case)

    def _refusal(
        self,
        dialect: Dialect,
        request: m.Request,
        status: Status,
        context: str,
        manifest_uid: int | None = None,
    ) -> m.Message:
        """Returns an error response, with its reason where the dialect has room for it."""
        if not dialect.has_memcached_header and status is not Status.NOT_MY_VBUCKET:
            return m.RequestError(opaque=request.opaque, text=f"{status.name}: {context}")
        if not dialect.negotiates:
            return _plain(dialect, request, status)
        content: dict[str, object] = {"error": {"context": context}}
        if manifest_uid is not None:
            content["manifest_uid"] = f"{manifest_uid:x}"
        value = json.dumps(content, separators=(",", ":")).encode()
        if status is Status.NOT_MY_VBUCKET:  # its value is the cluster map
            value = self._outlet.cluster_map()
        return m.PlainResponse(
            command=dialect.command_of(request),
            status=status,
            opaque=request.opaque,
            value=value,
            datatype=Datatype.JSON if self._client.has(Feature.JSON) else Datatype.RAW,
        )

    # ---- streams -------------------------------------------------------------------------

    def packets(self) -> Iterator[memoryview]:
        """Yields packets of the streams, one step of each in turn, while the window is open.

        It stops after a bounded amount of work, whether or not that produced packets. `has_more`
        then says whether to call it again.
        """
        window = self._options.window if self._client.options else None
        scanned = 0
        while window is not None and self._ready and scanned < _SCAN_BYTES:
            stream = self._ready[0]
            messages, looked_at = stream.messages_sent, stream.bytes_scanned
            try:
                taken = stream.take(window)
            except StoreError as error:
                self._fail(stream, error)
                continue
            self._traffic.streamed(stream.messages_sent - messages, len(taken))
            self.bytes_sent += len(taken)
            if taken and stream.oldest_cas:
                self._traffic.delivered(stream.oldest_cas)
                stream.oldest_cas = 0
            scanned += max(stream.bytes_scanned - looked_at, _STEP_BYTES)
            if taken or stream.unfinished:
                self._ready.rotate(-1)
                if taken:
                    yield taken
                continue
            if not window.is_open and not stream.dead:
                return
            self._ready.popleft()
            stream.queued = False
            if stream.dead:
                self._forget(stream)

    @property
    def has_more(self) -> bool:
        """Whether `packets` has streams to work on and the window is open."""
        options = self._client.options
        return bool(self._ready) and options is not None and options.window.is_open

    def copied(self, vbucket: int) -> dict[str, int]:
        """Returns the seqno that the consumer has on its disk, under the consumer's name."""
        options = self._client.options
        if options is None or not options.consumer_name:
            return {}
        streams = self._of_vbucket.get(vbucket, ())
        copied = (min(s.copied_until, s.sent_until) for s in streams)
        return {options.consumer_name: max(copied, default=0)}

    def wake(self, vbucket: int) -> None:
        """Called when the vbucket has new changes or another state: queues its streams."""
        for stream in self._of_vbucket.get(vbucket, ()):
            self._make_ready(stream)

    @property
    def takes_over(self) -> bool:
        """Whether a takeover is under way."""
        return self._takeovers > 0

    def _hand_over(self, stream: ActiveStream) -> None:
        """Sets the vbucket dead in a thread; after the commit the consumer is made active."""

        def handed_over() -> None:
            stream.handed_over()
            self._make_ready(stream)

        def failed(error: BaseException) -> None:
            if stream in self._of_vbucket.get(stream.vbucket, ()):
                self._fail(stream, error)
                self._make_ready(stream)

        self._outlet.commit(stream.become_dead, handed_over, failed)

    def _fail(self, stream: ActiveStream, error: BaseException) -> None:
        """Ends a stream whose vbucket cannot be read; the others go on."""
        who = f"{self._client.peer} {self.name}".rstrip()
        logger.error("%s: the stream of vbucket %d ends: %s", who, stream.vbucket, error)
        stream.fail()

    def tick(self, now: float) -> None:
        """Holds back writes that have kept a takeover from finishing for too long."""
        if self._takeovers:
            for stream in self.streams.values():
                if stream.is_takeover:
                    stream.hurry(now, self._takeover_time)

    def close(self) -> None:
        """Drops all streams without sending a stream end."""
        for stream in self.streams.values():
            stream.abandon()
        self._takeovers = 0
        self.streams.clear()
        self._of_vbucket.clear()
        self._ready.clear()

    def _drop(self, stream: ActiveStream) -> None:
        stream.abandon()
        self._forget(stream)
        if stream.queued:
            self._ready.remove(stream)
            stream.queued = False

    def _forget(self, stream: ActiveStream) -> None:
        key = (stream.vbucket, stream.stream_id)
        if self.streams.get(key) is stream:  # a newer stream may have replaced it
            del self.streams[key]
            self.ended.pop(key, None)
            if len(self.ended) >= _ENDED:
                del self.ended[next(iter(self.ended))]
            self.ended[key] = stream
            self._takeovers -= stream.is_takeover
            self._of_vbucket[stream.vbucket].remove(stream)

    def _make_ready(self, stream: ActiveStream) -> None:
        if not stream.queued:
            stream.queued = True
            self._ready.append(stream)


def _plain(dialect: Dialect, request: m.Request, status: Status) -> m.Message:
    return m.PlainResponse(
        command=dialect.command_of(request), status=status, opaque=request.opaque
    )
