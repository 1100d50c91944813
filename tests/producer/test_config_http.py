"""How the management port reads requests, knows users and streams maps, on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import urllib.request
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import pytest

from upriver.producer.bootstrap import http
from upriver.producer.bootstrap.http import HttpServer
from upriver.producer.bootstrap.http_messages import (
    MAX_BODY,
    MAX_HEAD,
    HttpRefusal,
    HttpRequest,
    HttpResponse,
)
from upriver.producer.bootstrap.password_checks import PasswordChecks
from upriver.producer.bootstrap.users import MIN_ITERATIONS, Grant, Role, Users
from upriver.producer.connections.thread_pools import ThreadPools

ANYBODY = Users.unrestricted()
LAST_CHUNK = b"0\r\n\r\n"
CHUNKED = b"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"


class Maps:
    """An API of nothing but maps, which a test can change."""

    def __init__(self, users: Users) -> None:
        self.users = users
        self.maps = {"default": b'{"rev":1}'}

    def terse_map(self, bucket: str, user: str | None) -> bytes:
        if not self.users.roles(user, bucket):
            raise HttpRefusal(HTTPStatus.FORBIDDEN, "no role")
        if bucket not in self.maps:
            raise HttpRefusal(HTTPStatus.NOT_FOUND, "no bucket")
        return self.maps[bucket]

    def answer(self, request: HttpRequest, user: str | None) -> HttpResponse:
        if request.path == ("fault",):
            raise ZeroDivisionError
        if request.path == ("echo",):
            return HttpResponse(HTTPStatus.OK, json.dumps(request.form()).encode())
        if request.path[:-1] == ("pools", "default", "b"):
            return HttpResponse(HTTPStatus.OK, self.terse_map(request.path[-1], user))
        if request.path in (("",), ("pools",)):
            return HttpResponse(HTTPStatus.OK, b"{}")
        raise HttpRefusal(HTTPStatus.NOT_FOUND, "nothing here")


class Site:
    """A server with buckets that a test can change."""

    def __init__(self, server: HttpServer, port: int, maps: dict[str, bytes]) -> None:
        self.server = server
        self.port = port
        self.maps = maps

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def say(self, request: bytes) -> tuple[int, dict[str, str], bytes]:
        """Sends bytes and reads the whole answer."""
        reader, writer = await self.connect()
        try:
            writer.write(request)
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            writer.close()
        line, *lines = head.decode().split("\r\n")
        assert line.startswith("HTTP/1.1 ")
        return int(line.split()[1]), dict(field.split(": ", 1) for field in lines), body

    async def get(self, path: str, *headers: str) -> tuple[int, dict[str, str], bytes]:
        lines = "".join(f"{header}\r\n" for header in headers)
        return await self.say(f"GET {path} HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode())

    @asynccontextmanager
    async def stream(
        self, path: str, *headers: str
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A streaming request, after its head."""
        reader, writer = await self.connect()
        lines = "".join(f"{header}\r\n" for header in headers)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert b"Transfer-Encoding: chunked\r\n" in head
        try:
            yield reader, writer
        finally:
            writer.close()

    async def quiet(self) -> None:
        """Waits until every connection is forgotten."""
        while self.server._connections:
            await asyncio.sleep(0.001)

    def change(self, bucket: str, document: bytes) -> None:
        self.maps[bucket] = document
        self.server.notify()


async def chunk(reader: asyncio.StreamReader) -> bytes:
    size = int((await reader.readuntil(b"\r\n")).strip(), 16)
    body = await reader.readexactly(size + 2)
    assert body.endswith(b"\n\n\n\n\r\n")
    return body[:-6]


def basic(name: str, password: str) -> str:
    return "Authorization: Basic " + b64encode(f"{name}:{password}".encode()).decode()


def serve(
    scenario: Callable[[Site], Awaitable[None]], users: Users = ANYBODY, **options: Any
) -> None:
    """Runs a scenario against a server with the bucket "default"."""

    async def main() -> None:
        api = Maps(users)
        pools = ThreadPools()
        passwords = PasswordChecks(pools.submit, held=0, clock=asyncio.get_running_loop().time)
        server = HttpServer(users, api, passwords, refusal_delay=0, **options)
        _, port = await server.start("127.0.0.1", 0)
        try:
            async with asyncio.timeout(20):
                await scenario(Site(server, port, api.maps))
        finally:
            await server.close()
            pools.close()

    asyncio.run(main())


@pytest.fixture(scope="module")
def users() -> Users:
    users = Users()
    users.add("ann", "secret", Grant(Role.READ_STREAM, "default"), iterations=MIN_ITERATIONS)
    users.add("bob", "other", Grant(Role.ADMINISTER, "beer"), iterations=MIN_ITERATIONS)
    return users


# ---- asking once -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/pools/default/b/default",
        "/pools/default/b/default?nodeUUID=1",
        "/pools/default/b/%64efault",
    ],
)
def test_a_map(path: str) -> None:
    async def scenario(site: Site) -> None:
        status, headers, body = await site.get(path)
        assert (status, body) == (200, b'{"rev":1}')
        assert headers["Content-Type"] == "application/json"
        assert headers["Content-Length"] == "9"
        assert headers["Connection"] == "close"

    serve(scenario)


def test_a_client_from_elsewhere_understands() -> None:
    async def scenario(site: Site) -> None:
        def fetch() -> bytes:
            url = f"http://127.0.0.1:{site.port}/pools/default/b/default"
            with urllib.request.urlopen(url, timeout=10) as response:
                return bytes(response.read())

        assert await asyncio.to_thread(fetch) == b'{"rev":1}'

    serve(scenario)


@pytest.mark.parametrize(
    "chunks",
    [
        b"e\r\nname=s1&maxTTL\r\n3\r\n=10\r\n0\r\n\r\n",  # as Go sends a form of unknown length
        b"0011;x=y\r\nname=s1&maxTTL=10\r\n0\r\nTrailer: t\r\n\r\n",
    ],
)
def test_a_form_in_chunks(chunks: bytes) -> None:
    async def scenario(site: Site) -> None:
        status, _, body = await site.say(CHUNKED + chunks)
        assert (status, json.loads(body)) == (200, {"name": "s1", "maxTTL": "10"})

    serve(scenario)


@pytest.mark.parametrize("expect", ["", "Expect: 100-continue\r\n"])
def test_a_form(expect: str) -> None:
    async def scenario(site: Site) -> None:
        body = b"name=a%20b&other="
        head = f"POST /echo HTTP/1.1\r\n{expect}Content-Length: {len(body)}\r\n\r\n"
        reader, writer = await site.connect()
        writer.write(head.encode())
        if expect:
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        answer = await reader.read()
        writer.close()
        assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {"name": "a b", "other": ""}

    serve(scenario)


def test_a_fault_of_the_server_is_told_as_one(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(site: Site) -> None:
        assert (await site.get("/fault"))[0] == 500

    serve(scenario)
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /pools/default/b/other HTTP/1.1\r\n\r\n", 404),
        (b"GET /pools/default/b/ HTTP/1.1\r\n\r\n", 404),
        (b"GET /pools/default/b/a/default HTTP/1.1\r\n\r\n", 404),
        (b"GET /pools/default/b/..%2fdefault HTTP/1.1\r\n\r\n", 404),
        (b"GET /pools/default/bs/other HTTP/1.1\r\n\r\n", 404),
        (b"GET /elsewhere HTTP/1.1\r\n\r\n", 404),
        (b"HEAD / HTTP/1.1\r\n\r\n", 405),
        (b"POST /echo HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 400),
        (b"POST /echo HTTP/1.1\r\nContent-Length: 3\r\n\r\na=\xff", 400),
        (b"POST /echo HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /echo HTTP/1.1\r\nContent-Length: 1e3\r\n\r\n", 400),
        (b"POST /echo HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY + 1), 413),
        (CHUNKED + b"x\r\na=1\r\n0\r\n\r\n", 400),
        (CHUNKED + b"-3\r\na=1\r\n0\r\n\r\n", 400),
        (CHUNKED + b"2\r\na=1\r\n0\r\n\r\n", 400),
        (CHUNKED + b"%x\r\n" % (MAX_BODY + 1), 413),
        (CHUNKED + b"1\r\na\r\n" * MAX_BODY + b"1\r\na\r\n", 413),
        (CHUNKED + b"0\r\n" + b"a: b\r\n" * MAX_BODY, 413),
        (CHUNKED + b"0" * (MAX_HEAD * 2), 400),
        (b"POST /echo HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501),
        (CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Length: 3\r\n\r\n"), 400),
        (b"GET / HTTP/1.0\r\n\r\n", 505),
        (b"GET /\r\n\r\n", 400),
        (b"GET pools HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1 again\r\n\r\n", 400),
        (b"\x80\x1f\0\0\0\0\0\0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n: no name\r\n\r\n", 400),
        (b"GET /" + b"x" * MAX_HEAD + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * MAX_HEAD + b"\r\n", 431),
    ],
)
def test_requests_that_are_refused(request_bytes: bytes, status: int) -> None:
    async def scenario(site: Site) -> None:
        answered, headers, body = await site.say(request_bytes)
        assert answered == status
        assert json.loads(body)["error"]
        assert ("Allow" in headers) is (status == 405)

    serve(scenario)


# ---- streaming ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["/pools/default/bs/default", "/bs/default", "/pools/default/bucketsStreaming/default"],
)
def test_a_stream_sends_the_map_and_each_change(path: str) -> None:
    async def scenario(site: Site) -> None:
        async with site.stream(path) as (reader, _):
            assert await chunk(reader) == b'{"rev":1}'
            for rev in range(2, 5):
                site.change("default", b'{"rev":%d}' % rev)
                assert await chunk(reader) == b'{"rev":%d}' % rev

    serve(scenario)


def test_a_stream_sends_no_map_twice_and_only_the_newest() -> None:
    async def scenario(site: Site) -> None:
        async with site.stream("/bs/default") as (reader, _):
            assert await chunk(reader) == b'{"rev":1}'
            site.change("other", b"{}")
            await asyncio.sleep(0.01)
            site.change("default", b'{"rev":2}')
            site.change("default", b'{"rev":3}')
            assert await chunk(reader) == b'{"rev":3}'

    serve(scenario)


def test_a_stream_ends_with_its_bucket() -> None:
    async def scenario(site: Site) -> None:
        async with site.stream("/bs/default") as (reader, _):
            await chunk(reader)
            del site.maps["default"]
            site.server.notify()
            assert await reader.read() == LAST_CHUNK

    serve(scenario)


def test_a_stream_ends_with_the_server() -> None:
    async def scenario(site: Site) -> None:
        async with site.stream("/bs/default") as (reader, _):
            await chunk(reader)
            await site.server.close()
            assert await reader.read() == LAST_CHUNK
        with pytest.raises(OSError, match="Connect call failed"):
            await site.connect()

    serve(scenario)


def test_a_client_that_goes_leaves_nothing_behind() -> None:
    async def scenario(site: Site) -> None:
        async with site.stream("/bs/default") as (reader, _), site.stream("/bs/default") as (_, _):
            await chunk(reader)
            assert len(site.server._streams) == 2
        await site.quiet()
        assert not site.server._streams

    serve(scenario)


def test_a_client_that_reads_nothing_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "WRITE_TIME", 0.1)

    async def scenario(site: Site) -> None:
        site.maps["default"] = b"x" * 64 * 1024 * 1024
        lazy = socket.create_connection(("127.0.0.1", site.port))
        try:
            lazy.sendall(b"GET /bs/default HTTP/1.1\r\n\r\n")
            await asyncio.sleep(0.05)
            site.maps["default"] = b'{"rev":2}'
            async with site.stream("/bs/default") as (reader, _):
                assert await chunk(reader) == b'{"rev":2}'
            await site.quiet()
        finally:
            lazy.close()

    serve(scenario)


# ---- limits ------------------------------------------------------------------------------


def test_connections_are_limited() -> None:
    async def scenario(site: Site) -> None:
        async with site.stream("/bs/default") as (reader, _):
            await chunk(reader)
            more, writer = await site.connect()
            with contextlib.suppress(ConnectionResetError):
                assert await more.read() == b""
            writer.close()
        await site.quiet()
        assert (await site.get("/"))[0] == 200

    serve(scenario, max_connections=1)


@pytest.mark.parametrize("beginning", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n"])
def test_a_request_that_does_not_come_is_not_waited_for(beginning: bytes) -> None:
    async def scenario(site: Site) -> None:
        reader, writer = await site.connect()
        writer.write(beginning)
        assert await reader.read() == b""
        writer.close()

    serve(scenario, head_time=0.05)


def test_a_refusal_reaches_a_client_that_is_still_sending() -> None:
    async def scenario(site: Site) -> None:
        length = 4 * 1024 * 1024
        head = f"POST / HTTP/1.1\r\nContent-Length: {length}\r\n\r\n"
        assert (await site.say(head.encode() + b"x" * length))[0] == 413

    serve(scenario)


def test_a_request_that_is_cut_is_nobodys_trouble(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(site: Site) -> None:
        _, writer = await site.connect()
        writer.write(b"GET / HT")
        writer.close()
        assert (await site.get("/"))[0] == 200

    with caplog.at_level(logging.DEBUG):
        serve(scenario)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


# ---- users -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (basic("ann", "secret"), 200),
        (basic("ann", "secret").replace("Basic", "bAsIc"), 200),
        (basic("bob", "other"), 403),  # who has no role here
        (basic("ann", "other"), 401),
        (basic("nobody", "secret"), 401),
        (basic("", ""), 401),
        ("Authorization: Bearer abc", 401),
        ("Authorization: Basic", 401),
        ("Authorization: Basic " + b64encode(b"no colon").decode(), 401),
        ("Authorization: Basic !", 400),
        ("Authorization: Basic " + b64encode(b"\xff:x").decode(), 400),
        ("Accept: all", 401),
    ],
)
@pytest.mark.parametrize("path", ["/pools/default/b/default", "/pools"])
def test_where_there_are_users_each_request_says_whose_it_is(
    path: str, header: str, status: int, users: Users
) -> None:
    async def scenario(site: Site) -> None:
        answered, headers, _ = await site.get(path, header)
        assert answered == (200 if path == "/pools" and status == 403 else status)
        assert headers.get("WWW-Authenticate") == (
            'Basic realm="upriver"' if status == 401 else None
        )

    serve(scenario, users)


def test_passwords_are_not_taken_where_the_network_reads_along(users: Users) -> None:
    async def scenario(site: Site) -> None:
        status, _, body = await site.get("/pools", basic("ann", "secret"))
        assert (status, "--plain-without-tls" in body.decode()) == (403, True)
        assert (await site.get("/pools"))[0] == 401

    serve(scenario, users, takes_passwords=False)


@pytest.mark.parametrize("header", ["Origin: http://evil.example", "Sec-Fetch-Site: cross-site"])
def test_pages_in_a_browser_change_nothing(header: str) -> None:
    async def scenario(site: Site) -> None:
        request = f"POST /echo HTTP/1.1\r\n{header}\r\nContent-Length: 3\r\n\r\na=b"
        status, _, body = await site.say(request.encode())
        assert (status, "Origin" in body.decode()) == (403, True)

    serve(scenario)


def test_a_failure_is_logged_without_the_password(
    users: Users, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(site: Site) -> None:
        assert (await site.get("/", basic("ann", "unmistakable")))[0] == 401
        assert (await site.get("/"))[0] == 401

    with caplog.at_level(logging.WARNING, "upriver.producer"):
        serve(scenario, users)
    assert len(caplog.records) == 1
    assert "'ann'" in caplog.text
    assert "unmistakable" not in caplog.text


def test_a_stream_ends_when_its_user_may_no_longer_see_it() -> None:
    users = Users()
    users.add("ann", "secret", Grant(Role.READ_DATA), iterations=MIN_ITERATIONS)

    async def scenario(site: Site) -> None:
        async with site.stream("/bs/default", basic("ann", "secret")) as (reader, _):
            await chunk(reader)
            users.remove("ann")
            site.server.notify()
            assert await reader.read() == LAST_CHUNK

    serve(scenario, users)
