"""One connection: bytes in, requests in order, answers in order, and the pump of its streams.

Requests of a connection are worked on one after the other; `waiting` has those that take time,
and what comes behind them stays in the backlog. Memory is bounded on both sides: too much unread
or unanswered stops reading, too much unsent stops working and pumping.

Everything runs on the event loop; only the store calls back from its own thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

from ..errors import DecodeError, StoreError, StoreRefusal
from ..store import Bucket
from ..wire import kv
from ..wire import messages as m
from ..wire.dialects import Dcp, Dialect, DialectPin, Draft001, Draft002
from ..wire.framing import Framer
from ..wire.header import parse_header
from ..wire.names import Command, Feature
from .client import Client
from .durability import DURABLE_COMMANDS, durability_of
from .front_desk import STREAM_COMMANDS, Delayed, Elsewhere, FrontDesk
from .keyvalue import KeyValue, Write
from .node import GivenMap
from .quick_sets import plain_set
from .replica_desk import ReplicaDesk, Unread, is_from_producer
from .statistics import ConnectionView, connection_view
from .stream_desk import StreamDesk
from .waiting import Waiting

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
#: Seconds in which a peer can take what was written to it before its connection was closed. One
#: that reads nothing would otherwise keep its memory and its place for ever.
_FAREWELL_SECONDS: Final = 5.0


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
        self._may_set_quickly = False
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
        self._waiting = Waiting(self, server)

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
        self.go_on()

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self.go_on()
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

    @property
    def closing(self) -> bool:
        return self._closing

    def _let_go(self) -> None:
        self.streams.close()
        if self._replica is not None:
            self._replica.close()

    def _send(self, messages: Iterable[m.Message]) -> None:
        dialect = self.dialect
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
    def dialect(self) -> Dialect:
        if self._replica is not None:
            return self._replica.dialect
        dialect = self._pin.dialect
        return self._dcp if isinstance(dialect, Dcp) else dialect

    def go_on(self) -> None:
        """Works on what has come, until it is done or something must be waited for."""
        self._look_for_quick_sets()
        waiting = self._waiting
        while self._backlog and not waiting.busy and not self._closing and self._writable:
            packet = self._backlog.popleft()
            if self._handle(packet):
                self._backlog_bytes -= len(packet)
            else:
                self._backlog.appendleft(packet)
                waiting.submit()
        if waiting.has_writes and not waiting.busy:
            waiting.submit()
        self._mind_the_backlog()
        if self._fault is not None and not self._backlog and not waiting.busy:
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
            if self._waiting.has_writes:
                return False
            self._receive(self._replica, packet)
            return True
        if self._may_set_quickly:
            quick = plain_set(packet, collections=self._dcp.collections)
            if quick is not None:
                self._waiting.gather(quick, packet)
                return True
        try:
            self._pin.observe(packet)
            message = self.dialect.decode(packet)
        except DecodeError as error:
            if self._waiting.has_writes:
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
                self._waiting.gather(answer.change, answer.respond)
            elif self._waiting.has_writes:
                return False  # and it is asked again, when it can read what was written
            else:
                self._waiting.deliver(answer)
            return True
        if self._waiting.has_writes:
            return False
        self._answer(message)
        self._look_for_quick_sets()  # what was answered may have changed who the client is
        return True

    def _look_for_quick_sets(self) -> None:
        """Decides whether plain sets can go straight to the store, until something changes."""
        bucket = self.bucket()
        self._may_set_quickly = (
            bucket is not None
            and isinstance(self.dialect, Dcp)
            and self._pin.pinned
            and self._front.may_set
            and not self._keyvalue.has_locks(bucket)
        )

    def _answer(self, request: m.Request) -> None:
        dialect = self.dialect
        front = self._front.answer(request, dialect)
        if isinstance(front, Elsewhere | Delayed):
            self._waiting.deliver_late(front)
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
            self._waiting.answer_durably(request, wanted)
        else:
            if isinstance(request, kv.DocumentRequest):
                self._server.traffic.reads += 1
            self._waiting.deliver(self._keyvalue.answer(self.client, request))

    def _refuse(self, packet: bytes, error: DecodeError) -> None:
        """Answers a request that breaks a rule, or ends a connection that cannot go on."""
        if not error.usable:
            self.close(str(error))
        elif isinstance(self.dialect, Draft002):
            opaque = int.from_bytes(packet[4:8], "big")
            self._send([m.RequestError(opaque=opaque, text=str(error))])
        elif (header := parse_header(packet)).is_response:
            self.close(str(error))
        else:
            self._send([self._front.malformed(header, error)])

    def view(self) -> ConnectionView:
        """How the connection is doing."""
        return connection_view(self.client, self.streams, self._replica, self.dialect.name)

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
        self._waiting.run(unread.write, lambda done: self._stored(replica, unread, done))

    def _stored(
        self, replica: ReplicaDesk, unread: Unread, done: Future[dict[int, StoreRefusal]]
    ) -> None:
        error = done.exception()
        replica.stored(unread, None if error else done.result())
        if error is not None:
            logger.error("%s: what came cannot be written: %s", self.client.peer, error)
            self.close("what came cannot be written")

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
        if opaque is not None and isinstance(self.dialect, Dcp):
            self._send([m.StreamNoop(opaque=opaque)])
