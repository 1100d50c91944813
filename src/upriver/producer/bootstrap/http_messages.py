"""HTTP/1.1 requests and responses as the management port reads and writes them.

Each connection carries one request. Everything that a client sends is limited: the head, the body,
and the time for each. This module knows neither users nor paths.
"""

from __future__ import annotations

import asyncio
import binascii
import json
from base64 import b64decode
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from ..._http_requests import MalformedRequest, check_trailer, chunk_size, parse_head

#: Bytes of the request line and all headers. A long name and password in base64 take 2 KiB.
MAX_HEAD: Final = 8 * 1024
#: Bytes of a body, which only authenticated clients may send: forms of a few fields.
MAX_BODY: Final = 64 * 1024
#: Fields of a form.
MAX_FIELDS: Final = 100

_METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request. The path is a tuple of decoded segments."""

    method: str
    path: tuple[str, ...]
    headers: dict[str, str]
    body: bytes = b""
    #: Bytes of the body that follows; None if it comes in chunks.
    length: int | None = 0

    def credentials(self) -> tuple[str, str]:
        """Returns name and password of basic authentication; empty if there is none."""
        scheme, _, encoded = self.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "basic":
            return "", ""
        try:
            name, colon, password = (
                b64decode(encoded.strip(), validate=True).decode().partition(":")
            )
        except (binascii.Error, UnicodeDecodeError):
            raise HttpRefusal(HTTPStatus.BAD_REQUEST, "not basic authentication") from None
        return (name, password) if colon else ("", "")

    def form(self) -> dict[str, str]:
        """Returns the fields of a form in the body."""
        try:
            # Some clients start the form with an ampersand.
            text = self.body.decode().strip("&")
            fields = parse_qsl(
                text,
                keep_blank_values=True,
                strict_parsing=bool(text),
                errors="strict",
                max_num_fields=MAX_FIELDS,
            )
        except (ValueError, UnicodeDecodeError):
            raise HttpRefusal(
                HTTPStatus.BAD_REQUEST, "the body is no form (application/x-www-form-urlencoded)"
            ) from None
        return dict(fields)


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A response that is sent as a whole."""

    status: HTTPStatus
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


class HttpRefusal(Exception):
    """An error response to a request; its body explains the error.

    ``errors`` maps names of form fields to what is wrong with them, as Couchbase Server reports it.
    """

    def __init__(
        self,
        status: HTTPStatus,
        rule: str,
        headers: dict[str, str] | None = None,
        *,
        errors: dict[str, str] | None = None,
    ) -> None:
        super().__init__(rule)
        self.status = status
        self.headers = headers or {}
        self._told: dict[str, Any] = {"error": rule}
        if errors is not None:
            self._told["errors"] = errors

    @property
    def response(self) -> HttpResponse:
        return HttpResponse(self.status, json.dumps(self._told).encode(), self.headers)


def json_response(document: Any) -> HttpResponse:
    """Returns a response with a JSON document."""
    return HttpResponse(HTTPStatus.OK, json.dumps(document, separators=(",", ":")).encode())


async def read_request(reader: asyncio.StreamReader) -> HttpRequest:
    """Reads the head of a request. The body is read only after authentication."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise HttpRefusal(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"more than {MAX_HEAD} bytes of headers"
        ) from None
    except asyncio.IncompleteReadError:
        raise ConnectionError("closed before the end of a request") from None
    try:
        parsed = parse_head(head)
    except MalformedRequest as problem:
        raise HttpRefusal(problem.status, problem.rule) from None
    if parsed.version != "1.1":
        raise HttpRefusal(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "only HTTP/1.1")
    if parsed.method not in _METHODS:
        raise HttpRefusal(
            HTTPStatus.METHOD_NOT_ALLOWED,
            f"{parsed.method[:20]} is not served",
            {"Allow": ", ".join(sorted(_METHODS))},
        )
    # Split before decoding: a %2f belongs to a name.
    path = tuple(unquote(part) for part in parsed.target.partition("?")[0][1:].split("/"))
    return HttpRequest(parsed.method, path, parsed.fields, length=parsed.length)


async def read_body(
    request: HttpRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> HttpRequest:
    """Returns the request with its body, if it has one.

    Go clients send a body of unknown length in chunks.
    """
    length = request.length
    if length is not None and length > MAX_BODY:
        raise _body_too_large(length)
    if request.headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    try:
        body = await (_read_chunks(reader) if length is None else reader.readexactly(length))
    except asyncio.IncompleteReadError:
        raise ConnectionError("closed before the end of a request") from None
    except MalformedRequest as problem:
        raise HttpRefusal(problem.status, problem.rule) from None
    return replace(request, body=body)


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    """Reads a chunked body: a line with the size in hexadecimal, the bytes, an empty line.

    The last chunk is empty. Lines after it are trailers, which are ignored.
    """
    body = bytearray()
    overhead = 0
    while True:
        line = await _read_line(reader)
        size = chunk_size(line)
        if not size:
            break
        overhead += len(line)
        if len(body) + size > MAX_BODY or overhead > MAX_BODY:
            raise _body_too_large(len(body) + size)
        body += await reader.readexactly(size)
        if await _read_line(reader):
            raise HttpRefusal(HTTPStatus.BAD_REQUEST, "a chunk is longer than its size")
    while trailer := await _read_line(reader):
        check_trailer(trailer)
        overhead += len(trailer)
        if overhead > MAX_BODY:
            raise _body_too_large(overhead)
    return bytes(body)


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    try:
        return (await reader.readuntil(b"\r\n"))[:-2]
    except asyncio.LimitOverrunError:
        raise HttpRefusal(HTTPStatus.BAD_REQUEST, "a chunk without its size") from None


def _body_too_large(length: int) -> HttpRefusal:
    return HttpRefusal(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body has up to {MAX_BODY} bytes, not {length}"
    )


def encode_head(status: HTTPStatus, headers: dict[str, str]) -> bytes:
    fields = {
        "Content-Type": "application/json",
        "Cache-Control": "no-store",
        "Connection": "close",
        **headers,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status.value} {status.phrase}\r\n{lines}\r\n".encode()
