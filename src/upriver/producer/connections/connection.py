"""One client connection: reads requests, answers them in order, and sends its streams.

Requests are handled one after the other, in the connection's turns on the event loop. While a
request waits for the store or for a thread (`DeferredResponses`), later ones stay in the receive
buffer. Memory is bounded in both directions. Too many bytes received and not yet handled stop
reading. Too many bytes not yet sent stop the handling of requests and the sending of streams.

Everything runs on the event loop; only the store calls back from its own thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

from ...errors import DecodeError
from ...store import Bucket
from ...wire import kv_messages as kv
from ...wire import messages as m
from ...wire.dialects import Dcp, Dialect, DialectPin, Draft001
from ...wire.dialects.draft002 import opaque_of
from ...wire.header import parse_header
from ...wire.protocol_enums import Command, Feature
from ..bootstrap.bootstrap_commands import STREAM_COMMANDS, BootstrapCommands, Delayed, InThread
from ..dcp.dcp_consumer import is_from_producer
from ..dcp.dcp_producer import DcpProducer
from ..keyvalue import BackgroundWork, KeyValue, Write
from ..keyvalue.durability_requirements import DURABLE_COMMANDS, durability_of
from ..keyvalue.fast_sets import plain_set
from ..server_context import GivenMap
from ..server_settings import PeerRelease
from ..server_views import ConnectionView, connection_view
from .client_info import ClientInfo
from .connection_scheduler import TURN_PACKETS, TURN_SECONDS, Load
from .deadlines import Deadlines
from .deferred_responses import DeferredResponses
from .memory_limit import SMALL
from .read_limiter import ReadLimiter
from .receive_buffer import ReceiveBuffer
from .replica_input import ReplicaInput
from .send_buffer import SendBuffer

if TYPE_CHECKING:
    from ..server import Server

logger = logging.getLogger("upriver.producer")

#: Stream data is collected up to this size before it is written, to save system calls.
_WRITE_BYTES: Final = 128 * 1024
#: What an error calls a stream request.
_STREAM_REQUEST: Final = f"{Command.STREAM_REQUEST} request"
#: Characters of a peer's error text that are logged.
_SHOWN: Final = 200


class Connection(asyncio.Protocol):
    """The asyncio protocol of one client's socket."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._inbox = ReceiveBuffer()
        self._draft001 = Draft001(nru=server.settings.peers is PeerRelease.APRIL_2014)
        self._pin = DialectPin(self._draft001)
        self._dcp = Dcp()
        self._said_hello = False
        self._json = False
        self._may_set_quickly = False
        self._outbox = SendBuffer(self.go_on)
        self._limiter = ReadLimiter(self, server, self._inbox, self._outbox, self.check_memory)
        self._closing = False
        #: Whether the peer has sent a request.
        self._asked = False
        #: Whether the peer has closed its side, and whether the socket is closed.
        self._ended = self._lost = False
        #: Attributes that the `ConnectionScheduler` sets.
        self.queued, self.load, self.heavy_until = False, Load.NEW, 0.0
        self._deadlines = Deadlines(self, server)
        #: When the oldest data arrived that is not handled yet.
        self.received_at = self.now()
        self.client = ClientInfo(peer="")
        self.streams = DcpProducer(
            self.client,
            self,
            policy=server.settings.policy,
            max_streams=server.settings.max_streams,
            idle_timeout=server.settings.idle_timeout,
            takeover_time=server.settings.takeover_time,
            traffic=server.traffic,
            peers=server.settings.peers,
        )
        #: Set if this node is the DCP consumer of the connection.
        self.replica: ReplicaInput | None = None
        self._front = BootstrapCommands(server.node, self.client)
        self._keyvalue: KeyValue = server.keyvalue
        self._waiting = DeferredResponses(self, server)

    # ---- the socket ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._outbox.attach(transport)
        peer = transport.get_extra_info("peername")
        self.client.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)
        self.client.tls = transport.get_extra_info("ssl_object") is not None
        if not self._server.admit(self):
            self._closing = True
            transport.abort()
            return
        self._look_at_client()
        self._deadlines.set_timer()

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True
        if self._ended and not self._closing and error is None:
            # TLS only: see `eof_received`. Requests that the peer sent before its end are still
            # handled, in turns as before; responses cannot be sent any more.
            self._outbox.clear()
            self._outbox.resume()
            self.go_on()
        else:
            self._leave()

    def _leave(self) -> None:
        """Releases everything once the socket is closed."""
        if self._waiting.has_writes and not self._waiting.busy:
            self._waiting.submit()  # writes are still stored; only their responses are lost
        self._closing = True
        self._deadlines.cancel()
        self._limiter.cancel()
        self._let_go()
        self._server.forget(self)

    def data_received(self, data: bytes) -> None:
        if self.client.options is not None:
            self.client.options.keepalive.heard(self.now())
        if not self._inbox.held:
            self.received_at = self.now()
        self._inbox.add(data)
        self._server.turns.work_now(self)
        self.check_memory()

    def eof_received(self) -> bool:
        """Handles the end of the peer's data.

        Requests already received are still handled, in turns. A plain connection stays half
        open until all responses are sent. asyncio closes a TLS connection when this returns, so
        only the responses of one turn can still be sent.
        """
        self._ended = True
        if self.client.tls:
            self.work(self.now() + TURN_SECONDS)
            return False
        self.go_on()
        return True

    def pause_writing(self) -> None:
        self._outbox.pause()

    def resume_writing(self) -> None:
        self._outbox.resume()
        self.go_on()

    def failed(self) -> None:
        self.close("its request met a fault of the server")

    def close(self, reason: str = "") -> None:
        """Closes the connection after all written data has been sent."""
        if not self._closing:
            self._closing = True
            self._deadlines.begin_farewell()
            if reason:
                logger.info("%s closed: %s", self.client.peer, reason)
            if self._lost:
                self._leave()
                return
            assert self._transport is not None
            self._outbox.flush_all()
            self._let_go()
            self._deadlines.set_timer()
            self._transport.close()

    def abort(self) -> None:
        """Closes the connection at once. Data that is not sent yet is lost."""
        self._closing = True
        assert self._transport is not None
        self._transport.abort()

    def give_way(self) -> bool:
        """Closes the connection at once, for a new one, unless its client is known by now."""
        if self._known:
            return False
        self.abort()
        self._server.forget(self)
        return True

    @property
    def _known(self) -> bool:
        """Whether the client has authenticated, or need not and has sent a request."""
        return self.identified and self._asked

    @property
    def identified(self) -> bool:
        """Whether the client has authenticated, or need not."""
        return self._front.identified

    @property
    def closing(self) -> bool:
        return self._closing

    def _let_go(self) -> None:
        self._outbox.clear()
        self._inbox.clear()
        self._waiting.close()
        self.streams.close()
        if self.replica is not None:
            self.replica.commands.close()

    def reply(self, *messages: m.Message) -> None:
        if self._connected:
            self._outbox.write_messages(self.dialect, messages)

    def send(self, packets: bytes) -> None:
        if self._connected:
            self._outbox.write(packets)

    @property
    def _connected(self) -> bool:
        """Whether written data can still be sent."""
        return not self._closing and self._outbox.connected

    # ---- requests ------------------------------------------------------------------------

    @property
    def dialect(self) -> Dialect:
        if self.replica is not None:
            return self.replica.commands.dialect
        dialect = self._pin.dialect
        return self._dcp if dialect.negotiates else dialect

    def go_on(self) -> None:
        """Requests a turn, in which received packets are handled."""
        self._server.turns.ask(self)

    def work(self, until: float) -> bool:
        """Runs one turn: requests, then streams. Returns whether anything is left to do."""
        if self._closing:
            return False
        if self._has_lost_its_rights:
            if not self._waiting.busy:
                self.close("it failed to authenticate again")
            return False
        self._look_at_client()
        if self._outbox and self._outbox.flush() and self._outbox:
            self.check_memory()
            return True
        more = self._work_on_requests(until)
        more = self._pump(until) or more
        self.check_memory()
        if self._ended and not more and not self._waiting.busy and self._outbox.writable:
            self.close()
        return (more or bool(self._outbox)) and self._outbox.transport_takes and not self._closing

    def _work_on_requests(self, until: float) -> bool:
        waiting, left = self._waiting, TURN_PACKETS
        while not self._closing and self._outbox.writable:
            if waiting.has_parts:
                waiting.send_part()
            elif waiting.busy:
                return False
            else:
                packet = self._next_packet()
                if packet is None:
                    break
                if not self._handle(packet):
                    self._inbox.put_back(packet)
                    waiting.submit()
                    continue
            left -= 1
            if not left or self._loop.time() >= until:
                return True
        if waiting.has_writes and not waiting.busy:
            waiting.submit()
        return False

    @property
    def _has_lost_its_rights(self) -> bool:
        """Whether the connection was opened for streams and then failed to re-authenticate."""
        return self.client.is_open and not self.identified

    def _next_packet(self) -> bytes | None:
        try:
            return self._inbox.take()
        except DecodeError as fault:
            if not self._waiting.has_writes:  # else the error is found again after their responses
                self.close(str(fault))
            return None

    def _look_at_client(self) -> None:
        """Sets the limits and the fast path, which depend on authentication and roles."""
        settings, known = self._server.settings, self.identified
        if self._known:
            self._server.strangers.discard(self)
        elif not self._closing:
            self._server.strangers.add(self, self.give_way)
        limit = settings.max_body if known else min(settings.max_body, SMALL)
        self._inbox.expect(limit, uniform=known)
        limit = settings.connection_memory
        if not known or self._server.buffers.short:
            limit = min(limit, SMALL)
        self._outbox.limit(limit)
        bucket = self.bucket()
        self._may_set_quickly = (  # plain SETs may take the fast path
            bucket is not None
            and self.dialect.negotiates
            and self._pin.pinned
            and self._front.may_set
            and not self._keyvalue.has_locks(bucket)
        )

    def check_memory(self) -> None:
        """Pauses or resumes reading, by the memory of this connection and of all connections."""
        if self._transport is None or self._closing:
            return
        self._limiter.apply(self._transport, identified=self.identified)

    def _handle(self, packet: bytes) -> bool:
        """Handles one packet; returns False if earlier writes must be finished first."""
        if self.replica is not None and is_from_producer(packet):
            if self._waiting.has_writes:
                return False
            self.replica.receive(packet, self._inbox, self._waiting)
            return True
        if self._may_set_quickly:
            quick = plain_set(packet, collections=self._dcp.collections, json=self._json)
            if quick is not None:
                self._waiting.gather(quick, packet, len(packet))
                return True
        try:
            self._pin.observe(packet)
            message = self.dialect.decode(packet)
        except DecodeError as error:
            if self._waiting.has_writes:
                return False
            self._refuse(packet, error)
            return True
        if not self._asked:  # a client that need not authenticate is known by this
            self._asked = True
            self._look_at_client()
        if isinstance(message, m.Response):
            if message.command is Command.CLUSTERMAP_CHANGED:
                return True  # some clients respond to a map notification
            if not self.streams.answered(message):
                self.close("it sent a response to no request")
            self._deadlines.set_timer()
            return True
        if isinstance(message, m.RequestError | m.ResponseError):  # draft 002 refuses with these
            self.streams.nacked(message.opaque, message.text[:_SHOWN] or type(message).__name__)
            return True
        assert isinstance(message, m.Request)
        bucket = self.bucket()
        if bucket is not None and self._front.may_write(message):
            answer = self._keyvalue.answer(self.client, message)
            if isinstance(answer, Write):
                self._waiting.gather(answer.change, answer.respond, len(packet))
            elif self._waiting.has_writes:
                return False  # handled again after the writes, which it must read
            else:
                self._waiting.deliver(answer)
            return True
        if self._waiting.has_writes:
            return False
        self._answer(message)
        self._look_at_client()  # the request may have changed the client's rights
        return True

    def _answer(self, request: m.Request) -> None:
        dialect = self.dialect
        front = self._front.answer(request, dialect)
        if isinstance(front, InThread | Delayed):
            self._waiting.deliver_late(front)
        elif front is not None:
            self.reply(*front)
            if isinstance(request, kv.Hello):
                self._said_hello = True
                self._dcp = Dcp(collections=self.client.has(Feature.COLLECTIONS))
                self._json = self.client.has(Feature.JSON)
                if self.client.options is not None:
                    self.client.options.collections = self._dcp.collections
                    self.client.options.snappy = self.client.has(Feature.SNAPPY)
            if isinstance(request, kv.Quit):
                self.close()
            self._deadlines.set_timer()
        elif dialect.command_of(request) in STREAM_COMMANDS:
            commands = self.streams if self.replica is None else self.replica.commands
            self.reply(*commands.answer(request, dialect))
            self._deadlines.set_timer()
        elif (
            self._server.node.durable_writes
            and dialect.command_of(request) in DURABLE_COMMANDS
            and (wanted := durability_of(request)) is not None
        ):
            self._waiting.answer_durably(request, wanted)
        else:
            if isinstance(request, kv.DocumentRequest):
                self._server.traffic.reads += 1
            is_write = dialect.command_of(request) in DURABLE_COMMANDS
            self._waiting.deliver(self._keyvalue.answer(self.client, request), is_write=is_write)

    def _refuse(self, packet: bytes, error: DecodeError) -> None:
        """Answers an invalid request, or closes a connection that cannot continue."""
        asks_stream = error.packet == _STREAM_REQUEST
        if error.usable and asks_stream and self.identified:
            self.streams.log_refusal("a stream request", error.status, str(error))
        if not error.usable:
            self.close(str(error))
        elif not self.dialect.has_memcached_header:
            self.reply(m.ResponseError(opaque=opaque_of(packet), text=str(error)))
        elif (header := parse_header(packet)).is_response:
            self.close(str(error))
        elif self.replica is not None and asks_stream:
            self.close(f"a stream is requested of a consumer: {error}")
        else:
            self.reply(self._front.malformed(header, error))

    @property
    def name(self) -> str:
        """The name given in the DCP Open."""
        return self.streams.name if self.replica is None else self.replica.commands.name

    def view(self) -> ConnectionView:
        """Returns the statistics of the connection."""
        replica = None if self.replica is None else self.replica.commands
        return connection_view(self.client, self.streams, replica, self.dialect.name)

    def state_changed(self, vbucket: int) -> None:
        """Called when a vbucket that is received here has new changes or another state."""
        if self.replica is not None:
            self.replica.commands.state_changed(vbucket)

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
        # Nodes of draft 001, and those up to release 4.1, say no Hello: which it is, the first
        # stream request finds out.
        dialect: Dialect = self._draft001
        other: Dialect = self._dcp
        if self._said_hello or self._server.peer_dialects.negotiates(name):
            dialect, other = other, dialect
        self.replica = ReplicaInput(
            *(self, self._server, bucket, dialect, name, consumer_name),
            other=None if self._said_hello else other,
        )
        self._server.opened(self, name)

    def push_map(self, given: GivenMap) -> None:
        """Sends a new map of the client's bucket, if it has negotiated notifications.

        Clients with brief notifications stop asking for maps. So those without a bucket get
        the cluster's map, and a client that negotiated both kinds gets the brief one.
        """
        client = self.client
        bucket = client.bucket.name if client.bucket is not None and client.selected else ""
        brief = client.has(Feature.CLUSTERMAP_BRIEF_NOTIFICATION)
        if bucket != given.bucket:
            return
        whole = bucket and client.has(Feature.CLUSTERMAP_NOTIFICATION) and self._outbox.writable
        if brief or whole:
            self.reply(given.message(json=client.has(Feature.JSON), brief=brief))

    def follow(self, vbucket: int) -> None:
        bucket = self.bucket()
        assert bucket is not None
        self._server.follow(self, bucket, vbucket)

    def commit(
        self,
        call: Callable[[], object],
        then: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Runs a call that waits for the disk in a thread, then one of the others on the loop."""
        done = self._server.in_thread(BackgroundWork.ADMINISTERING, call)

        def notify(_: Future[object]) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(did_commit)

        def did_commit() -> None:
            error = done.exception()
            if error is not None:
                failed(error)
            elif not self._closing:
                then()
            self.go_on()

        done.add_done_callback(notify)

    def pump(self) -> None:
        """Requests a turn if streams have something to send."""
        if self.streams.has_more:
            self.go_on()

    def _pump(self, until: float) -> bool:
        """Sends stream data, at least one piece; returns whether there is more."""
        if not self.streams.has_more or not self._connected or not self._outbox.writable:
            return False
        gathered = bytearray()
        for packets in self.streams.packets():
            gathered += packets
            if len(gathered) >= _WRITE_BYTES:
                self.send(bytes(gathered))
                gathered.clear()
            if not self._outbox.writable or not self._connected or self._loop.time() >= until:
                break
        self.send(bytes(gathered))
        return self.streams.has_more
