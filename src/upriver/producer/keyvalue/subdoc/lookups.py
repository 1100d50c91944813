"""Sub-document lookups: the values at paths of a document and of its attributes.

Extended attributes are treated as one JSON object with a member for each, so a path into them works
like a path into the body. Besides the stored attributes there are virtual ones, made on demand:

    $document    the metadata that the server has of the document
    $vbucket     the clock that the vbucket takes its CAS from
    $XTOC        the names of the stored attributes
"""

from __future__ import annotations

import json
import struct
from typing import Final, NamedTuple

from ....errors import Status, StoreRefusal
from ....model import Datatype, FailoverEntry, Op
from ....wire import kv_messages as kv
from ....wire import values
from ....wire.canonical import CanonicalChange
from ....wire.crc32c import crc32c
from ....wire.enum_codes import STATUSES
from ....wire.protocol_enums import Command as C
from ....wire.protocol_enums import PathFlag
from . import json_edits
from .json_paths import entries, parse_path, reading

DOCUMENT: Final = "$document"
VBUCKET: Final = "$vbucket"
XTOC: Final = "$XTOC"
_VIRTUAL: Final = frozenset({DOCUMENT, VBUCKET, XTOC})

#: Paths in one command, as on Couchbase Server.
_MAX_PATHS: Final = 16

_NUMBERS: Final = {status: number for number, status in STATUSES.items()}
_RESULT = struct.Struct(
    ">"
    "H"  # status
    "I"  # length of the value
)
_NANOSECONDS: Final = 1_000_000_000


class Parts(NamedTuple):
    """A stored value split in two: the attributes as the text of one JSON object, and the body."""

    xattrs: str
    body: bytes
    is_json: bool

    def text(self) -> str:
        """Returns the body as JSON text."""
        if not self.is_json:
            raise StoreRefusal(Status.SUBDOC_DOC_NOT_JSON, "the document is not JSON")
        with reading():
            return self.body.decode()

    def joined(self) -> bytes:
        """Returns the value with its attributes in front, as it is stored."""
        text = self.xattrs
        found = {
            entry.name or "": text[entry.value : entry.end].encode() for entry in entries(text, 0)
        }
        return values.join_xattrs(found, self.body)


def split(value: bytes, datatype: int) -> Parts:
    """Splits a stored value into attributes and body."""
    try:
        xattrs, body = values.unwrap(value, Datatype(datatype))
        members = ",".join(f"{json.dumps(name)}:{raw.decode()}" for name, raw in xattrs.items())
    except ValueError as problem:
        raise StoreRefusal(Status.XATTR_INVALID, str(problem)) from None
    return Parts(f"{{{members}}}", body, bool(datatype & Datatype.JSON))


def wanted_virtual(paths: tuple[kv.SubdocPath, ...]) -> frozenset[str]:
    """Returns the names of the virtual attributes that the lookups refer to."""
    named = [
        path.path.partition(b".")[0].partition(b"[")[0].replace(b"`", b"")
        for path in paths
        if path.path_flags & PathFlag.IN_XATTRS
    ]
    return frozenset(name for name in _VIRTUAL if name.encode() in named)


def virtual(
    wanted: frozenset[str], found: CanonicalChange, parts: Parts, branch: FailoverEntry, now: float
) -> str:
    """Returns the attributes as JSON text, with the wanted virtual ones included."""
    made: dict[str, str] = {}
    if DOCUMENT in wanted:
        made[DOCUMENT] = document_attribute(found, parts, branch)
    if VBUCKET in wanted:
        made[VBUCKET] = json.dumps({"HLC": {"now": str(int(now)), "mode": "real"}})
    if XTOC in wanted:
        made[XTOC] = json.dumps([entry.name for entry in entries(parts.xattrs, 0)])
    text = parts.xattrs
    for name, content in made.items():
        text = json_edits.upsert_member(text, (name,), content)
    return text


def document_attribute(found: CanonicalChange, parts: Parts, branch: FailoverEntry) -> str:
    """Returns ``$document``, the document's metadata, as JSON text."""
    datatype = Datatype(found.datatype)
    bits = [bit.name.lower() for bit in Datatype if bit in datatype and bit.name]
    about = {
        "CAS": f"0x{found.cas:016x}",
        "vbucket_uuid": f"0x{branch.vbuuid:016x}",
        "seqno": f"0x{found.seqno:016x}",
        "revid": str(found.rev),
        "exptime": found.time if found.op is Op.MUTATION else 0,
        "flags": found.flags,
        "value_bytes": len(parts.body),
        "value_crc32c": f"0x{crc32c(parts.body):08x}",
        "datatype": bits or ["raw"],
        "deleted": found.op is not Op.MUTATION,
        "last_modified": str(found.cas // _NANOSECONDS),
    }
    return json.dumps(about)


def look_up(parts: Parts, xattrs: str, operation: kv.SubdocPath) -> bytes:
    """Returns the result of one lookup; ``xattrs`` includes the virtual attributes."""
    command, path = operation.command, parse_path(operation.path)
    if command is C.GET:
        if path or operation.path_flags:
            raise StoreRefusal(Status.INVALID, "a whole document has neither path nor flags")
        return parts.body
    if operation.path_flags & ~int(PathFlag.IN_XATTRS):
        raise StoreRefusal(Status.SUBDOC_XATTR_INVALID_FLAGS, "flags that a lookup does not have")
    if not path and command is not C.SUBDOC_GET_COUNT:
        raise StoreRefusal(Status.INVALID, "the path is empty")
    if operation.path_flags & PathFlag.IN_XATTRS:
        if not path:
            raise StoreRefusal(Status.XATTR_INVALID, "the path names no attribute")
        name = str(path[0])
        if name.startswith("$") and name not in _VIRTUAL:
            raise StoreRefusal(Status.SUBDOC_XATTR_UNKNOWN_VATTR, f"there is no {name}")
        text = xattrs
    else:
        text = parts.text()
    if command is C.SUBDOC_GET_COUNT:
        return str(json_edits.count_entries(text, path)).encode()
    value = json_edits.look_up(text, path)
    return value.encode() if command is C.SUBDOC_GET else b""


def multi_value(results: list[tuple[Status, bytes]]) -> bytes:
    """Encodes the value of a multi-lookup response: status, length and value of each lookup."""
    return b"".join(
        _RESULT.pack(status_number(status), len(value)) + value for status, value in results
    )


def status_number(status: Status) -> int:
    """Returns the number that encodes a status inside the value of a multi-path response."""
    return _NUMBERS[status]


def check_order(paths: tuple[kv.SubdocPath, ...], allowed: frozenset[C]) -> None:
    """Refuses a combination or an order of paths that is not allowed."""
    if len(paths) > _MAX_PATHS:
        raise StoreRefusal(
            Status.SUBDOC_INVALID_COMBINATION, f"a command has up to {_MAX_PATHS} paths"
        )
    if any(path.command not in allowed for path in paths):
        raise StoreRefusal(
            Status.SUBDOC_INVALID_COMBINATION, "lookups and mutations cannot be mixed"
        )
    in_xattrs = [bool(path.path_flags & PathFlag.IN_XATTRS) for path in paths]
    if in_xattrs != sorted(in_xattrs, reverse=True):
        raise StoreRefusal(
            Status.SUBDOC_INVALID_XATTR_ORDER, "paths into attributes come before all others"
        )
