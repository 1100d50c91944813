"""The change-stream side of one connection: it answers the consumer and pumps its streams.

Requests come in and messages go out as values; which bytes they have is the dialect's business,
and when they are written the connection's. Drafts before Open (002, 000) are opened by their
first request.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Iterator
from typing import Final, Protocol

from ..errors import Status
from ..model import Datatype, FailoverEntry, StreamEndReason
from ..session.filters import KnownCollections
from ..session.keepalive import ProducerKeepalive
from ..session.options import OutOfOrder, ProducerOptions, check_open_flags, set_control
from ..session.output import Shape, StreamOutput
from ..session.stream_request import Acceptance, Policy, Refusal, Rollback, VBucketFacts, decide
from ..store import Bucket
from ..wire import messages as m
from ..wire.dialects import Dcp, Dialect, Draft000, Draft001, Draft002
from ..wire.names import Command, Feature, OpenFlag, StreamFlag
from .client import Client
from .streams import ActiveStream, StreamState
from .traffic import Traffic

__all__ = ["ACKNOWLEDGE_SEQNOS", "Outlet", "StreamDesk"]

logger = logging.getLogger("upriver.producer")

#: Refusals of a message that end only the stream it belongs to; any other ends the connection.
_STREAM_NACKS: Final = frozenset(
    {
        Status.NOT_MY_VBUCKET,
        Status.STREAM_NOT_FOUND,
        Status.OPAQUE_NO_MATCH,
        Status.NOT_FOUND,
        Status.EXISTS,
    }
)
#: A control of our own: the consumer tells with Seqno Acknowledged what it has on its disk. Real
#: servers do not know it and say so.
ACKNOWLEDGE_SEQNOS: Final = "acknowledge_seqnos"
#: Characters of a refused value that its refusal repeats.
_SHOWN: Final = 40
_ACKNOWLEDGED: Final = frozenset({Command.SNAPSHOT_MARKER, Command.SET_STREAM_STATE})


class Outlet(Protocol):
    """What the desk needs of its connection and server."""

    def now(self) -> float: ...
    def opened(self, name: str) -> None:
        """The connection has a name now; an older one of that name must go."""

    def follow(self, vbucket: int) -> None:
        """Have `StreamDesk.wake` called when the vbucket moves."""

    def consume(self, name: str, consumer_name: str) -> None:
        """This node is the consumer of the connection from now on."""

    def bucket(self) -> Bucket | None: ...
    def cluster_map(self) -> bytes: ...


class StreamDesk:
    """The streams of one connection."""

    def __init__(
        self,
        client: Client,
        outlet: Outlet,
        *,
        policy: Policy,
        max_streams: int,
        idle_timeout: float,
        takeover_time: float,
        traffic: Traffic,
    ) -> None:
        self._client = client
        self._outlet = outlet
        self._policy = policy
        self._max_streams = max_streams
        self._idle_timeout = idle_timeout
        self._takeover_time = takeover_time
        self._traffic = traffic
        self.name = ""
        #: By vbucket and stream id.
        self.streams: dict[tuple[int, int | None], ActiveStream] = {}
        self._of_vbucket: dict[int, list[ActiveStream]] = {}
        self._ready: deque[ActiveStream] = deque()

    # ---- requests ------------------------------------------------------------------------

    def answer(self, request: m.Request, dialect: Dialect) -> list[m.Message]:
        """What to answer to a request of the change stream."""
        if isinstance(request, m.Open):
            return [self._open(request)]
        if self._client.options is None:
            if not isinstance(dialect, Draft002 | Draft000):
                return [
                    self._refusal(dialect, request, Status.INVALID, "open the connection first")
                ]
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
                self._options.window.acknowledged(request.size)
                return []
            case _:
                text = "a producer's connection has no such command"
                return [self._refusal(dialect, request, Status.NOT_SUPPORTED, text)]

    def answered(self, response: m.Response) -> bool:
        """Takes an answer of the consumer; false if the connection must end."""
        options = self._client.options
        if options is None:
            return False
        if response.command is Command.STREAM_NOOP:
            return options.keepalive.answered(response.opaque)
        stream = next((s for s in self.streams.values() if s.opaque == response.opaque), None)
        if response.status is Status.SUCCESS:
            if stream is not None and response.command in _ACKNOWLEDGED:
                stream.acknowledged(Command(response.command))
                self._make_ready(stream)
            return True
        if response.status not in _STREAM_NACKS:
            return False
        if stream is not None:
            logger.info(
                "%s refused vbucket %d: %s", self.name, stream.vbucket, response.status.name
            )
            self._drop(stream)
        return True

    @property
    def _options(self) -> ProducerOptions:
        options = self._client.options
        assert options is not None
        return options

    def _begin(self, flags: OpenFlag, name: str) -> None:
        keepalive = ProducerKeepalive(now=self._outlet.now(), idle_timeout=self._idle_timeout)
        self.name = name
        self._client.options = ProducerOptions(
            flags=flags,
            keepalive=keepalive,
            snappy=self._client.has(Feature.SNAPPY),
            collections=self._client.has(Feature.COLLECTIONS),
        )
        self._outlet.opened(name)

    def _open(self, request: m.Open) -> m.Message:
        dialect = Dcp()
        if self._client.options is not None:
            return self._refusal(dialect, request, Status.INVALID, "the connection is open already")
        problem = check_open_flags(request.flags) or _open_value_problem(request)
        if problem:
            return self._refusal(dialect, request, Status.INVALID, problem)
        if self._outlet.bucket() is None:
            return self._refusal(dialect, request, Status.NO_BUCKET, "select a bucket first")
        if not request.flags & OpenFlag.PRODUCER:
            self._client.consumes = True
            self._outlet.consume(request.name, _consumer_name(request))
            return m.PlainResponse(command=Command.OPEN, opaque=request.opaque)
        self._begin(request.flags, request.name)
        return m.PlainResponse(command=Command.OPEN, opaque=request.opaque)

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
        facts = None if bucket is None else _facts(bucket, request.vbucket)
        decision = decide(
            request,
            facts,
            options,
            streams=frozenset(
                key for key, stream in self.streams.items() if stream.state is not StreamState.DEAD
            ),
            short_of_memory=len(self.streams) >= self._max_streams,
            policy=self._policy,
        )
        if isinstance(decision, Refusal):
            return self._refusal(
                dialect, request, decision.status, decision.context, decision.manifest_uid
            )
        if isinstance(decision, Rollback):
            if decision.unknown_branch and isinstance(dialect, Draft001):
                return _plain(dialect, request, Status.NOT_FOUND)
            name = "" if bucket is None else bucket.name
            self._traffic.sent_back(self.name, name, request.vbucket, decision.seqno)
            return m.StreamRollback(opaque=request.opaque, seqno=decision.seqno)
        assert bucket is not None
        assert facts is not None
        self._add(bucket, request, decision, dialect, facts.purge_seqno)
        log = () if isinstance(dialect, Draft000 | Draft002) else _log(bucket, request.vbucket)
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
        modern = isinstance(dialect, Dcp)
        output = StreamOutput(
            dialect,
            vbucket=request.vbucket,
            opaque=request.opaque,
            shape=Shape.of(options) if modern else Shape(),
            filter=accepted.filter,
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
            out_of_order=options.out_of_order if modern else OutOfOrder.NO,
            acknowledged=modern,
        )
        older = self.streams.get((request.vbucket, accepted.filter.stream_id))
        if older is not None:
            self._forget(older)
        self.streams[request.vbucket, accepted.filter.stream_id] = stream
        self._of_vbucket.setdefault(request.vbucket, []).append(stream)
        self._outlet.follow(request.vbucket)
        self._make_ready(stream)

    def _close(self, request: m.CloseStream, dialect: Dialect) -> list[m.Message]:
        wanted = request.stream_id
        if (wanted is not None) is not self._options.stream_ids:
            text = "stream ids are required" if wanted is None else "stream ids were not enabled"
            return [self._refusal(dialect, request, Status.STREAM_ID_INVALID, text)]
        stream = self.streams.get((request.vbucket, wanted))
        if stream is None or stream.state is StreamState.DEAD:
            text = f"there is no stream of vbucket {request.vbucket}"
            return [self._refusal(dialect, request, Status.NOT_FOUND, text)]
        if self._options.stream_end_on_close:
            stream.finish(StreamEndReason.CLOSED)
            self._make_ready(stream)
        else:
            self._drop(stream)
        return [_plain(dialect, request, Status.SUCCESS)]

    def _refusal(
        self,
        dialect: Dialect,
        request: m.Request,
        status: Status,
        context: str,
        manifest_uid: int | None = None,
    ) -> m.Message:
        """A refusal with its reason, as far as the dialect can say it."""
        if isinstance(dialect, Draft002) and status is not Status.NOT_MY_VBUCKET:
            return m.RequestError(opaque=request.opaque, text=f"{status.name}: {context}")
        if not isinstance(dialect, Dcp):
            return _plain(dialect, request, status)
        content: dict[str, object] = {"error": {"context": context}}
        if manifest_uid is not None:
            content["manifest_uid"] = f"{manifest_uid:x}"
        value = json.dumps(content, separators=(",", ":")).encode()
        if status is Status.NOT_MY_VBUCKET:  # and so where it is instead
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
        """What the streams have to send, a turn for each, while the window is open."""
        window = self._options.window if self._client.options else None
        while window is not None and self._ready:
            stream = self._ready[0]
            before = stream.messages_sent
            taken = stream.take(window)
            self._traffic.streamed(stream.messages_sent - before, len(taken))
            if taken:
                self._ready.rotate(-1)
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
        """Whether `packets` would have something to look at."""
        options = self._client.options
        return bool(self._ready) and options is not None and options.window.is_open

    def copied(self, vbucket: int) -> dict[str, int]:
        """How far the consumer has the vbucket on its disk, by the name that it gave."""
        options = self._client.options
        if options is None or not options.consumer_name:
            return {}
        streams = self._of_vbucket.get(vbucket, ())
        return {options.consumer_name: max((s.copied_until for s in streams), default=0)}

    def wake(self, vbucket: int) -> None:
        """The vbucket moved."""
        for stream in self._of_vbucket.get(vbucket, ()):
            self._make_ready(stream)

    def tick(self, now: float) -> None:
        """Has the writers of vbuckets wait that otherwise would never be handed over."""
        for stream in self.streams.values():
            if stream.is_takeover:
                stream.hurry(now, self._takeover_time)

    def close(self) -> None:
        """Lets go of everything; nothing more is sent."""
        for stream in self.streams.values():
            stream.abandon()
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
        if self.streams.get(key) is stream:  # and not one that has taken its place
            del self.streams[key]
            self._of_vbucket[stream.vbucket].remove(stream)

    def _make_ready(self, stream: ActiveStream) -> None:
        if not stream.queued:
            stream.queued = True
            self._ready.append(stream)


def _facts(bucket: Bucket, vbucket: int) -> VBucketFacts | None:
    if vbucket >= bucket.settings.vbuckets:
        return None
    stats = bucket.vbucket_stats(vbucket)
    manifest = bucket.manifest
    scopes: dict[int, set[int]] = {scope.id: set() for scope in manifest.scopes}
    for collection in manifest.collections:
        scopes.setdefault(collection.scope, set()).add(collection.id)
    return VBucketFacts(
        state=stats.state,
        high_seqno=stats.high_seqno,
        persisted_seqno=stats.persisted_seqno,
        purge_seqno=stats.purge_seqno,
        failover_log=bucket.failover_log(vbucket),
        collections=KnownCollections(manifest.uid, dict(scopes)),
        collection_seqnos=bucket.collection_seqnos(vbucket),
    )


def _log(bucket: Bucket, vbucket: int) -> tuple[FailoverEntry, ...]:
    return bucket.failover_log(vbucket).entries


def _open_value_problem(request: m.Open) -> str:
    """What is wrong with the value of an Open; only consumers may say anything in it."""
    if not request.value:
        return "" if not request.datatype else "a datatype needs a value"
    if request.datatype != Datatype.JSON:
        return "the value must be JSON"
    try:
        content = json.loads(request.value)
    except (ValueError, RecursionError):
        return "the value is not JSON"
    if not isinstance(content, dict):
        return "the value is no JSON object"
    for key, value in content.items():
        if key != "consumer_name":
            return f"{key!r} is no property of a connection"
        if request.flags & OpenFlag.PRODUCER or not isinstance(value, str):
            return "consumer_name is text, and for consumers"
    return ""


def _consumer_name(request: m.Open) -> str:
    """What the node is called that is to be the consumer, where its manager says so."""
    return str(json.loads(request.value).get("consumer_name", "")) if request.value else ""


def _plain(dialect: Dialect, request: m.Request, status: Status) -> m.Message:
    return m.PlainResponse(
        command=dialect.command_of(request), status=status, opaque=request.opaque
    )
