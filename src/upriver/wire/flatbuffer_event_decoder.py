"""System events in FlatBuffers: collections and scopes as releases from 7.2 on send them.

A FlatBuffer is read from its root, by little-endian offsets that the sender chose:

    0        u32 where the table begins
    table    i32 how far before it its vtable begins, then the fields
    vtable   u16 its own size, u16 the table's size, u16 per field: where it is in the table, or 0
    string   the field is a u32 offset from itself to a u32 length and the bytes

Tables of later releases have more fields, which are passed over; fields that are missing have their
default. Every offset is checked against the bytes that are there, so that no value can make the
reader look elsewhere, and nothing is followed twice. It knows no streams.
"""

from __future__ import annotations

import struct
from typing import Any, Final, TypeAlias

from . import messages as m

#: The version of a system event whose value is a FlatBuffer.
FLATBUFFERS: Final = 2

NamedEvent: TypeAlias = (
    m.CollectionCreated
    | m.CollectionDropped
    | m.CollectionModified
    | m.ScopeCreated
    | m.ScopeDropped
)

_CREATED, _DROPPED, _SCOPE_CREATED, _SCOPE_DROPPED, _MODIFIED = 0, 1, 3, 4, 5
#: The places of fields in the tables of events, which are never changed.
_UID, _SCOPE, _COLLECTION = 0, 1, 2
_TTL_VALID, _MAX_TTL, _NAME, _HISTORY = 3, 4, 5, 6
_SCOPE_NAME: Final = 2

_U16: Final = struct.Struct("<H")
_U32: Final = struct.Struct("<I")
_I32: Final = struct.Struct("<i")
_U64: Final = struct.Struct("<Q")
_BOOL: Final = struct.Struct("<B")
#: Names have up to 251 bytes; a longer one is none.
_MAX_NAME: Final = 251


class _Table:
    """The table at the root of a FlatBuffer. ValueError if it does not lie within its bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = self._read(_U32, 0, "the root")
        self._vtable = self._at - self._read(_I32, self._at, "the offset of the vtable")
        self._vtable_size = self._read(_U16, self._vtable, "the size of the vtable")
        self._read(_U16, self._vtable + _U16.size, "the size of the table")
        if self._vtable_size < 2 * _U16.size:
            raise ValueError(f"the vtable has only {self._vtable_size} bytes")

    def number(self, field: int, kind: struct.Struct) -> int:
        place = self._place(field)
        return 0 if place is None else self._read(kind, place, f"field {field}")

    def text(self, field: int) -> str:
        place = self._place(field)
        if place is None:
            return ""
        start = place + self._read(_U32, place, f"field {field}")
        size = self._read(_U32, start, f"the length of field {field}")
        start += _U32.size
        if size > _MAX_NAME or start + size > len(self._data):
            raise ValueError(f"field {field} is a name of {size} bytes")
        return self._data[start : start + size].decode()  # a UnicodeDecodeError is a ValueError

    def _place(self, field: int) -> int | None:
        """Where a field is; None if the table does not have it."""
        entry = 2 * _U16.size + _U16.size * field
        if entry + _U16.size > self._vtable_size:
            return None
        offset = self._read(_U16, self._vtable + entry, f"the place of field {field}")
        return self._at + offset if offset else None

    def _read(self, kind: struct.Struct, at: int, what: str) -> int:
        if not 0 <= at <= len(self._data) - kind.size:
            raise ValueError(f"{what} would be at byte {at} of {len(self._data)}")
        number: int = kind.unpack_from(self._data, at)[0]
        return number


def named_event(event: m.SystemEvent) -> NamedEvent | m.SystemEvent:
    """What a system event with a FlatBuffer says; itself if it is of another version or kind.

    ValueError if its value is no such FlatBuffer.
    """
    if event.version != FLATBUFFERS or event.event not in _READ:
        return event
    table = _Table(event.value)
    where: dict[str, Any] = {
        "vbucket": event.vbucket,
        "seqno": event.seqno,
        "opaque": event.opaque,
        "manifest_uid": table.number(_UID, _U64),
        "scope": table.number(_SCOPE, _U32),
    }
    if event.event == _SCOPE_CREATED:
        return m.ScopeCreated(**where, name=_name(table.text(_SCOPE_NAME)))
    if event.event == _SCOPE_DROPPED:
        return m.ScopeDropped(**where)
    where["collection"] = table.number(_COLLECTION, _U32)
    if event.event == _DROPPED:
        return m.CollectionDropped(**where)
    where["name"] = _name(table.text(_NAME))
    where["max_ttl"] = table.number(_MAX_TTL, _U32) if table.number(_TTL_VALID, _BOOL) else None
    if event.event == _CREATED:
        return m.CollectionCreated(**where)
    return m.CollectionModified(**where, history=bool(table.number(_HISTORY, _BOOL)))


_READ: Final = frozenset({_CREATED, _DROPPED, _SCOPE_CREATED, _SCOPE_DROPPED, _MODIFIED})


def _name(text: str) -> str:
    if not text:
        raise ValueError("it has no name")
    return text
