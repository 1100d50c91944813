"""Heads of HTTP/1.x requests, read strictly (RFC 9110, RFC 9112), without I/O.

Whatever a proxy in front could understand in another way is refused: who sends it may want the two
to disagree about where a request ends. Both HTTP servers read their requests with this module.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

#: A method or the name of a field: what RFC 9110 calls a token.
_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST_LINE: Final = re.compile(rf"({_TOKEN}) (/[\x21-\x7e]*) HTTP/([0-9]\.[0-9])")
#: No space is allowed before the colon, no line goes on in the next one, and a value has no
#: control characters but the tab: no lone CR or LF.
_FIELD: Final = re.compile(rf"({_TOKEN}):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")
#: Fields of which a second one would say something else than the first.
_SINGLE: Final = frozenset({"authorization", "content-length", "host"})
_NUMBER: Final = re.compile(r"[0-9]{1,19}")
#: Sixteen digits are enough for any size, and more than any limit. Extensions are ignored.
_CHUNK_SIZE: Final = re.compile(r"([0-9A-Fa-f]{1,16})(;[^\x00-\x08\x0a-\x1f\x7f]*)?")
_CODINGS: Final = re.compile(rf"(?:{_TOKEN}[ \t]*,[ \t]*)*chunked", re.IGNORECASE)


class MalformedRequest(Exception):
    """A request that is refused; the text says which rule it breaks."""

    def __init__(self, rule: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(rule)
        self.rule = rule
        self.status = status


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The request line and the fields, whose names are in lower case."""

    method: str
    target: str
    #: Such as "1.1".
    version: str
    fields: dict[str, str]
    #: Bytes of the body; None if it comes in chunks.
    length: int | None


def parse_head(head: bytes) -> RequestHead:
    """Parses a head, with the empty line at its end."""
    line, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    found = _REQUEST_LINE.fullmatch(line)
    if found is None:
        raise MalformedRequest("not a request of HTTP/1.1")
    method, target, version = found.groups()
    fields: dict[str, str] = {}
    for line in lines:
        name, value = _field(line)
        if name in fields:
            if name in _SINGLE:
                raise MalformedRequest(f"more than one {name.title()}")
            value = f"{fields[name]}, {value}"
        fields[name] = value
    return RequestHead(method, target, version, fields, _length(fields, version))


def chunk_size(line: bytes) -> int:
    """Parses the line before a chunk, without its end."""
    found = _CHUNK_SIZE.fullmatch(line.decode("latin-1"))
    if found is None:
        raise MalformedRequest("a chunk begins with its size")
    return int(found[1], 16)


def check_trailer(line: bytes) -> None:
    """Checks a field after the last chunk."""
    _field(line.decode("latin-1"))


def _field(line: str) -> tuple[str, str]:
    found = _FIELD.fullmatch(line)
    if found is None:
        raise MalformedRequest("a header that is not NAME: VALUE in one line of text")
    return found[1].lower(), found[2].rstrip(" \t")


def _length(fields: dict[str, str], version: str) -> int | None:
    length, codings = fields.get("content-length"), fields.get("transfer-encoding")
    if codings is None:
        if length is None:
            return 0
        if not _NUMBER.fullmatch(length):
            raise MalformedRequest("Content-Length is no number")
        return int(length)
    if length is not None:
        raise MalformedRequest("a body has a Content-Length or a Transfer-Encoding, not both")
    if version == "1.0" or not _CODINGS.fullmatch(codings):
        raise MalformedRequest("the last Transfer-Encoding is chunked, and HTTP/1.0 has none")
    if codings.lower() != "chunked":
        if codings.lower().count("chunked") > 1:
            raise MalformedRequest("a body is chunked once")
        raise MalformedRequest("the only Transfer-Encoding is chunked", HTTPStatus.NOT_IMPLEMENTED)
    return None
