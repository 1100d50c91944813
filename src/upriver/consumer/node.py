"""A connection to one node: reached, let in, opened, and then a session's bytes in and out.

It does the I/O of a `ConsumerSession` and of the conversations before it, answers signs of life,
gives room back, and notices a node that is gone. Which streams it carries, and what happens when
it is lost, is its owner's business. It lives on one event loop.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Generator
from dataclasses import replace
from typing import Final, TypeVar

from .. import __version__
from ..errors import (
    ConnectionFailed,
    DecodeError,
    UpriverError,
)
from ..session.consumer import FIRST_OTHER_OPAQUE, ConsumerSession
from ..session.events import Answered, Event
from ..session.flow import ReceiveWindow
from ..session.introduction import FIRST_OPAQUE, Introduction, hung_up, introduce, stranger
from ..session.keepalive import Silence
from ..session.opening import Opened, Opening, open_connection
from ..wire import kv
from ..wire.dialects import Dcp, Dialect
from ..wire.framing import packet_length
from ..wire.messages import PlainResponse, Request, Response, StreamNoop
from ..wire.names import Command, Feature
from .access import Access
from .settings import ConsumerSettings
from .source import Address, Source

__all__ = ["NodeConnection", "converse"]

_T = TypeVar("_T")

#: How often the clock is looked at: for acknowledgements that are due, and for silence.
_TICK: Final = 0.5
#: Without flow control a node is held back by not reading, once this many buffers are full.
_BUFFERS_HELD: Final = 2
#: Bytes read at once while answers are waited for one by one.
_READ_SIZE: Final = 64 * 1024


class NodeConnection(asyncio.BufferedProtocol):
    """One connection. ``on_events`` gets what the session tells, ``on_lost`` why it is over."""

    def __init__(
        self,
        address: Address,
        source: Source,
        access: Access,
        settings: ConsumerSettings,
        dialect: Dialect,
    ) -> None:
        self.address = address
        self.dialect = dialect
        self.features: frozenset[Feature | int] = frozenset()
        #: What the node granted when streams were asked for.
        self.granted = Opened()
        #: Bytes that were handed out and not yet given back.
        self.held = 0
        #: Why it is over, once it is.
        self.lost: UpriverError | None = None
        self._source = source
        self._access = access
        self._settings = settings
        self._session: ConsumerSession | None = None
        self._on_events: Callable[[list[Event]], None] = lambda events: None
        self._on_lost: Callable[[], None] = lambda: None
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._early = bytearray(_READ_SIZE)
        #: The beginning of a packet whose rest is under way, before there is a session.
        self._cut_off = bytearray()
        self._heard_any = False
        self._waiting: dict[int, asyncio.Future[Response]] = {}
        self._next_opaque = FIRST_OPAQUE
        self._window = ReceiveWindow(0, now=self._loop.time())
        self._silence: Silence | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._reading = True

    # ---- beginning -----------------------------------------------------------------------

    async def open(self, *, streams: bool = True) -> None:
        """Reaches the node and opens the connection; for questions only if not for streams."""
        try:
            async with asyncio.timeout(self._settings.connect_timeout):
                await self._connect()
                if isinstance(self.dialect, Dcp):
                    await self._introduce()
                if streams:
                    self.granted = await self._open_streams()
        except TimeoutError:
            problem = self._named(hung_up("it took too long", secret=self._source.tls))
            self.close()
            raise problem from None
        except BaseException as problem:
            self.close()
            if isinstance(problem, UpriverError):
                raise self._named(problem) from None
            raise
        self._begin(self.granted)

    @property
    def reached(self) -> bool:
        """Whether there ever was a connection."""
        return self._transport is not None

    async def _connect(self) -> None:
        context = self._access.tls_context() if self._source.tls else None
        try:
            await self._loop.create_connection(
                lambda: self,
                self.address.host,
                self.address.port,
                ssl=context,
                server_hostname=self.address.host if context else None,
            )
        except ssl.SSLError as problem:
            reason = getattr(problem, "verify_message", "") or problem.reason or str(problem)
            raise ConnectionFailed(
                f"does not agree on TLS: {reason}",
                "is it a TLS port, and is its authority among those we believe?",
            ) from None
        except (OSError, UnicodeError) as problem:  # a name may be none that can be looked up
            reason = getattr(problem, "strerror", None) or str(problem)
            raise ConnectionFailed(
                f"cannot be reached: {reason}", "is a server running there?"
            ) from None

    async def _introduce(self) -> None:
        offered = [Feature.SELECT_BUCKET, Feature.XERROR, Feature.JSON, Feature.XATTR]
        offered += [Feature.COLLECTIONS, Feature.DUPLEX, Feature.CLUSTERMAP_NOTIFICATION]
        if self._settings.compression:
            offered.append(Feature.SNAPPY)
        introduction = Introduction(
            agent=f"upriver/{__version__}",
            bucket=self._source.bucket,
            features=tuple(offered),
            credentials=self._access.credentials(),
            secret=self._source.tls,
        )
        introduced = await converse(introduce(introduction), self.ask)
        self.features = introduced.features
        self.dialect = Dcp(collections=Feature.COLLECTIONS in introduced.features)

    async def _open_streams(self) -> Opened:
        settings = self._settings
        opening = Opening(
            name=settings.connection_name,
            window=settings.buffer,
            noop_interval=settings.noop_interval,
            values=settings.values,
            xattrs=settings.xattrs,
            compression=settings.compression,
        )
        return await converse(open_connection(self.dialect, opening), self.ask)

    def _begin(self, opened: Opened) -> None:
        now = self._loop.time()
        if opened.noop_interval:
            self._silence = Silence(opened.noop_interval, now=now)
        self._window = ReceiveWindow(opened.window, now=now)
        self._next_opaque = FIRST_OTHER_OPAQUE
        self._tick()

    def carry(
        self,
        session: ConsumerSession,
        on_events: Callable[[list[Event]], None],
        on_lost: Callable[[], None],
    ) -> None:
        """From now on what comes is the session's."""
        self._session, self._on_events, self._on_lost = session, on_events, on_lost
        session.feed(bytes(self._cut_off))
        self._cut_off.clear()

    # ---- asking --------------------------------------------------------------------------

    async def ask(self, request: Request) -> Response:
        """The answer to a request, whatever its status."""
        if self.lost is not None:
            raise self.lost
        opaque, self._next_opaque = self._next_opaque, self._next_opaque + 1
        answer: asyncio.Future[Response] = self._loop.create_future()
        self._waiting[opaque] = answer
        self._write(self.dialect.encode(replace(request, opaque=opaque)))
        try:
            async with asyncio.timeout(self._settings.answer_timeout):
                return await answer
        except TimeoutError:
            problem = f"did not answer {type(request).__name__}"
            raise self._named(ConnectionFailed(problem, "is it overloaded?")) from None
        finally:
            self._waiting.pop(opaque, None)

    def flush(self) -> None:
        """Sends what the session has to say."""
        if self._session is not None:
            self._write(self._session.data_to_send())

    def give_back(self, counted: int) -> None:
        """The application is done with so many bytes."""
        self.held -= counted
        self._window.consumed(counted)
        self._acknowledge()
        if not self._reading and self.held <= self._settings.buffer:
            self._reading = True
            if self._silence is not None:
                self._silence.heard(self._loop.time())  # nobody listened until now
            if self._transport is not None:
                self._transport.resume_reading()

    @property
    def listens(self) -> bool:
        """Whether it is read from: not while the application has more than enough to read."""
        return self._reading

    def leave(self, problem: UpriverError) -> None:
        """Hangs up because of a problem, of which the owner is told."""
        self._over(problem)

    def close(self) -> None:
        """Hangs up without telling the owner, who knows."""
        self._on_lost = lambda: None
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
        return memoryview(self._early) if self._session is None else self._session.space()

    def buffer_updated(self, nbytes: int) -> None:
        self._heard_any = True
        if self._silence is not None:
            self._silence.heard(self._loop.time())
        if self._session is None:
            self._read_early(nbytes)
        else:
            self._read(self._session, nbytes)

    def connection_lost(self, exc: Exception | None) -> None:
        reason = "it closed the connection" if exc is None else str(exc)
        if self._heard_any:
            self._over(ConnectionFailed(f"was lost: {reason}", "see what its log says"))
        else:
            self._over(hung_up(reason, secret=self._source.tls))

    def _read_early(self, size: int) -> None:
        data, at = self._cut_off, 0
        data += memoryview(self._early)[:size]
        try:
            while (length := packet_length(data, at)) is not None and at + length <= len(data):
                message = self.dialect.decode(bytes(data[at : at + length]))
                at += length
                if isinstance(message, Response):
                    self._answered(message)
                elif isinstance(message, StreamNoop):
                    alive = PlainResponse(command=Command.STREAM_NOOP, opaque=message.opaque)
                    self._write(self.dialect.encode(alive))
        except DecodeError as problem:
            self._over(problem if self.features else stranger(data))
        del data[:at]

    def _read(self, session: ConsumerSession, size: int) -> None:
        events = session.received(size)
        self._window.consumed(session.take_freed())
        self.flush()
        self._acknowledge()
        told: list[Event] = []
        for event in events:
            if isinstance(event, Answered):
                self._answered(event.response)
            else:
                told.append(event)
        if told:
            self._on_events(told)
        if session.broken is not None:
            self._over(session.broken)
        elif self._reading and self.held > _BUFFERS_HELD * self._settings.buffer:
            self._reading = False  # it does not keep to the window, or there is none in its draft
            assert self._transport is not None
            self._transport.pause_reading()

    def _answered(self, response: Response) -> None:
        waiting = self._waiting.get(response.opaque)
        if waiting is not None and not waiting.done():
            waiting.set_result(response)

    def _acknowledge(self) -> None:
        due = self._window.due(self._loop.time())
        if due and self._session is not None:
            self._session.acknowledge(due)
            self.flush()

    def _write(self, data: bytes) -> None:
        if data and self._transport is not None and self.lost is None:
            self._transport.write(data)

    # ---- time and end --------------------------------------------------------------------

    def _tick(self) -> None:
        now, silence = self._loop.time(), self._silence
        if self._reading and silence is not None:
            streams = self._session is not None and self._session.vbuckets
            if not streams and silence.ask_now(now):
                opaque, self._next_opaque = self._next_opaque, self._next_opaque + 1
                self._write(self.dialect.encode(kv.Noop(opaque=opaque)))
            elif silence.is_gone(now):
                problem = f"gave no sign of life for {2 * silence.interval:g} seconds"
                self._over(ConnectionFailed(problem, "is it overloaded, or the network cut?"))
                return
        self._acknowledge()
        self._ticker = self._loop.call_later(_TICK, self._tick)

    def _over(self, problem: UpriverError) -> None:
        if self.lost is not None:
            return
        self.lost = self._named(problem)
        if self._ticker is not None:
            self._ticker.cancel()
        if self._transport is not None:
            self._transport.abort()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(self.lost)
        self._on_lost()

    def _named(self, problem: UpriverError) -> UpriverError:
        if isinstance(problem, ConnectionFailed) and not problem.where:
            problem.where = str(self.address)
        return problem


async def converse(
    talk: Generator[Request, Response, _T], ask: Callable[[Request], Awaitable[Response]]
) -> _T:
    """Leads a conversation to its end, asking one question after the other."""
    try:
        request = next(talk)
        while True:
            request = talk.send(await ask(request))
    except StopIteration as done:
        result: _T = done.value
        return result
