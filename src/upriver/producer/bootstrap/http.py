"""HTTP server of the management port: cluster maps and documents about buckets.

Clients bootstrap here, look up buckets and manage collections. This module reads requests,
authenticates each of them if there are users, and streams maps. `RestApi` implements the paths; it
runs in a thread.

    GET /pools/default/bs/BUCKET, /bs/BUCKET, /pools/default/bucketsStreaming/BUCKET
                            the bucket's map, and again after each change
    everything else         one response of the API
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from functools import partial
from http import HTTPStatus
from typing import Final, Protocol

from ...errors import StoreRefusal
from ..connections.listener import Listener
from ..connections.strangers import Strangers
from .http_messages import (
    MAX_HEAD,
    HttpRefusal,
    HttpRequest,
    HttpResponse,
    encode_head,
    read_body,
    read_request,
)
from .password_checks import RETRY_SECONDS, PasswordChecks
from .users import MAX_NAME, Users

logger = logging.getLogger("upriver.producer")

#: Connections at once. Each client may have one streaming connection, open as long as it runs.
MAX_CONNECTIONS: Final = 512
#: Seconds in which a request must arrive. It usually is one packet.
HEAD_TIME: Final = 10.0
#: Seconds for a client to read what it was sent, before its connection is aborted.
WRITE_TIME: Final = 30.0
#: Seconds for a refused client to finish its request and to read the response.
LINGER_TIME: Final = 1.0
#: Seconds by which a failed authentication is delayed, so that guessing passwords is slow.
REFUSAL_DELAY: Final = 0.25
#: Seconds for streams to end by themselves when the server closes.
CLOSE_TIME: Final = 1.0

#: Separator of two maps of a stream, as on Couchbase Server.
_SEPARATOR: Final = b"\n\n\n\n"
_LAST_CHUNK: Final = b"0\r\n\r\n"
#: Paths of map streams, before the bucket's name.
_STREAMING: Final = (
    ("pools", "default", "bs"),
    ("bs",),
    ("pools", "default", "bucketsStreaming"),
)


class Api(Protocol):
    """Implements the paths. Both methods may raise `HttpRefusal`."""

    def answer(self, request: HttpRequest, user: str | None) -> HttpResponse:
        """Returns the response to one request. Runs in a thread and may block."""

    def terse_map(self, bucket: str, user: str | None) -> bytes:
        """Returns a bucket's map. Runs on the event loop."""


class HttpServer:
    """Serves an API over HTTP. Call `notify` after each change of a map: streams then send it."""

    def __init__(
        self,
        users: Users,
        api: Api,
        passwords: PasswordChecks,
        *,
        takes_passwords: bool = True,
        max_connections: int = MAX_CONNECTIONS,
        head_time: float = HEAD_TIME,
        refusal_delay: float = REFUSAL_DELAY,
    ) -> None:
        """Without ``takes_passwords``, passwords are refused: the network could read them."""
        self._users = users
        self._api = api
        self._passwords = passwords
        self._takes_passwords = takes_passwords
        self._max_connections = max_connections
        self._head_time = head_time
        self._refusal_delay = refusal_delay
        self._listener: Listener | None = None
        self._connections: set[asyncio.Task[None]] = set()
        #: Those of them that count, because they were not dropped for others; and the ones of these
        #: that have not authenticated, or sent a whole request if they need not authenticate.
        self._places: set[asyncio.Task[None]] = set()
        self._strangers = Strangers()
        #: One event for each map stream, set by `notify`.
        self._streams: set[asyncio.Event] = set()
        self._closing = False

    async def start(
        self, host: str, port: int, *, tls: ssl.SSLContext | None = None
    ) -> tuple[str, int]:
        """Starts to listen and returns host and port; port 0 takes any free one."""
        self._listener = Listener(
            self._protocol,
            tls=tls,
            handshake_seconds=self._head_time,
            established=lambda: len(self._places),
            limit=self._max_connections,
            strangers=self._strangers,
            name="HTTP",
        )
        return host, await self._listener.start(host, port)

    def _protocol(self) -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(MAX_HEAD), self._connected)

    def notify(self) -> None:
        """Wakes the map streams after a map changed or a bucket was dropped. For the event loop."""
        for stream in self._streams:
            stream.set()

    async def close(self) -> None:
        """Stops listening and ends every stream after a whole map."""
        if self._listener is None:
            return
        await self._listener.close()
        self._closing = True
        self.notify()
        if self._connections:
            _, late = await asyncio.wait(self._connections, timeout=CLOSE_TIME)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        self._listener = None

    # ---- one connection ------------------------------------------------------------------

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._places) >= self._max_connections and (
            self._listener is None
            or not self._listener.makes_room(writer.get_extra_info("peername"))
        ):
            # No response: sending one would use the resources that the limit protects.
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self._places.add(task)
        self._strangers.add(task, partial(self._drop, task))
        try:
            try:
                await self._serve(reader, writer)
            except HttpRefusal as refusal:
                await _respond(writer, refusal.response)
                await _linger(reader, writer)
            writer.close()
            async with asyncio.timeout(WRITE_TIME):
                await writer.wait_closed()
        except OSError:
            pass  # the client disconnected or was too slow: no response is possible
        except asyncio.CancelledError:
            pass  # its place was needed, or the server closes; asyncio would log it as a fault
        finally:
            writer.transport.abort()  # if it is not closed already
            self._connections.discard(task)
            self._places.discard(task)
            self._strangers.discard(task)

    def _drop(self, task: asyncio.Task[None]) -> bool:
        """Ends a connection, whose place is free at once."""
        self._places.discard(task)
        task.cancel()
        return True

    def _keep_place(self) -> None:
        """Keeps the place of the running connection from being given to another."""
        self._strangers.discard(asyncio.current_task())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(self._head_time):
            request = await read_request(reader)
        _check_origin(request)
        user = await self._authenticate(request, writer)
        async with asyncio.timeout(self._head_time):
            request = await read_body(request, reader, writer)
        self._keep_place()
        bucket = _streamed(request)
        if bucket is not None:
            await self._stream(bucket, user, reader, writer)
            return
        try:
            response = await asyncio.to_thread(self._api.answer, request, user)
        except HttpRefusal:
            raise
        except Exception:
            logger.exception("HTTP %s /%s failed", request.method, "/".join(request.path))
            rule = "a fault of the server: its log has the details"
            raise HttpRefusal(HTTPStatus.INTERNAL_SERVER_ERROR, rule) from None
        if request.method != "GET":
            self.notify()  # the request may have changed a map
        await _respond(writer, response)

    async def _authenticate(self, request: HttpRequest, writer: asyncio.StreamWriter) -> str | None:
        """Returns the authenticated user; None if no user is required and no name was given."""
        name, password = request.credentials()
        if not name and self._users.is_unrestricted:
            return None
        if name and not self._takes_passwords:
            raise HttpRefusal(
                HTTPStatus.FORBIDDEN,
                "passwords are not taken without TLS: serve with a certificate and a key, or "
                "with --plain-without-tls",
            )
        peer = writer.get_extra_info("peername")
        check = partial(self._users.authenticate, name, password)
        if self._users.costs_hashing(name):
            try:
                checking = self._passwords.submit(peer[0], check)
            except StoreRefusal as refusal:
                raise HttpRefusal(
                    HTTPStatus.SERVICE_UNAVAILABLE,
                    refusal.rule,
                    {"Retry-After": str(RETRY_SECONDS)},
                ) from None
            user = await asyncio.wrap_future(checking)
        else:
            user = check()
        if user is None:
            if name:  # no delay without credentials: browsers send none at first
                logger.warning("HTTP from %s: authentication as %r failed", peer, name[:MAX_NAME])
                await asyncio.sleep(self._refusal_delay)
            raise HttpRefusal(
                HTTPStatus.UNAUTHORIZED,
                "a user and password are needed",
                {"WWW-Authenticate": 'Basic realm="upriver"'},
            )
        if self._users.needs_proof(user):
            self._keep_place()
        return user

    async def _stream(
        self,
        bucket: str,
        user: str | None,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Sends the map, and again after each change, until the client or the bucket is gone."""
        self._api.terse_map(bucket, user)  # a refusal gets an error response
        wake = asyncio.Event()
        gone = asyncio.create_task(_ended(reader))
        gone.add_done_callback(lambda _: wake.set())
        self._streams.add(wake)
        try:
            await _send(writer, encode_head(HTTPStatus.OK, {"Transfer-Encoding": "chunked"}))
            sent = b""
            while not gone.done() and not self._closing:
                wake.clear()  # before the map is read, so that no change is missed
                try:
                    document = self._api.terse_map(bucket, user)
                except HttpRefusal:
                    break
                if document != sent:
                    body = document + _SEPARATOR
                    await _send(writer, b"%x\r\n%s\r\n" % (len(body), body))
                    sent = document
                await wake.wait()
            await _send(writer, _LAST_CHUNK)
        finally:
            self._streams.discard(wake)
            gone.cancel()


def _check_origin(request: HttpRequest) -> None:
    """Refuses changes that a web page of another site makes a browser send.

    Browsers can reach loopback addresses, and a server without users would execute the request.
    """
    site = request.headers.get("sec-fetch-site", "none")
    if request.method != "GET" and ("origin" in request.headers or site != "none"):
        raise HttpRefusal(
            HTTPStatus.FORBIDDEN, "changes are not taken from pages in a browser (Origin)"
        )


def _streamed(request: HttpRequest) -> str | None:
    """Returns the bucket whose map is requested as a stream; None for any other request."""
    if request.method == "GET" and request.path[:-1] in _STREAMING:
        return request.path[-1]
    return None


async def _respond(writer: asyncio.StreamWriter, response: HttpResponse) -> None:
    length = {"Content-Length": str(len(response.body))}
    await _send(writer, encode_head(response.status, length | response.headers) + response.body)


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    async with asyncio.timeout(WRITE_TIME):
        await writer.drain()


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Reads what a refused client still sends: closing on unread bytes would reset the response."""
    if writer.can_write_eof():
        writer.write_eof()
    async with asyncio.timeout(LINGER_TIME):
        while await reader.read(MAX_HEAD):
            pass


async def _ended(reader: asyncio.StreamReader) -> None:
    """Returns when the client closes its side, or sends anything on a stream."""
    with contextlib.suppress(OSError):
        await reader.read(1)
