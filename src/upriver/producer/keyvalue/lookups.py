"""What sub-document commands find at paths of a document, and the attributes it is asked by.

Extended attributes are looked at as one JSON object with a member for each, so that a path into
them is a path like any other. Beside the stored ones there is ``$document``, made on demand.
"""

from __future__ import annotations

import json
import struct
from typing import Final, NamedTuple

from ...errors import Status, StoreRefusal
from ...model import Datatype, FailoverEntry, Op
from ...wire import kv, values
from ...wire.canonical import CanonicalChange
from ...wire.names import Command as C
from ...wire.numbers import STATUSES
from . import jsonedit
from .jsonpath import entries, parse_path, reading

__all__ = [
    "IN_XATTRS",
    "MAKE_PARENTS",
    "Parts",
    "check_order",
    "look_up",
    "multi_value",
    "split",
    "status_number",
    "virtual",
]

#: Path flags.
MAKE_PARENTS: Final = 0x01
IN_XATTRS: Final = 0x04

#: Paths in one command, as on real servers.
_MAX_PATHS: Final = 16

_NUMBERS: Final = {status: number for number, status in STATUSES.items()}
_RESULT = struct.Struct(
    ">"
    "H"  # status
    "I"  # length of the value
)
_NANOSECONDS: Final = 1_000_000_000


class Parts(NamedTuple):
    """A document taken apart: its attributes as the text of one object, and its body."""

    xattrs: str
    body: bytes
    is_json: bool

    def text(self) -> str:
        """The body as JSON."""
        if not self.is_json:
            raise StoreRefusal(Status.SUBDOC_DOC_NOT_JSON, "the document is not JSON")
        with reading():
            return self.body.decode()

    def joined(self) -> bytes:
        """The value with its attributes, as it is stored."""
        text = self.xattrs
        found = {
            entry.name or "": text[entry.value : entry.end].encode() for entry in entries(text, 0)
        }
        return values.join_xattrs(found, self.body)


def split(value: bytes, datatype: int) -> Parts:
    """Takes a stored value apart."""
    try:
        xattrs, body = values.unwrap(value, Datatype(datatype))
        members = ",".join(f"{json.dumps(name)}:{raw.decode()}" for name, raw in xattrs.items())
    except ValueError as problem:
        raise StoreRefusal(Status.XATTR_INVALID, str(problem)) from None
    return Parts(f"{{{members}}}", body, bool(datatype & Datatype.JSON))


def virtual(found: CanonicalChange, parts: Parts, branch: FailoverEntry) -> str:
    """The attributes with ``$document`` among them: what the server knows of a document."""
    datatype = Datatype(found.datatype)
    bits = [bit.name.lower() for bit in Datatype if bit in datatype and bit.name]
    about = {
        "CAS": f"0x{found.cas:016x}",
        "vbucket_uuid": f"0x{branch.vbuuid:016x}",
        "seqno": f"0x{found.seqno:016x}",
        "revid": str(found.rev),
        "exptime": found.time,
        "flags": found.flags,
        "value_bytes": len(parts.body),
        "datatype": bits or ["raw"],
        "deleted": found.op is not Op.MUTATION,
        "last_modified": str(found.cas // _NANOSECONDS),
    }
    return jsonedit.upsert_member(parts.xattrs, ("$document",), json.dumps(about))


def look_up(parts: Parts, xattrs: str, operation: kv.SubdocPath) -> bytes:
    """What one lookup gives; ``xattrs`` includes the virtual ones."""
    command, path = operation.command, parse_path(operation.path)
    if command is C.GET:
        if path or operation.path_flags:
            raise StoreRefusal(Status.INVALID, "a whole document has neither path nor flags")
        return parts.body
    if operation.path_flags & ~IN_XATTRS:
        raise StoreRefusal(Status.SUBDOC_XATTR_INVALID_FLAGS, "flags that a lookup does not have")
    if not path and command is not C.SUBDOC_GET_COUNT:
        raise StoreRefusal(Status.INVALID, "the path is empty")
    if operation.path_flags & IN_XATTRS:
        if not path:
            raise StoreRefusal(Status.XATTR_INVALID, "the path names no attribute")
        name = str(path[0])
        if name.startswith("$") and name != "$document":
            raise StoreRefusal(Status.SUBDOC_XATTR_UNKNOWN_VATTR, f"there is no {name}")
        text = xattrs
    else:
        text = parts.text()
    if command is C.SUBDOC_GET_COUNT:
        return str(jsonedit.count_entries(text, path)).encode()
    value = jsonedit.look_up(text, path)
    return value.encode() if command is C.SUBDOC_GET else b""


def multi_value(results: list[tuple[Status, bytes]]) -> bytes:
    """The value of an answer to several lookups: status, length and value of each."""
    return b"".join(
        _RESULT.pack(status_number(status), len(value)) + value for status, value in results
    )


def status_number(status: Status) -> int:
    """The number that a value with several statuses in it has for one."""
    return _NUMBERS[status]


def check_order(paths: tuple[kv.SubdocPath, ...], allowed: frozenset[C]) -> None:
    """Refuses several paths that cannot stand together, or in this order."""
    if len(paths) > _MAX_PATHS:
        raise StoreRefusal(
            Status.SUBDOC_INVALID_COMBINATION, f"a command has up to {_MAX_PATHS} paths"
        )
    if any(path.command not in allowed for path in paths):
        raise StoreRefusal(
            Status.SUBDOC_INVALID_COMBINATION, "lookups and mutations cannot be mixed"
        )
    in_xattrs = [bool(path.path_flags & IN_XATTRS) for path in paths]
    if in_xattrs != sorted(in_xattrs, reverse=True):
        raise StoreRefusal(
            Status.SUBDOC_INVALID_XATTR_ORDER, "paths into attributes come before all others"
        )
