"""The cluster map over HTTP, for clients that ask there first and for people with a browser.

    GET /                                   200, which tells SDKs that the port is alive
    GET /pools                              that there is one pool, "default"
    GET /pools/default/b/BUCKET             the bucket's map; also .../buckets/BUCKET
    GET /pools/default/bs/BUCKET, /bs/BUCKET   the same, and again after each change;
                                            also .../bucketsStreaming/BUCKET

One request a connection, HTTP/1.1 only. Where there are users, each request is authenticated,
and a bucket's map is for those who have any role in it. This module knows neither the store nor
how a map is made: it gets a function that returns the bytes.
"""

from __future__ import annotations

import asyncio
import binascii
import contextlib
import json
import logging
import ssl
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import unquote

from .users import MAX_NAME, Users

__all__ = ["ConfigServer"]

logger = logging.getLogger("upriver.producer")

#: Bytes of the request line and all headers. A long name and password in base64 take 2 KiB.
MAX_HEAD: Final = 8 * 1024
#: Connections at once. A streaming one stays for as long as its client lives, one a client.
MAX_CONNECTIONS: Final = 512
#: Seconds for a request to arrive. It is one packet.
HEAD_TIME: Final = 10.0
#: Seconds for a client to take what it is sent, before it is given up.
WRITE_TIME: Final = 30.0
#: Seconds for a refused client to finish and to read its answer.
LINGER_TIME: Final = 1.0
#: Seconds that a refusal waits, so that guessing passwords is slow.
REFUSAL_DELAY: Final = 0.25
#: Seconds for streams to end by themselves when the server closes.
CLOSE_TIME: Final = 1.0

#: What separates two maps of a stream, as in Couchbase.
_SEPARATOR: Final = b"\n\n\n\n"
_LAST_CHUNK: Final = b"0\r\n\r\n"

_POOLS: Final = json.dumps(
    {"pools": [{"name": "default", "uri": "/pools/default"}], "isAdminCreds": False}
).encode()
_ONCE: Final = ("/pools/default/b/", "/pools/default/buckets/")
_STREAMING: Final = ("/pools/default/bs/", "/bs/", "/pools/default/bucketsStreaming/")


class ConfigServer:
    """Serves the maps. ``config`` returns a bucket's map, or None where there is no bucket.

    Call `notify` after each change; streams then ask ``config`` again.
    """

    def __init__(
        self,
        users: Users,
        config: Callable[[str], bytes | None],
        *,
        max_connections: int = MAX_CONNECTIONS,
        head_time: float = HEAD_TIME,
        refusal_delay: float = REFUSAL_DELAY,
    ) -> None:
        self._users = users
        self._config = config
        self._max_connections = max_connections
        self._head_time = head_time
        self._refusal_delay = refusal_delay
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        #: What each stream sleeps on.
        self._streams: set[asyncio.Event] = set()
        self._closing = False

    async def start(
        self, host: str, port: int, *, tls: ssl.SSLContext | None = None
    ) -> tuple[str, int]:
        """Listens, and returns where; port 0 takes any free one."""
        times = {"ssl_handshake_timeout": self._head_time, "ssl_shutdown_timeout": CLOSE_TIME}
        self._server = await asyncio.start_server(
            self._connected, host, port, ssl=tls, limit=MAX_HEAD, **(times if tls else {})
        )
        address = self._server.sockets[0].getsockname()
        return address[0], address[1]

    def notify(self) -> None:
        """Some bucket's map has changed, or a bucket has gone. Call it in the event loop."""
        for stream in self._streams:
            stream.set()

    async def close(self) -> None:
        """Stops listening and ends every stream at a boundary."""
        if self._server is None:
            return
        self._server.close()
        self._closing = True
        self.notify()
        if self._connections:
            _, late = await asyncio.wait(self._connections, timeout=CLOSE_TIME)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        self._server = None

    # ---- one connection ------------------------------------------------------------------

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= self._max_connections:
            # Without a word: an answer would cost what the limit is there to save.
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            try:
                await self._serve(reader, writer)
            except _Refusal as refusal:
                await _respond(writer, refusal.status, refusal.body, refusal.headers)
                await _linger(reader, writer)
            writer.close()
            async with asyncio.timeout(WRITE_TIME):
                await writer.wait_closed()
        except OSError:
            pass  # it went away or was too slow: there is nobody to tell
        finally:
            writer.transport.abort()  # where it is not closed by now
            self._connections.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(self._head_time):
            request = await _read_request(reader)
        user = await self._authenticate(request, writer)
        if request.path == "/":
            return await _respond(writer, HTTPStatus.OK, b"{}")
        if request.path == "/pools":
            return await _respond(writer, HTTPStatus.OK, _POOLS)
        once, streaming = _tail(request.path, _ONCE), _tail(request.path, _STREAMING)
        document = self._map(once or streaming, user)
        if document is None:
            raise _Refusal(HTTPStatus.NOT_FOUND, "there is nothing here, or not for this user")
        if once:
            return await _respond(writer, HTTPStatus.OK, document)
        return await self._stream(streaming, user, reader, writer)

    async def _authenticate(self, request: _Request, writer: asyncio.StreamWriter) -> str | None:
        """Who it is; None where there are no users."""
        if self._users.is_unrestricted:
            return None
        name, password = request.credentials()
        user = await asyncio.to_thread(self._users.authenticate, name, password)
        if user is None:
            if name:  # who shows nothing, as browsers do at first, is not guessing
                peer = writer.get_extra_info("peername")
                logger.warning("HTTP from %s: authentication as %r failed", peer, name[:MAX_NAME])
                await asyncio.sleep(self._refusal_delay)
            raise _Refusal(
                HTTPStatus.UNAUTHORIZED,
                "a user and password are needed",
                {"WWW-Authenticate": 'Basic realm="upriver"'},
            )
        return user

    def _map(self, bucket: str, user: str | None) -> bytes | None:
        """A bucket's map; a user without a role in it cannot tell it from one that is not there."""
        return self._config(bucket) if bucket and self._users.roles(user, bucket) else None

    async def _stream(
        self,
        bucket: str,
        user: str | None,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Sends the map, and again after each change, until the client or the bucket goes."""
        wake = asyncio.Event()
        gone = asyncio.create_task(_ended(reader))
        gone.add_done_callback(lambda _: wake.set())
        self._streams.add(wake)
        try:
            await _send(writer, _head(HTTPStatus.OK, {"Transfer-Encoding": "chunked"}))
            sent = b""
            while not gone.done() and not self._closing:
                wake.clear()  # before the look at the map, so that no change is missed
                document = self._map(bucket, user)
                if document is None:
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


@dataclass(frozen=True, slots=True)
class _Request:
    path: str
    headers: dict[str, str]

    def credentials(self) -> tuple[str, str]:
        """Name and password of basic authentication; empty where there is none."""
        scheme, _, encoded = self.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "basic":
            return "", ""
        try:
            name, colon, password = (
                b64decode(encoded.strip(), validate=True).decode().partition(":")
            )
        except (binascii.Error, UnicodeDecodeError):
            raise _Refusal(HTTPStatus.BAD_REQUEST, "not basic authentication") from None
        return (name, password) if colon else ("", "")


class _Refusal(Exception):
    """A request that is answered with an error."""

    def __init__(
        self, status: HTTPStatus, rule: str, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(rule)
        self.status = status
        self.body = json.dumps({"error": rule}).encode()
        self.headers = headers or {}


async def _read_request(reader: asyncio.StreamReader) -> _Request:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise _Refusal(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"more than {MAX_HEAD} bytes of headers"
        ) from None
    except asyncio.IncompleteReadError:
        raise ConnectionError("closed before the end of a request") from None
    line, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    parts = line.split(" ")
    if len(parts) != 3 or not parts[1].startswith("/") or not parts[2].startswith("HTTP/"):
        raise _Refusal(HTTPStatus.BAD_REQUEST, "not a request of HTTP/1.1")
    method, target, version = parts
    if version != "HTTP/1.1":
        raise _Refusal(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "only HTTP/1.1")
    headers = {}
    for header in lines:
        name, colon, value = header.partition(":")
        if not colon or not name.strip():
            raise _Refusal(HTTPStatus.BAD_REQUEST, "a header without a name")
        headers[name.strip().lower()] = value.strip()
    if method != "GET":
        raise _Refusal(HTTPStatus.METHOD_NOT_ALLOWED, "only GET", {"Allow": "GET"})
    return _Request(unquote(target.partition("?")[0]), headers)


def _tail(path: str, prefixes: tuple[str, ...]) -> str:
    """The name of the bucket after one of the prefixes; "" if there is none."""
    for prefix in prefixes:
        if path.startswith(prefix) and "/" not in path.removeprefix(prefix):
            return path.removeprefix(prefix)
    return ""


def _head(status: HTTPStatus, headers: dict[str, str]) -> bytes:
    fields = {
        "Content-Type": "application/json",
        "Cache-Control": "no-store",
        "Connection": "close",
        **headers,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status.value} {status.phrase}\r\n{lines}\r\n".encode()


async def _respond(
    writer: asyncio.StreamWriter,
    status: HTTPStatus,
    body: bytes,
    headers: dict[str, str] | None = None,
) -> None:
    length = {"Content-Length": str(len(body))}
    await _send(writer, _head(status, length | (headers or {})) + body)


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    async with asyncio.timeout(WRITE_TIME):
        await writer.drain()


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Takes what a refused client still sends: to close on unread bytes would reset the answer."""
    if writer.can_write_eof():
        writer.write_eof()
    async with asyncio.timeout(LINGER_TIME):
        while await reader.read(MAX_HEAD):
            pass


async def _ended(reader: asyncio.StreamReader) -> None:
    """Returns when a client closes its side, or says something although it has to listen."""
    with contextlib.suppress(OSError):
        await reader.read(1)
