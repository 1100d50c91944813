"""Parses sub-document paths and locates them in the text of a JSON document.

    path       = part *("." part / index) / index *("." part / index) / nothing, for the whole
    part       = characters but ` . [ ]  /  "`" anything, a backtick doubled "`"
    index      = "[" number "]" / "[-1]", the last

Values beside the path are skipped and not decoded. A located value is a range of the text, so an
edit leaves the rest of the document byte for byte as it was, including numbers of any precision.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from ....errors import Status, StoreRefusal
from ....wire.json_check import DECODER

#: The name of a member, or the index of an element, with -1 for the last.
PathPart = str | int
Path = tuple[PathPart, ...]

#: Levels of a path, and of a document that an edit creates. Couchbase Server refuses deeper ones,
#: and its clients rely on that.
MAX_DEPTH: Final = 32

#: Bytes of a path, as on Couchbase Server.
_MAX_PATH: Final = 1024

_PART = re.compile(
    r"\.?(?:`(?P<quoted>(?:[^`]|``)*)`|(?P<name>[^`.\[\]]+))"
    r"|(?P<index>\[(?:0|-1|[1-9][0-9]{0,8})\])"
)
_space = re.compile(r"[ \t\n\r]*").match


class Entry(NamedTuple):
    """A member of an object or an element of an array, as offsets into the text."""

    #: The name of a member; None for an element.
    name: str | None
    #: Offset of the entry with its name, offset of its value, and end offset of both.
    start: int
    value: int
    end: int


def parse_path(raw: bytes) -> Path:
    """Parses a path as clients write it into its parts."""
    if len(raw) > _MAX_PATH:
        raise StoreRefusal(Status.SUBDOC_PATH_TOO_BIG, f"a path has up to {_MAX_PATH} bytes")
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise StoreRefusal(Status.SUBDOC_PATH_INVALID, "the path is not UTF-8") from None
    parts: list[PathPart] = []
    at = 0
    while at < len(text):
        match = _PART.match(text, at)
        # A dot separates parts: it comes before every name but the first.
        dotted = text[at] == "."
        if match is None or (match["index"] is None and dotted is (not parts)):
            raise StoreRefusal(
                Status.SUBDOC_PATH_INVALID, f"the path cannot be read from its character {at} on"
            )
        if match["index"] is not None:
            parts.append(int(match["index"][1:-1]))
        elif match["quoted"] is not None:
            parts.append(match["quoted"].replace("``", "`"))
        else:
            parts.append(match["name"])
        at = match.end()
    if len(parts) > MAX_DEPTH:
        raise StoreRefusal(Status.SUBDOC_PATH_TOO_BIG, f"a path has up to {MAX_DEPTH} parts")
    return tuple(parts)


@contextmanager
def reading() -> Iterator[None]:
    """Context manager that reports a document which turns out not to be JSON while it is read."""
    try:
        yield
    except RecursionError:
        raise StoreRefusal(
            Status.SUBDOC_DOC_TOO_DEEP, "the document is nested too deeply"
        ) from None
    except (ValueError, IndexError):
        raise StoreRefusal(Status.SUBDOC_DOC_NOT_JSON, "the document is not JSON") from None


def start_of(text: str, at: int = 0) -> int:
    """Returns the offset of the next value."""
    match = _space(text, at)
    assert match is not None
    return match.end()


def decode(text: str, at: int) -> tuple[Any, int]:
    """Returns the value that begins at an offset, and its end offset."""
    return DECODER.raw_decode(text, at)


def entries(text: str, at: int) -> Iterator[Entry]:
    """Yields the entries of the object or array that begins at an offset, in order."""
    is_object = text[at] == "{"
    closing = "}" if is_object else "]"
    at = start_of(text, at + 1)
    if text[at] == closing:
        return
    while True:
        start, name = at, None
        if is_object:
            name, at = decode(text, at)
            at = start_of(text, _after(text, start_of(text, at), ":"))
        value = at
        at = decode(text, at)[1]
        yield Entry(name, start, value, at)
        at = start_of(text, at)
        if text[at] == closing:
            return
        at = start_of(text, _after(text, at, ","))


def child(text: str, at: int, part: PathPart) -> Entry | None:
    """Returns the entry that a part of a path selects in the container at an offset."""
    if isinstance(part, str):
        if text[at] != "{":
            raise StoreRefusal(Status.SUBDOC_PATH_MISMATCH, f"{part!r} is looked for in no object")
        return next((entry for entry in entries(text, at) if entry.name == part), None)
    if text[at] != "[":
        raise StoreRefusal(Status.SUBDOC_PATH_MISMATCH, f"[{part}] is looked for in no array")
    found = None
    for position, entry in enumerate(entries(text, at)):
        found = entry
        if position == part:
            return entry
    return found if part == -1 else None


def locate(text: str, path: Path) -> tuple[int, Path]:
    """Returns the offset of the deepest existing value on a path, and the rest of the path."""
    at = start_of(text)
    for position, part in enumerate(path):
        entry = child(text, at, part)
        if entry is None:
            return at, path[position:]
        at = entry.value
    return at, ()


def find(text: str, path: Path) -> int:
    """Returns the offset of the value at a path."""
    at, missing = locate(text, path)
    if missing:
        raise StoreRefusal(Status.SUBDOC_PATH_NOT_FOUND, f"there is no {missing[0]!r}")
    return at


def _after(text: str, at: int, mark: str) -> int:
    if text[at] != mark:
        raise ValueError(f"{mark} is missing at {at}")
    return at + 1
