"""One connection: bytes in, requests in order, answers in order, and the pump of its streams.

Requests of a connection are worked on one after the other. Writes that follow each other go to
the store as one group, and are answered when that is durable; what comes behind them waits, and
meanwhile more writes gather for the next group. Memory is bounded on both sides: too much unread
or unanswered stops reading, too much unsent stops working and pumping.

Everything runs on the event loop; only the store calls back from its own thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from ..errors import DecodeError, Status, StoreError, StoreRefusal
from ..store import Applied, Bucket, Change, Outcome
from ..wire import kv
from ..wire import messages as m
from ..wire.dialects import Dcp, Dialect, DialectPin, Draft001, Draft002
from ..wire.frameinfo import Durability
from ..wire.framing import Framer
from ..wire.header import parse_header
from ..wire.names import Command, Feature
from .client import Client
from .durability import DURABLE_COMMANDS, DurableWrite, durability_of, patience
from .front_desk import STREAM_COMMANDS, Delayed, Elsewhere, FrontDesk
from .keyvalue import Answer, Blocking, KeyValue, Later, Now, Write
from .node import GivenMap
from .quick_sets import plain_set, set_answer
from .replica_desk import ReplicaDesk, Unread, is_from_producer
from .statistics import ConnectionView, connection_view
from .stream_desk import StreamDesk

if TYPE_CHECKING:
    from .server import Server

__all__ = ["Connection"]

logger = logging.getLogger("upriver.producer")

#: Bytes that one connection may pump before others have their turn.
_PUMP_BYTES: Final = 1024 * 1024
#: What streams have to send is gathered up to this, because a call of the system costs more.
_WRITE_BYTES: Final = 128 * 1024
#: Bytes of a producer that are taken at once where this node is the consumer.
_RECEIVE_BYTES: Final = 1024 * 1024
#: Writes that go to the store as one group at the most.
_BATCH: Final = 4096
#: How often something that has not come yet is asked for.
_POLL_SECONDS: Final = 0.005
#: Seconds in which a peer can take what was written to it before its connection was closed. One
#: that reads nothing would otherwise keep its memory and its place for ever.
_FAREWELL_SECONDS: Final = 5.0

_Respond = Callable[[Any], tuple[m.Response, ...]]
_RespondLater = Callable[[Any], tuple[m.Response, ...] | Later]


class Connection(asyncio.Protocol):
    """A client's socket and what it is in the middle of."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._framer = Framer(max_body=server.settings.max_body)
        self._pin = DialectPin()
        self._dcp = Dcp()
        self._backlog: deque[bytes] = deque()
        self._backlog_bytes = 0
        #: Writes that were not given to the store yet, and how to answer them: a plain set's
        #: own packet will do.
        self._batch: list[tuple[Change, _Respond | bytes]] = []
        self._may_set_quickly = False
        self._busy = False
        self._reading = True
        self._writable = True
        self._closing = False
        self._fault: DecodeError | None = None
        self._pumping = False
        #: When it must have said who it is; once it is closing, when it must be gone.
        self._deadline = self.now() + server.settings.authentication_time
        self.client = Client(peer="")
        self.streams = StreamDesk(
            self.client,
            self,
            policy=server.settings.policy,
            max_streams=server.settings.max_streams,
            idle_timeout=server.settings.idle_timeout,
            takeover_time=server.settings.takeover_time,
            traffic=server.traffic,
        )
        #: Where this node is the consumer.
        self._replica: ReplicaDesk | None = None
        self._front = FrontDesk(server.node, self.client)
        self._keyvalue: KeyValue = server.keyvalue

    # ---- the socket ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.client.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)
        self.client.tls = transport.get_extra_info("ssl_object") is not None
        transport.set_write_buffer_limits(high=self._server.settings.connection_memory)
        if not self._server.admit(self):
            logger.warning("%s refused: too many connections", self.client.peer)
            self._closing = True
            transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._closing = True
        self._backlog.clear()
        self._let_go()
        self._server.forget(self)

    def data_received(self, data: bytes) -> None:
        if self.client.options is not None:
            self.client.options.keepalive.heard(self.now())
        try:
            for packet in self._framer.feed(data):
                self._backlog.append(packet)
                self._backlog_bytes += len(packet)
        except DecodeError as fault:
            self._fault = fault
        self._work()

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._work()
        self.pump()

    def close(self, reason: str = "") -> None:
        """Sends what was written and closes."""
        if not self._closing:
            self._closing = True
            self._deadline = self.now() + _FAREWELL_SECONDS
            if reason:
                logger.info("%s closed: %s", self.client.peer, reason)
            self._let_go()
            assert self._transport is not None
            self._transport.close()

    def abort(self) -> None:
        """Closes without waiting for a peer that may never read."""
        self._closing = True
        assert self._transport is not None
        self._transport.abort()

    def _let_go(self) -> None:
        self.streams.close()
        if self._replica is not None:
            self._replica.close()

    def _send(self, messages: Iterable[m.Message]) -> None:
        dialect = self._dialect
        self._write(b"".join([dialect.encode(message) for message in messages]))

    def _write(self, packets: bytes) -> None:
        if packets and self._connected:
            assert self._transport is not None
            self._transport.write(packets)

    @property
    def _connected(self) -> bool:
        """Whether what is written can still arrive."""
        transport = self._transport
        return transport is not None and not self._closing and not transport.is_closing()

    # ---- requests ------------------------------------------------------------------------

    @property
    def _dialect(self) -> Dialect:
        if self._replica is not None:
            return self._replica.dialect
        dialect = self._pin.dialect
        return self._dcp if isinstance(dialect, Dcp) else dialect

    def _work(self) -> None:
        """Works on what has come, until it is done or something must be waited for."""
        self._look_for_quick_sets()
        while self._backlog and not self._busy and not self._closing and self._writable:
            packet = self._backlog.popleft()
            if self._handle(packet):
                self._backlog_bytes -= len(packet)
            else:
                self._backlog.appendleft(packet)
                self._submit()
        if self._batch and not self._busy:
            self._submit()
        self._mind_the_backlog()
        if self._fault is not None and not self._backlog and not self._busy:
            self.close(str(self._fault))

    def _mind_the_backlog(self) -> None:
        if self._transport is None or self._closing:
            return
        waiting = self._backlog_bytes + self._framer.pending
        limit = max(self._server.settings.max_backlog, self._framer.pending)
        if self._reading and self._backlog_bytes > 0 and waiting > limit:
            self._reading = False
            self._transport.pause_reading()
        elif not self._reading and self._backlog_bytes <= limit // 2:
            self._reading = True
            self._transport.resume_reading()

    def _handle(self, packet: bytes) -> bool:
        """Works on one packet; false if writes before it must be finished first."""
        if self._replica is not None and is_from_producer(packet):
            if self._batch:
                return False
            self._receive(self._replica, packet)
            return True
        if self._may_set_quickly:
            quick = plain_set(packet, collections=self._dcp.collections)
            if quick is not None:
                self._batch.append((quick, packet))
                if len(self._batch) >= _BATCH:
                    self._submit()
                return True
        try:
            self._pin.observe(packet)
            message = self._dialect.decode(packet)
        except DecodeError as error:
            if self._batch:
                return False
            self._refuse(packet, error)
            return True
        if isinstance(message, m.Response):
            if message.command is Command.CLUSTERMAP_CHANGED:
                return True  # some clients answer a new map
            if not self.streams.answered(message):
                self.close("an answer to nothing that was asked")
            self.pump()
            return True
        assert isinstance(message, m.Request)
        bucket = self.bucket()
        if bucket is not None and self._front.may_write(message):
            answer = self._keyvalue.answer(self.client, message)
            if isinstance(answer, Write):
                self._batch.append((answer.change, answer.respond))
                if len(self._batch) >= _BATCH:
                    self._submit()
            elif self._batch:
                return False  # and it is asked again, when it can read what was written
            else:
                self._deliver(answer)
            return True
        if self._batch:
            return False
        self._answer(message)
        self._look_for_quick_sets()  # what was answered may have changed who the client is
        return True

    def _look_for_quick_sets(self) -> None:
        """Decides whether plain sets can go straight to the store, until something changes."""
        bucket = self.bucket()
        self._may_set_quickly = (
            bucket is not None
            and isinstance(self._dialect, Dcp)
            and self._pin.pinned
            and self._front.may_set
            and not self._keyvalue.has_locks(bucket)
        )

    def _answer(self, request: m.Request) -> None:
        dialect = self._dialect
        front = self._front.answer(request, dialect)
        if isinstance(front, Elsewhere):
            self._busy = True
            self._server.in_thread(front.call).add_done_callback(
                lambda done: self._loop.call_soon_threadsafe(self._found_out, done.result())
            )
        elif isinstance(front, Delayed):
            self._busy = True
            self._loop.call_later(front.seconds, self._delayed, front.messages)
        elif front is not None:
            self._send(front)
            if isinstance(request, kv.Hello):
                self._dcp = Dcp(collections=self.client.has(Feature.COLLECTIONS))
                if self.client.options is not None:
                    self.client.options.collections = self._dcp.collections
                    self.client.options.snappy = self.client.has(Feature.SNAPPY)
            if isinstance(request, kv.Quit):
                self.close()
        elif dialect.command_of(request) in STREAM_COMMANDS:
            desk = self.streams if self._replica is None else self._replica
            self._send(desk.answer(request, dialect))
            self.pump()
        elif (
            self._server.node.durable_writes
            and dialect.command_of(request) in DURABLE_COMMANDS
            and (wanted := durability_of(request)) is not None
        ):
            self._answer_durably(request, wanted)
        else:
            if isinstance(request, kv.DocumentRequest):
                self._server.traffic.reads += 1
            self._deliver(self._keyvalue.answer(self.client, request))

    def _deliver(self, answer: Answer) -> None:
        """Does what an answer of the key-value front end needs."""
        if isinstance(answer, Now):
            self._send(answer.responses)
        elif isinstance(answer, Write):
            self._batch.append((answer.change, answer.respond))
        elif isinstance(answer, Later):
            self._poll(answer)
        else:
            assert isinstance(answer, Blocking)
            self._await(self._server.in_thread(answer.call), lambda responses: responses)

    def _refuse(self, packet: bytes, error: DecodeError) -> None:
        """Answers a request that breaks a rule, or ends a connection that cannot go on."""
        if not error.usable:
            self.close(str(error))
        elif isinstance(self._dialect, Draft002):
            opaque = int.from_bytes(packet[4:8], "big")
            self._send([m.RequestError(opaque=opaque, text=str(error))])
        elif (header := parse_header(packet)).is_response:
            self.close(str(error))
        else:
            self._send([self._front.malformed(header, error)])

    # ---- writes and other things that take time ------------------------------------------

    def _submit(self) -> None:
        """Gives the gathered writes to the store."""
        batch, self._batch = self._batch, []
        bucket = self.bucket()
        if not batch or bucket is None:
            return
        self._busy = True
        try:
            future = bucket.submit([change for change, _ in batch])
        except StoreError as error:
            self._busy = False
            self.close(str(error))
            return

        future.add_done_callback(
            lambda done: self._loop.call_soon_threadsafe(self._committed, batch, done)
        )

    def _committed(
        self, batch: list[tuple[Change, _Respond | bytes]], future: Future[list[Outcome]]
    ) -> None:
        """Answers a group of writes, or tells all of them what their group met."""
        self._busy = False
        outcomes: list[Outcome] | list[StoreError]
        try:
            outcomes = future.result()
        except StoreError as error:
            outcomes = [error] * len(batch)
        except Exception:  # a fault of ours must cost its writers an answer, not the connection
            logger.exception("a group of %d writes failed", len(batch))
            outcomes = [StoreError("the write failed")] * len(batch)
        packets: list[bytes] = []
        for (change, respond), outcome in zip(batch, outcomes, strict=True):
            if isinstance(respond, bytes):
                if isinstance(outcome, Applied):
                    packets.append(set_answer(respond, outcome, self._token(change.vbucket)))
                    continue
                respond = self._respond_to(respond)
            packets += map(self._dialect.encode, respond(outcome))
        self._write(b"".join(packets))
        self._work()

    def _token(self, vbucket: int) -> int | None:
        """The branch that clients are told of who asked where their writes are."""
        bucket = self.bucket()
        if bucket is None or not self.client.has(Feature.MUTATION_SEQNO):
            return None
        return bucket.failover_log(vbucket).newest.vbuuid

    def _respond_to(self, packet: bytes) -> _Respond:
        """How the front end answers a plain set that was not made."""
        request = self._dialect.decode(packet)
        assert isinstance(request, m.Request)
        answer = self._keyvalue.answer(self.client, request)
        if isinstance(answer, Write):
            return answer.respond
        assert isinstance(answer, Now)
        return lambda outcome: answer.responses

    def _await(self, future: Future[Any], respond: _RespondLater) -> None:
        """Goes on when a future is done; nothing else of this connection is worked on until."""
        self._busy = True
        future.add_done_callback(
            lambda done: self._loop.call_soon_threadsafe(self._done, done, respond)
        )

    def _done(self, future: Future[Any], respond: _RespondLater) -> None:
        self._busy = False
        if self._closing:
            return
        try:
            answer = respond(future.result())
        except StoreError as error:
            logger.error("%s: %s", self.client.peer, error)
            self.close(str(error))
            return
        if isinstance(answer, Later):
            self._poll(answer)
        else:
            self._send(answer)
        self._work()

    def _answer_durably(self, request: Any, wanted: Durability) -> None:
        """Makes a change and answers it when other nodes have it, or when it is too late."""
        bucket = self.bucket()
        assert bucket is not None
        names = self._server.node.copies(bucket, request.vbucket)
        refusal = m.PlainResponse(
            command=self._dialect.command_of(request),
            opaque=request.opaque,
            status=Status.DURABILITY_IMPOSSIBLE,
        )
        if names is None or not names.are_enough:
            self._send([refusal])
            return
        answer = self._keyvalue.answer(self.client, request)
        if isinstance(answer, Now | Later):
            self._deliver(answer)  # nothing is written
            return
        write = DurableWrite(
            bucket,
            request.vbucket,
            names,
            refusal,
            copied=lambda: self._server.copied(bucket, request.vbucket),
            now=self.now,
            deadline=self.now() + patience(wanted),
        )
        if isinstance(answer, Write):
            respond = answer.respond
            future = bucket.submit((answer.change,))
            self._await(future, lambda outcomes: write.stored(respond(outcomes[0])))
        else:
            self._await(self._server.in_thread(answer.call), write.stored)

    def _poll(self, answer: Later) -> None:
        """Asks for an answer that has not come yet, again and again."""
        self._busy = False
        if self._closing:
            return
        responses = answer.poll()
        if responses is None:
            self._busy = True
            self._loop.call_later(_POLL_SECONDS, self._poll_again, answer)
        else:
            self._send(responses)

    def _poll_again(self, answer: Later) -> None:
        self._poll(answer)
        self._work()

    def _found_out(self, answer: list[m.Message] | Delayed) -> None:
        """Goes on with an answer that was worked out in a thread."""
        if isinstance(answer, Delayed):
            self._loop.call_later(answer.seconds, self._delayed, answer.messages)
        else:
            self._delayed(answer)

    def _delayed(self, messages: list[m.Message]) -> None:
        self._busy = False
        self._send(messages)
        self._work()

    def view(self) -> ConnectionView:
        """How the connection is doing."""
        return connection_view(self.client, self.streams, self._replica, self._dialect.name)

    # ---- the node as consumer ------------------------------------------------------------

    def _receive(self, replica: ReplicaDesk, packet: bytes) -> None:
        """Takes what a producer sent, as much as has come, and goes on when it is written."""
        gathered = bytearray(packet)
        while (
            self._backlog and len(gathered) < _RECEIVE_BYTES and is_from_producer(self._backlog[0])
        ):
            following = self._backlog.popleft()
            self._backlog_bytes -= len(following)
            gathered += following
        unread = replica.received(bytes(gathered))
        if unread is None:
            return
        self._busy = True
        self._server.in_thread(unread.write).add_done_callback(
            lambda done: self._loop.call_soon_threadsafe(self._stored, replica, unread, done)
        )

    def _stored(
        self, replica: ReplicaDesk, unread: Unread, done: Future[dict[int, StoreRefusal]]
    ) -> None:
        self._busy = False
        error = done.exception()
        replica.stored(unread, None if error else done.result())
        if error is not None:
            logger.error("%s: what came cannot be written: %s", self.client.peer, error)
            self.close("what came cannot be written")
        self._work()

    def reply(self, *messages: m.Message) -> None:
        self._send(messages)

    def send(self, data: bytes) -> None:
        self._write(data)

    def claim(self, vbucket: int) -> bool:
        bucket = self.bucket()
        assert bucket is not None
        return self._server.claim(self, bucket, vbucket)

    def release(self, vbucket: int) -> None:
        bucket = self.bucket()
        assert bucket is not None
        self._server.release(bucket, vbucket)

    def state_changed(self, vbucket: int) -> None:
        """A vbucket that is received here moved, or became something else."""
        if self._replica is not None:
            self._replica.state_changed(vbucket)

    # ---- streams -------------------------------------------------------------------------

    def now(self) -> float:
        return self._loop.time()

    def bucket(self) -> Bucket | None:
        if self.client.bucket is None:
            self.client.bucket = self._server.node.default_bucket(self.client)
        return self.client.bucket

    def cluster_map(self) -> bytes:
        return self._server.node.cluster_map(self.client)

    def opened(self, name: str) -> None:
        self._server.opened(self, name)

    def consume(self, name: str, consumer_name: str) -> None:
        bucket = self.bucket()
        assert bucket is not None
        # Who begins with Open and nothing before it speaks as the draft that invented it does.
        dialect = self._dcp if self._pin.pinned else Draft001()
        self._replica = ReplicaDesk(bucket, dialect, self, name, consumer_name)
        self._server.opened(self, name)

    def push_map(self, given: GivenMap) -> None:
        """Sends a new map of the client's bucket, if it wants to be told."""
        bucket = self.client.bucket
        if bucket is None or bucket.name != given.bucket or not self.client.selected:
            return
        if self.client.has(Feature.CLUSTERMAP_NOTIFICATION) and self._writable:
            self._send([given.message(json=self.client.has(Feature.JSON))])

    def follow(self, vbucket: int) -> None:
        bucket = self.bucket()
        assert bucket is not None
        self._server.follow(self, bucket, vbucket)

    def pump(self) -> None:
        """Sends what streams have, in turns with other connections."""
        if not self._pumping and self.streams.has_more:
            self._pumping = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pumping = False
        if not self._connected or not self._writable:
            return
        sent, gathered = 0, bytearray()
        try:
            for packets in self.streams.packets():
                gathered += packets
                sent += len(packets)
                if len(gathered) >= _WRITE_BYTES:
                    self._write(bytes(gathered))
                    gathered.clear()
                if sent >= _PUMP_BYTES or not self._writable or not self._connected:
                    break
        except StoreError as error:
            logger.error("%s: %s", self.client.peer, error)
            self.close(str(error))
            return
        self._write(bytes(gathered))
        if self._writable:
            self.pump()

    def tick(self) -> None:
        """Gives up a peer whose time has passed, and asks whether it is there when that is due."""
        late = self.now() >= self._deadline
        if self._closing:
            if late:
                self.abort()
            return
        if late and not self._front.identified:
            self.close("it did not say who it is")
            return
        if self._replica is not None and not self._replica.tick(self.now()):
            self.close("its producer gave no sign of life")
            return
        self.streams.tick(self.now())
        options = self.client.options
        if options is None:
            return
        if options.keepalive.is_gone(self.now()):
            self.close("nothing was heard of it")
            return
        opaque = options.keepalive.due(self.now())
        if opaque is not None and isinstance(self._dialect, Dcp):
            self._send([m.StreamNoop(opaque=opaque)])
