r"""Changes as text: a line for people, or a JSON object on a line for programs.

The members of the JSON objects are stable. Numbers are exact, up to 64 bits. A change has

    type          "mutation", "deletion" or "expiration"
    vbucket, seqno, rev, cas, flags, expiry, datatype   as the server sent them
    time          when it was written, in UTC, from the CAS
    collection    as "scope.collection"
    key           the key, as text if it is UTF-8 and else in base64
    key_format    "text" or "base64": which of these
    value         the document as it is if it is JSON, else as text, else in base64; or null
    value_format  "json", "text", "base64"; "none" if there is no value
    size          the value's bytes
    xattrs        only if they were asked for: an object with the extended attributes by name

and other things that happen have

    type          "rollback": what came after to_seqno is not part of the history any more
                  vbucket, from_seqno, to_seqno, reason
    type          "flush": every document of the vbucket is gone
                  vbucket
    type          "end": of a vbucket, or of everything where vbucket is null
                  vbucket, reason; of everything also changes, how many there were

Nothing here reads or writes.
"""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn, Protocol

from ...consumer.changes import Change
from ...model import Datatype, Op
from ...session.consumer_events import Flushed, RolledBack, StreamFinished
from ...wire.values import unwrap

Incident = RolledBack | Flushed | StreamFinished

#: Characters of a value that are shown if the width of the screen is not known.
_PREVIEW: Final = 80
_SHORTEST_PREVIEW: Final = 10
_DEFAULT_COLLECTION: Final = "_default._default"
#: A dictionary, because ``Enum.value`` is slow and needed for each change.
_TYPES: Final = {op: op.value for op in Op}
#: How a terminal shows what happened.
_COLOURS: Final = {Op.MUTATION: "\x1b[32m", Op.DELETION: "\x1b[31m", Op.EXPIRATION: "\x1b[33m"}
_NO_COLOUR: Final = "\x1b[0m"
_WRAPPED: Final = int(Datatype.SNAPPY | Datatype.XATTR)


class Lines(Protocol):
    """Formats events as lines, including the line end."""

    def changes(self, changes: Iterable[Change]) -> str: ...

    def incident(self, event: Incident) -> str: ...

    def end(self, reason: str, changes: int) -> str:
        """The last line of the output."""


class _Times:
    """The time of a CAS as text; the text of the last second is cached."""

    def __init__(self, shape: str) -> None:
        self._shape = shape
        self._second = -1
        self._text = ""

    def micros(self, cas: int) -> str:
        second, nanos = divmod(cas & ~0xFFFF, 1_000_000_000)
        if second != self._second:
            self._second = second
            self._text = time.strftime(self._shape, time.gmtime(second))
        return f"{self._text}.{nanos // 1000:06d}"


# ---- for programs ------------------------------------------------------------------------


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


#: Used only to test whether a text is JSON, so numbers are not converted.
_parse: Final = json.JSONDecoder(
    parse_constant=_no_constant, parse_int=str, parse_float=str
).raw_decode
_quote: Final[Callable[[str], str]] = json.JSONEncoder(ensure_ascii=False).encode
_dump: Final[Callable[[Any], str]] = json.JSONEncoder(separators=(",", ":")).encode


class JsonLines:
    """Formats each event as a JSON object; ``name_of`` returns the name of a collection."""

    def __init__(
        self, name_of: Callable[[int], str], *, values: bool = True, xattrs: bool = False
    ) -> None:
        self._name_of = name_of
        self._values = values
        self._xattrs = xattrs
        self._times = _Times("%Y-%m-%dT%H:%M:%S")

    def changes(self, changes: Iterable[Change]) -> str:
        micros, names = self._times.micros, _Quoted(self._name_of)
        lines = []
        for op, vb, seqno, rev, cas, flags, expiry, datatype, collection, key, value in changes:
            try:
                shown_key, key_format = _quote(key.decode()), "text"
            except UnicodeDecodeError:
                shown_key, key_format = _base64(key), "base64"
            xattrs = ',"xattrs":{}' if self._xattrs else ""
            if datatype & _WRAPPED:
                value, xattrs = self._unwrapped(value, datatype, xattrs)
            if not value and (op is not Op.MUTATION or not self._values):
                shown, form = "null", "none"
            else:
                shown, form = _shown(value)
            lines.append(
                f'{{"type":"{_TYPES[op]}","vbucket":{vb},"seqno":{seqno},"rev":{rev},"cas":{cas},'
                f'"time":"{micros(cas)}Z","flags":{flags},"expiry":{expiry},'
                f'"datatype":{datatype},"collection":{names[collection]},'
                f'"key":{shown_key},"key_format":"{key_format}",'
                f'"value":{shown},"value_format":"{form}","size":{len(value)}{xattrs}}}\n'
            )
        return "".join(lines)

    def _unwrapped(self, value: bytes, datatype: int, without: str) -> tuple[bytes, str]:
        """The body, and the JSON member for the xattrs; a malformed value is left unchanged."""
        try:
            xattrs, body = unwrap(value, Datatype(datatype))
        except ValueError:
            return value, without
        if not self._xattrs:
            return body, ""
        members = (f"{_quote(name)}:{_shown(content)[0]}" for name, content in xattrs.items())
        return body, f',"xattrs":{{{",".join(members)}}}'

    def incident(self, event: Incident) -> str:
        if isinstance(event, RolledBack):
            record: dict[str, object] = {
                "type": "rollback",
                "vbucket": event.vbucket,
                "from_seqno": event.from_seqno,
                "to_seqno": event.to.seqno,
                "reason": event.reason.value,
            }
        elif isinstance(event, Flushed):
            record = {"type": "flush", "vbucket": event.vbucket}
        else:
            record = {"type": "end", "vbucket": event.vbucket, "reason": _reason(event)}
        return _dump(record) + "\n"

    def end(self, reason: str, changes: int) -> str:
        record = {"type": "end", "vbucket": None, "reason": reason, "changes": changes}
        return _dump(record) + "\n"


class _Quoted(dict[int, str]):
    """A cache of the collections' names as JSON."""

    def __init__(self, name_of: Callable[[int], str]) -> None:
        super().__init__()
        self._name_of = name_of

    def __missing__(self, collection: int) -> str:
        self[collection] = _quote(self._name_of(collection))
        return self[collection]


def _shown(value: bytes) -> tuple[str, str]:
    """A value as JSON, and its format."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return _base64(value), "base64"
    bare = text.strip(" \t\r\n")
    try:
        is_json = _parse(bare)[1] == len(bare)
    except (ValueError, RecursionError):
        is_json = False
    if not is_json:
        return _quote(text), "text"
    if "\n" in bare or "\r" in bare:  # between tokens; inside of strings they are escaped
        bare = bare.replace("\n", " ").replace("\r", " ")
    return bare, "json"


def _base64(data: bytes) -> str:
    return f'"{b64encode(data).decode()}"'


# ---- for people --------------------------------------------------------------------------


class PlainLines:
    """Formats events for people, with fixed column widths; ``width`` is that of the screen."""

    def __init__(
        self, name_of: Callable[[int], str], *, width: int | None = None, colour: bool = False
    ) -> None:
        self._name_of = name_of
        self._width = width
        self._colour = colour
        self._times = _Times("%Y-%m-%d %H:%M:%S")

    def changes(self, changes: Iterable[Change]) -> str:
        return "".join(map(self._line, changes))

    def _line(self, change: Change) -> str:
        try:
            body = change.body
        except ValueError:
            body = change.value
        name = self._name_of(change.collection)
        where = "" if name == _DEFAULT_COLLECTION else f"{_printable(name)} "
        place = f"{change.vbucket}:{change.seqno}"
        head = (
            f"{self._times.micros(change.cas)[:-3]}  {change.op.value:<10}  {place:<12}  "
            f"{len(body):>7} B  {where}{_printable(change.key.decode(errors='replace'))}"
        )
        room = _PREVIEW
        if self._width is not None:
            room = max(_SHORTEST_PREVIEW, self._width - len(head) - 2)
        preview = _preview(body, room)
        if self._colour:
            name = change.op.value
            head = head.replace(name, f"{_COLOURS[change.op]}{name}{_NO_COLOUR}", 1)
        return f"{head}  {preview}\n" if preview else f"{head}\n"

    def incident(self, event: Incident) -> str:
        if isinstance(event, RolledBack):
            return (
                f"-- vbucket {event.vbucket} rolled back from {event.from_seqno} "
                f"to {event.to.seqno}: {event.reason.value}\n"
            )
        if isinstance(event, Flushed):
            return f"-- vbucket {event.vbucket} flushed: every document is gone\n"
        return f"-- vbucket {event.vbucket} ended: {_reason(event)}\n"

    def end(self, reason: str, changes: int) -> str:
        return ""  # the summary on stderr says it


def _reason(event: StreamFinished) -> str:
    return event.reason.name.lower().replace("_", " ")


def _preview(body: bytes, room: int) -> str:
    """The beginning of a value on one line, without terminal escape sequences."""
    text = _printable(body[: 4 * room].decode(errors="replace"))
    return text if len(text) <= room else f"{text[: room - 1]}…"


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "·" for char in text)
