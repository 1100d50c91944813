"""asyncio connection to a node: does the I/O of conversations and of a `ConsumerSession`.

It also answers noops, acknowledges consumed bytes to the flow-control window, and detects a dead
node. Its owner (the engine) decides which streams it carries, and what happens when it is lost. It
runs on one event loop.

Every wait is limited. TCP connect, TLS handshake and authentication have `connect_timeout`, each
conversation has `answer_timeout`, and a node that sends nothing for two noop intervals counts as
lost.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

from ... import _daemon
from ...errors import ConnectionFailed, DecodeError, InternalError, Status, UpriverError
from ...session.client_handshake import FIRST_OPAQUE, introduce, stranger
from ...session.consumer_events import Answered, Event, Rows
from ...session.consumer_session import FIRST_OTHER_OPAQUE, ConsumerSession
from ...session.conversation import Compute, Conversation, Exchange, Pending, single
from ...session.dcp_open import Opened, Opening, open_connection
from ...session.flow_control import ReceiveWindow
from ...session.keepalive import Silence
from ...wire import kv_messages as kv
from ...wire import messages as m
from ...wire.dialects import Dcp, Dialect
from ...wire.framing import Framer
from ...wire.protocol_enums import Command, Feature
from ..consumer_settings import ConsumerSettings
from .access import Access, introduction
from .connection_errors import lost_connection, named, no_tls, unreachable
from .connection_string import Address, Source

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

#: Reading from the socket pauses when the application holds more than this many buffers. This
#: limits memory where the protocol draft has no flow control or the node ignores the window.
_BUFFERS_HELD: Final = 2
#: Size of the read buffer until the connection carries a session.
_READ_SIZE: Final = 64 * 1024
#: So many bytes count as a sign of life even if they do not complete a packet. It is more than a
#: node sends in noops. Otherwise a packet with a wrong, huge length would keep the connection alive
#: while noops slowly fill it.
_SIGN_OF_LIFE: Final = 16 * 1024
#: Features requested in HELLO, in addition to those that the settings ask for.
_FEATURES: Final = (
    Feature.SELECT_BUCKET,
    Feature.XERROR,
    Feature.JSON,
    Feature.XATTR,
    Feature.COLLECTIONS,
    Feature.DUPLEX,
    Feature.CLUSTERMAP_NOTIFICATION,
)


class ConnectionOwner(Protocol):
    """What a connection that carries a session reports to; neither method raises."""

    def on_events(self, connection: AsyncConnection, events: list[Event]) -> None:
        """The session has emitted events. The bytes of their rows count as held."""

    def on_lost(self, connection: AsyncConnection) -> None:
        """The connection was lost, for the reason in `AsyncConnection.lost`. Called once."""


class AsyncConnection(asyncio.BufferedProtocol):
    """One connection to a node. It reports to an owner once it carries a session (`carry`)."""

    def __init__(
        self,
        address: Address,
        source: Source,
        access: Access,
        settings: ConsumerSettings,
        dialect: Dialect,
        *,
        features: Iterable[Feature] | None = None,
    ) -> None:
        """``features`` are requested in HELLO instead of those of a reader."""
        self.address = address
        self.dialect = dialect
        self.features: frozenset[Feature | int] = frozenset()
        #: What the node granted when the connection was opened for streams.
        self.granted = Opened()
        #: Bytes of rows that were reported to the owner and not yet returned with `give_back`.
        self.held = 0
        #: Why the connection was lost or closed; None while it is open.
        self.lost: UpriverError | None = None
        self._source = source
        self._access = access
        self._settings = settings
        compressed = (Feature.SNAPPY,) if settings.compression else ()
        self._offered = (*_FEATURES, *compressed) if features is None else tuple(features)
        self._session: ConsumerSession | None = None
        self._owner: ConnectionOwner | None = None
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._framer = Framer()
        self._early = bytearray(_READ_SIZE)
        self._heard_any = False
        self._exchange = Exchange(lambda r: self.dialect.encode(r), first_opaque=FIRST_OPAQUE)
        self._window = ReceiveWindow(0, now=self._loop.time())
        self._silence: Silence | None = None
        #: Bytes received since the last complete packet.
        self._incomplete = 0
        self._timer: asyncio.TimerHandle | None = None
        self._reading = True
        #: Whether received bytes are kept for the protocol that gets the transport.
        self._keeping = False

    # ---- opening -------------------------------------------------------------------------

    async def open(self, *, streams: bool = True, patience: float | None = None) -> None:
        """Connects, authenticates, and with ``streams`` opens the connection for DCP.

        Without ``streams`` the connection serves other requests only.
        """
        patience = patience or self._settings.connect_timeout
        deadline = self._loop.time() + patience
        try:
            await self._connect(deadline)
            async with asyncio.timeout_at(deadline):
                signs_in = bool(self._access.user) and self.dialect.opens_connections
                if self.dialect.negotiates or signs_in:
                    await self._introduce()
                if streams:
                    self.granted = await self._open_streams()
        except TimeoutError:
            reason = f"{self._exchange.asked or 'nothing'} was not answered for {patience:g} s"
            self.close()
            raise self._lost(reason, silent=True) from None
        except BaseException as problem:
            self.close()
            raise named(problem, str(self.address)) from None
        self._begin(self.granted)

    def _lost(self, reason: str, *, silent: bool = False) -> ConnectionFailed:
        where, tls, heard = str(self.address), self._source.tls, self._heard_any
        return lost_connection(reason, heard_any=heard, silent=silent, tls=tls, where=where)

    @property
    def reached(self) -> bool:
        """Whether a TCP connection was ever established."""
        return self._transport is not None

    @property
    def heard_any(self) -> bool:
        """Whether the node ever sent any bytes."""
        return self._heard_any

    async def _connect(self, deadline: float) -> None:
        context = self._access.tls_context() if self._source.tls else None
        seconds = self._settings.connect_timeout
        try:
            async with asyncio.timeout_at(deadline):
                await self._loop.create_connection(
                    lambda: self,
                    self.address.host,
                    self.address.port,
                    ssl=context,
                    server_hostname=self.address.host if context else None,
                )
        except (OSError, UnicodeError) as problem:  # UnicodeError: the host name is not valid
            handshake = isinstance(problem, ssl.SSLError | ConnectionResetError | TimeoutError)
            if context is not None and handshake and isinstance(problem, OSError):
                raise no_tls(problem, seconds) from None
            raise unreachable(problem, seconds) from None

    async def _introduce(self) -> None:
        first = introduce(introduction(self._access, self._source, self._offered))
        self.features = (await self._have([first]))[0].features
        if self.dialect.negotiates:
            self.dialect = Dcp(collections=Feature.COLLECTIONS in self.features)

    async def _open_streams(self) -> Opened:
        settings = self._settings
        opening = Opening(
            name=settings.connection_name,
            window=settings.buffer,
            noop_interval=settings.noop_interval,
            values=settings.values,
            xattrs=settings.xattrs,
            compression=settings.compression,
            skip_deletes=settings.skip_deletes,
            out_of_order=settings.out_of_order,
            sync_writes=settings.sync_writes,
            priority=settings.priority,
            backfill_order=settings.backfill_order,
        )
        return (await self._have([open_connection(self.dialect, opening)]))[0]

    def _begin(self, opened: Opened) -> None:
        now = self._loop.time()
        self._silence = Silence(opened.noop_interval or self._settings.noop_interval, now=now)
        self._window = ReceiveWindow(opened.window, now=now)
        self._exchange.next_opaque = FIRST_OTHER_OPAQUE
        self._watch()

    def carry(self, session: ConsumerSession, owner: ConnectionOwner) -> None:
        """Passes all received bytes to ``session`` from now on, and its events to ``owner``."""
        self._session, self._owner = session, owner
        session.feed(self._framer.take_pending())

    async def hand_over(
        self, last: Conversation[object], heir: asyncio.Protocol
    ) -> asyncio.Transport:
        """Runs a last conversation, then gives the transport to another protocol and returns it.

        ``heir`` gets everything that the node sent after its last answer. This object is closed;
        the caller closes the transport.
        """

        def then_keep() -> Conversation[None]:
            yield from last
            self._keeping = True

        await self.run(then_keep())
        if self.lost is not None:
            raise self.lost
        transport, self._transport = self._transport, None
        assert transport is not None
        received = self._framer.take_pending()
        self.close()
        transport.set_protocol(heir)
        heir.connection_made(transport)
        if received:
            heir.data_received(received)
        return transport

    # ---- conversations -------------------------------------------------------------------

    async def ask(self, request: m.Request, *, patience: float | None = None) -> m.Response:
        """Sends a request; returns the response, whatever its status."""
        return (await self.run_all([single(request)], patience=patience))[0]

    async def run(self, talk: Conversation[_T]) -> _T:
        return (await self.run_all([talk]))[0]

    async def run_all(
        self, talks: Iterable[Conversation[_T]], *, patience: float | None = None
    ) -> list[_T]:
        """Runs conversations at the same time; raises the error of the first that failed."""
        patience = patience or self._settings.answer_timeout
        try:
            async with asyncio.timeout(patience):
                return await self._have(talks)
        except TimeoutError:
            asked = self._exchange.asked or "a request"
            problem = f"did not answer {asked} for {patience:g} s"
            where = str(self.address)
            raise ConnectionFailed(problem, "is it overloaded?", where=where) from None

    async def _have(self, talks: Iterable[Conversation[_T]]) -> list[_T]:
        if self.lost is not None:
            raise self.lost
        changed = asyncio.Event()
        pendings = [self._exchange.begin(talk, changed.set) for talk in talks]
        try:
            self._go_on()
            for pending in pendings:
                while not pending.done:
                    changed.clear()
                    await changed.wait()
            return [pending.result() for pending in pendings]
        finally:
            self._exchange.abandon(pendings)

    def _go_on(self) -> None:
        """Sends the requests of conversations, and starts the computations that they need."""
        for pending, step in self._exchange.take_work():
            self._compute(pending, step)
        self._write(self._exchange.data_to_send())

    def _compute(self, pending: Pending[Any], step: Compute) -> None:
        """Runs a computation in a daemon thread: it may take seconds and cannot be interrupted."""

        def done(result: object) -> None:
            if self.lost is None:
                self._exchange.go_on(pending, result)
                self._go_on()

        def work() -> None:
            result = step.work()
            with suppress(RuntimeError):  # the loop is closed: no task waits for the result
                self._loop.call_soon_threadsafe(done, result)

        _daemon.start(work, name="upriver hashing")

    # ---- streams -------------------------------------------------------------------------

    def flush(self) -> None:
        """Sends the session's pending requests and responses."""
        if self._session is not None:
            self._write(self._session.data_to_send())

    def give_back(self, counted: int) -> None:
        """Returns bytes that the application has finished with to the flow-control window."""
        self.held -= counted
        self._window.consumed(counted)
        self._acknowledge()
        if not self._reading and self.held <= self._settings.buffer:
            self._reading = True
            if self._silence is not None:
                self._silence.heard(self._loop.time())  # reading was paused: silence was no fault
            if self._transport is not None:
                self._transport.resume_reading()

    @property
    def listens(self) -> bool:
        """Whether the socket is read; paused while the application holds too many bytes."""
        return self._reading

    @property
    def has_room(self) -> bool:
        """Whether the node can send more: the application holds less than half of the buffer."""
        return self._reading and 2 * self.held < self._settings.buffer

    def leave(self, problem: UpriverError) -> None:
        """Closes the connection because of a problem, and reports it as lost."""
        self._over(problem)

    def close(self) -> None:
        """Closes the connection at the owner's request, without reporting it as lost."""
        self._owner = None
        self._over(ConnectionFailed("is not connected any more", "connect again"))

    # ---- bytes ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        plain = transport.get_extra_info("socket")
        if plain is not None:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._early) if self._session is None else self._session.inbound.space()

    def buffer_updated(self, nbytes: int) -> None:
        self._heard_any = True
        try:
            if self._session is None:
                self._read_early(nbytes)
            else:
                self._read(self._session, nbytes)
        except Exception as fault:
            # asyncio would only log the exception and drop the connection, and the engine would
            # then reconnect for ever.
            _log.exception("what %s sent cannot be handled", self.address)
            self._over(InternalError(f"a fault of Upriver, please report it: {fault!r}"))

    def connection_lost(self, exc: Exception | None) -> None:
        reason = "it closed the connection" if exc is None else str(exc) or type(exc).__name__
        self._over(self._lost(reason))

    def _read_early(self, size: int) -> None:
        data = bytes(memoryview(self._early)[:size])
        if self._silence is not None:
            self._silence.heard(self._loop.time())
        packets = self._framer.feed(data)
        try:
            while not self._keeping and (packet := next(packets, None)) is not None:
                message = self.dialect.decode(packet)
                if isinstance(message, m.Response):
                    self._exchange.received(message)
                elif isinstance(message, m.RequestError):  # how draft 002 refuses anything else
                    refusal = m.PlainResponse(
                        command=Command.FAILOVER_LOG, opaque=message.opaque, status=Status.INVALID
                    )
                    self._exchange.received(refusal)
                elif isinstance(message, m.StreamNoop):
                    alive = m.PlainResponse(command=Command.STREAM_NOOP, opaque=message.opaque)
                    self._write(self.dialect.encode(alive))
        except DecodeError as problem:
            self._over(problem if self.features else stranger(data))
        self._go_on()

    def _read(self, session: ConsumerSession, size: int) -> None:
        before = session.packets_taken
        events = session.received(size)
        self._incomplete = 0 if session.packets_taken != before else self._incomplete + size
        if self._silence is not None and (not self._incomplete or self._incomplete > _SIGN_OF_LIFE):
            self._silence.heard(self._loop.time())
            self._incomplete = 0
        self._window.consumed(session.take_freed())
        self.flush()
        self._acknowledge()
        delivered: list[Event] = []
        for event in events:
            if isinstance(event, Answered):
                self._exchange.received(event.response)
            else:
                delivered.append(event)
                if isinstance(event, Rows):
                    self.held += event.counted
        if delivered and self._owner is not None:
            self._owner.on_events(self, delivered)
        self._go_on()
        if session.broken is not None:
            self._over(session.broken)
        elif self._reading and self.held > _BUFFERS_HELD * self._settings.buffer:
            self._reading = False  # the node ignores the window, or its draft has none
            assert self._transport is not None
            self._transport.pause_reading()

    def _acknowledge(self) -> None:
        due = self._window.due(self._loop.time())
        if due and self._session is not None:
            self._session.acknowledge(due)
            self.flush()
        elif self._window.freed:
            self._watch()

    def _write(self, data: bytes) -> None:
        if data and self._transport is not None and self.lost is None:
            self._transport.write(data)

    # ---- timers and end ------------------------------------------------------------------

    def _watch(self) -> None:
        """Sets the timer for the next acknowledgement or keepalive check, whichever is first."""
        dues = []
        if self._window.size and self._window.freed:
            dues.append(self._window.due_at)
        if self._silence is not None:
            dues.append(self._silence.due_at)
        if self.lost is not None or not dues:
            return
        if self._timer is not None:
            if self._timer.when() <= min(dues):
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(min(dues), self._look_at_the_clock)

    def _look_at_the_clock(self) -> None:
        self._timer = None
        now, silence = self._loop.time(), self._silence
        if silence is not None:
            if not self._reading:
                silence.heard(now)  # reading is paused: silence is no fault
            elif silence.is_gone(now):
                problem = f"sent nothing for {2 * silence.interval:g} seconds"
                self._over(ConnectionFailed(problem, "is it overloaded, or the network cut?"))
                return
            elif silence.ask_now(now):
                self._ask_for_a_sign_of_life()
        self._acknowledge()
        self._watch()

    def _ask_for_a_sign_of_life(self) -> None:
        """Sends a request so that the node must answer, unless the node sends noops itself.

        Servers send noops only on connections with a stream, and old drafts have none.
        """
        streams = self._session.vbuckets if self._session is not None else frozenset()
        if streams and self.granted.noop_interval:
            return
        # every draft knows one of these two requests
        log = m.FailoverLogRequest(vbucket=min(streams, default=0))
        self._exchange.begin(single(kv.Noop() if self.dialect.negotiates else log))
        self._go_on()

    def _over(self, problem: UpriverError) -> None:
        if self.lost is not None:
            return
        self.lost = named(problem, str(self.address))
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        self._exchange.fail(self.lost)
        if self._owner is not None:
            self._owner.on_lost(self)
