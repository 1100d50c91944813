"""Requests that a proxy could understand otherwise (RFC 9112): both HTTP servers refuse them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from dashboardkit import PATIENCE, watched

from upriver.testing import TemporaryProducer

GET = b"GET %s HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"

#: Fields, and after an empty line what follows the head.
FIELDS = {
    "two lengths": b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
    "the same length twice": b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "two lengths, other letters": b"Content-Length: 3\r\ncontent-length: 4\r\n\r\nabc",
    "a list of lengths": b"Content-Length: 3, 4\r\n\r\nabc",
    "a list of equal lengths": b"Content-Length: 3, 3\r\n\r\nabc",
    "plus": b"Content-Length: +3\r\n\r\nabc",
    "minus": b"Content-Length: -3\r\n\r\nabc",
    "minus zero": b"Content-Length: -0\r\n\r\n",
    "a space inside": b"Content-Length: 3 0\r\n\r\nabc",
    "an underscore": b"Content-Length: 0_3\r\n\r\nabc",
    "hexadecimal": b"Content-Length: 0x3\r\n\r\nabc",
    "a fraction": b"Content-Length: 3.0\r\n\r\nabc",
    "a parameter": b"Content-Length: 3;a\r\n\r\nabc",
    "no length": b"Content-Length:\r\n\r\nabc",
    "a vertical tab": b"Content-Length: 3\x0b\r\n\r\nabc",
    "a next line": b"Content-Length: 3\x85\r\n\r\nabc",
    "another digit": b"Content-Length: \xb3\r\n\r\nabc",
    "a NUL": b"Content-Length: 3\0\r\n\r\nabc",
    "thirty digits": b"Content-Length: %030d\r\n\r\nabc" % 3,
    "length, then coding": b"Content-Length: 3\r\n" + CHUNKED + b"\r\n0\r\n\r\n",
    "coding, then length": CHUNKED + b"Content-Length: 3\r\n\r\n0\r\n\r\n",
    "no final chunked": b"Transfer-Encoding: gzip\r\n\r\n0\r\n\r\n",
    "identity": b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "chunked is not the last": b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "chunked twice": b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "two codings": CHUNKED + CHUNKED + b"\r\n0\r\n\r\n",
    "two codings, one unknown": CHUNKED + b"Transfer-Encoding: x\r\n\r\n0\r\n\r\n",
    "like chunked": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked with a parameter": b"Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n",
    "a vertical tab before chunked": b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "a quoted coding": b'Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n',
    "no coding": b"Transfer-Encoding:\r\n\r\n0\r\n\r\n",
    "a folded line": b"X: a\r\n b\r\n\r\n",
    "a folded length": b"Content-Length:\r\n 3\r\n\r\nabc",
    "a folded coding": b"Transfer-Encoding:\r\n\tchunked\r\n\r\n0\r\n\r\n",
    "a space before a name": b" Content-Length: 3\r\n\r\nabc",
    "a lone CR": b"X: a\rContent-Length: 3\r\n\r\nabc",
    "a lone LF": b"X: a\nContent-Length: 3\r\n\r\nabc",
    "a CR before the end of a line": b"Content-Length: 3\r\r\n\r\nabc",
    "a space before the colon": b"Content-Length : 3\r\n\r\nabc",
    "a tab before the colon": b"Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n",
    "a space in a name": b"Content Length: 3\r\n\r\nabc",
    "letters in a name": b"Cont\xe9nt-Length: 3\r\n\r\nabc",
    "a NUL in a name": b"Content-Length\0: 3\r\n\r\nabc",
    "no name": b": 3\r\n\r\nabc",
    "no colon": b"Content-Length\r\n\r\nabc",
    "two hosts": b"Host: elsewhere\r\n\r\n",
}
#: Bodies after a valid head. The dashboard takes no body in chunks, so it reads none of them.
BODIES = {
    "plus": b"+3\r\nabc\r\n0\r\n\r\n",
    "minus": b"-3\r\nabc\r\n0\r\n\r\n",
    "hexadecimal": b"0x3\r\nabc\r\n0\r\n\r\n",
    "an underscore": b"0_3\r\nabc\r\n0\r\n\r\n",
    "a space before": b" 3\r\nabc\r\n0\r\n\r\n",
    "a space after": b"3 \r\nabc\r\n0\r\n\r\n",
    "a space before an extension": b"3 ;a\r\nabc\r\n0\r\n\r\n",
    "a vertical tab": b"3\x0b\r\nabc\r\n0\r\n\r\n",
    "a letter": b"3g\r\nabc\r\n0\r\n\r\n",
    "no size": b"\r\nabc\r\n0\r\n\r\n",
    "twenty digits": b"%020d\r\nabc\r\n0\r\n\r\n" % 3,
    "a lone LF": b"3\nabc\r\n0\r\n\r\n",
    "a lone LF in an extension": b"3;a\nb\r\nabc\r\n0\r\n\r\n",
    "a lone CR in an extension": b"3;a\rb\r\nabc\r\n0\r\n\r\n",
    "more than the size": b"3\r\nabcd\r\n0\r\n\r\n",
    "less than the size": b"3\r\na\r\n0\r\n\r\n",
    "a folded trailer": b"0\r\nX: a\r\n b\r\n\r\n",
    "a space before the colon of a trailer": b"0\r\nX : a\r\n\r\n",
    "a lone CR in a trailer": b"0\r\nX: a\rb\r\n\r\n",
}
LINES = {
    "two spaces": b"GET  %s HTTP/1.1\r\n",
    "a tab": b"GET\t%s HTTP/1.1\r\n",
    "a space before": b" GET %s HTTP/1.1\r\n",
    "a space after": b"GET %s HTTP/1.1 \r\n",
    "a lone CR": b"GET %s\r HTTP/1.1\r\n",
    "a lone LF": b"GET %s HTTP/1.1\nX: a\r\n",
    "a NUL": b"GET %s\0 HTTP/1.1\r\n",
    "no version": b"GET %s\r\n",
    "another version": b"GET %s HTTP/1.10\r\n",
    "a sign in the version": b"GET %s HTTP/+1.1\r\n",
    "a coding with HTTP/1.0": b"GET %s HTTP/1.0\r\n" + CHUNKED,
}
VALID = {
    "no body": b"\r\n",
    "no bytes": b"Content-Length: 0\r\n\r\n",
    "a length": b"Content-Length:\t 3 \t\r\n\r\nabc",
    "letters of another alphabet": b"X: \xe9\r\n\r\n",
    "a field twice": b"X: a\r\nX: b\r\n\r\n",
}
IN_CHUNKS = {
    "a chunk": b"3\r\nabc\r\n0\r\n\r\n",
    "an extension": b"3;a=b\r\nabc\r\n0;c\r\n\r\n",
    "a trailer": b"0\r\nX: a\r\n\r\n",
}


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, tuple[int, bytes]]]:
    """The port of each server, and a path at which it answers."""
    with TemporaryProducer(vbuckets=1) as producer, watched(producer) as url:
        management, dashboard = producer.producer.server.http_port, urlsplit(url).port
        assert management is not None
        assert dashboard is not None
        yield {"management": (management, b"/pools"), "dashboard": (dashboard, b"/health")}


def status(server: tuple[int, bytes], request: bytes) -> int:
    port, path = server
    received = b""
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as link:
        link.sendall(request % path)
        try:
            while some := link.recv(4096):
                received += some
        except ConnectionResetError:
            pass  # it has not read everything
    assert received.startswith(b"HTTP/1."), received
    return int(received.split()[1])


@pytest.mark.parametrize("server", ["management", "dashboard"])
class TestBothServers:
    @pytest.mark.parametrize("shape", FIELDS)
    def test_fields(self, servers: dict[str, tuple[int, bytes]], server: str, shape: str) -> None:
        assert status(servers[server], GET + FIELDS[shape].replace(b"%", b"%%")) == 400

    @pytest.mark.parametrize("shape", LINES)
    def test_request_lines(
        self, servers: dict[str, tuple[int, bytes]], server: str, shape: str
    ) -> None:
        assert status(servers[server], LINES[shape] + b"Host: localhost\r\n\r\n") == 400

    @pytest.mark.parametrize("shape", BODIES)
    def test_bodies(self, servers: dict[str, tuple[int, bytes]], server: str, shape: str) -> None:
        refused = 400 if server == "management" else 411
        assert status(servers[server], GET + CHUNKED + b"\r\n" + BODIES[shape]) == refused

    @pytest.mark.parametrize("shape", VALID)
    def test_what_is_valid_is_answered(
        self, servers: dict[str, tuple[int, bytes]], server: str, shape: str
    ) -> None:
        assert status(servers[server], GET + VALID[shape]) == 200

    @pytest.mark.parametrize("shape", IN_CHUNKS)
    def test_valid_chunks(
        self, servers: dict[str, tuple[int, bytes]], server: str, shape: str
    ) -> None:
        answered = 200 if server == "management" else 411
        assert status(servers[server], GET + CHUNKED + b"\r\n" + IN_CHUNKS[shape]) == answered
