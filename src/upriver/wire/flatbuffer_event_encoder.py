"""System events as FlatBuffers, which consumers of today's servers can ask for.

One table a buffer, little endian, each field at a multiple of its size as verifiers want it:

    0    u32  where the table begins
    4    vtable: u16 its size, u16 the table's size, u16 for each field where in the table it is
    ...  table: i32 how far before it the vtable begins, u64 fields, u32 fields, booleans
    ...  the name, where there is one: u32 length, bytes, a zero

The places of fields in the vtable are those of Couchbase's schema and never change. It knows no
streams.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, TypeAlias

from . import messages as m

StoredEvent: TypeAlias = m.CollectionCreated | m.CollectionDropped | m.ScopeCreated | m.ScopeDropped

#: The version of a system event whose value is a FlatBuffer.
_VERSION: Final = 2
_COLLECTION_CREATED, _COLLECTION_DROPPED, _SCOPE_CREATED, _SCOPE_DROPPED = 0, 1, 3, 4
_U16: Final = struct.Struct("<H")
_U32: Final = struct.Struct("<I")
_WIDE, _NARROW, _BOOL = 8, 4, 1


def flatbuffer_event(message: StoredEvent) -> m.SystemEvent:
    """The same event with a FlatBuffer for its value."""
    name = ""
    fields = [(_WIDE, message.manifest_uid), (_NARROW, message.scope)]
    if isinstance(message, m.ScopeCreated):
        event, name = _SCOPE_CREATED, message.name
    elif isinstance(message, m.ScopeDropped):
        event = _SCOPE_DROPPED
    elif isinstance(message, m.CollectionDropped):
        event = _COLLECTION_DROPPED
        fields += [(_NARROW, message.collection)]
    else:
        event, name = _COLLECTION_CREATED, message.name
        limited = message.max_ttl is not None
        fields += [(_NARROW, message.collection)]
        fields += [(_BOOL, int(limited)), (_NARROW, message.max_ttl or 0)]
    return m.SystemEvent(
        opaque=message.opaque,
        frames=message.frames,
        vbucket=message.vbucket,
        seqno=message.seqno,
        event=event,
        version=_VERSION,
        key=name.encode(),
        value=_table(fields, name.encode()),
    )


def _table(fields: Sequence[tuple[int, int]], name: bytes) -> bytes:
    """A buffer with one table: numbers by their size, and behind them a name unless it is empty."""
    kinds = [*fields, (_NARROW, 0)] if name else list(fields)  # the name's place is filled in below
    vtable_size = _U16.size * (2 + len(kinds))
    # four bytes before a multiple of eight: behind its first field, the widest ones are in place
    table = (_U32.size + vtable_size + 3) // 8 * 8 + 4
    places, at = [0] * len(kinds), _U32.size
    for size in (_WIDE, _NARROW, _BOOL):
        for index, (kind, _) in enumerate(kinds):
            if kind == size:
                places[index], at = at, at + size
    text = (table + at + 3) // 4 * 4
    data = bytearray(text)
    _U32.pack_into(data, 0, table)
    struct.pack_into(f"<HH{len(places)}H", data, _U32.size, vtable_size, at, *places)
    _U32.pack_into(data, table, table - _U32.size)
    for place, (size, number) in zip(places, kinds, strict=True):
        data[table + place : table + place + size] = number.to_bytes(size, "little")
    if not name:
        return bytes(data)
    _U32.pack_into(data, table + places[-1], text - table - places[-1])
    return bytes(data) + _U32.pack(len(name)) + name + b"\0"
