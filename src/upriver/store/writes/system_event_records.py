"""System events in a vbucket: stored frames for created and dropped collections and scopes.

They are stored by seqno among the documents, so that a stream sends them in order. By key they
have a key of their own, so that the newest event of a collection replaces the one before.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

from ...errors import DecodeError, Status, StoreRefusal
from ...wire import canonical, stored_prepares
from ...wire import messages as m
from ...wire.dialects.dcp import Dcp
from ...wire.header import HEADER_SIZE, REQUEST, VBUCKET_AT
from ..manifest import ManifestEvent
from ..rocksdb_layout import (
    RecordKind,
    StoredRecord,
    event_key,
    prepared_path,
    record_of,
    vbucket_key,
)

_DIALECT: Final = Dcp(collections=True)
_HEAD = struct.Struct(
    ">"
    "B"  # magic
    "B"  # opcode
    "4x"  # key length, extras length, datatype
    "H"  # vbucket
    "I"  # total body length
    "I"  # opaque
)
_VBUCKET = struct.Struct(">H")
_SEQNO = struct.Struct(">Q")


def encode(event: ManifestEvent, vbucket: int, seqno: int) -> bytes:
    """Returns the stored frame of an event.

    Each event is stored once per vbucket, so only vbucket and seqno are packed into a template.
    """
    frame = bytearray(_template(event))
    _VBUCKET.pack_into(frame, VBUCKET_AT, vbucket)
    _SEQNO.pack_into(frame, HEADER_SIZE, seqno)
    return bytes(frame)


@lru_cache(maxsize=64)
def _template(event: ManifestEvent) -> bytes:
    return _DIALECT.encode(event.message)


def is_canonical(frame: bytes, vbucket: int) -> bool:
    """Whether a received frame has the stored form: valid opcode, length, vbucket and opaque."""
    if len(frame) < HEADER_SIZE + _SEQNO.size:
        return False
    magic, opcode, frame_vbucket, body, opaque = _HEAD.unpack_from(frame)
    return (
        magic == REQUEST
        and (opcode in canonical.STORED_OPCODES or stored_prepares.is_prepare(frame))
        and frame_vbucket == vbucket
        and body == len(frame) - HEADER_SIZE
        and opaque == 0
    )


def decode(frame: bytes) -> ManifestEvent:
    """Decodes the frame of an event, stored or replicated."""
    try:
        message = _DIALECT.decode(frame)
    except DecodeError as problem:
        raise StoreRefusal(Status.INVALID, str(problem)) from None
    if isinstance(
        message, m.CollectionCreated | m.CollectionDropped | m.ScopeCreated | m.ScopeDropped
    ):
        return ManifestEvent(message)
    raise StoreRefusal(Status.NOT_SUPPORTED, f"{message} is no event that can be stored")


def key_of(vbucket: int, event: ManifestEvent) -> bytes:
    """Returns the path of an event in the column family ``keys``."""
    if event.collection is not None:
        return event_key(vbucket, collection=event.collection)
    return event_key(vbucket, scope=event.scope)


def path_of(vbucket: int, frame: bytes) -> bytes:
    """Returns the path of any stored frame in the column family ``keys``."""
    if canonical.is_event(frame):
        return key_of(vbucket, decode(frame))
    path = vbucket_key(vbucket) + canonical.key_of(frame)
    return prepared_path(path) if stored_prepares.is_hidden(frame) else path


def record_for(frame: bytes) -> StoredRecord:
    """Returns the record of any stored frame, with vbucket counts of 0."""
    if canonical.is_event(frame):
        seqno, created = canonical.seqno_of(frame), int(decode(frame).created)
        return StoredRecord(seqno, 0, 0, created, 0, RecordKind.EVENT, 0, 0, 0, 0)
    if stored_prepares.is_prepare(frame):
        one = stored_prepares.parse_prepare(frame)
        return StoredRecord(
            one.seqno,
            one.rev,
            one.cas,
            one.flags,
            one.time,
            RecordKind.PREPARE,
            one.datatype,
            0,
            0,
            0,
        )
    if stored_prepares.is_abort(frame):
        given_up = stored_prepares.parse_abort(frame)
        return StoredRecord(given_up.seqno, 0, given_up.cas, 0, 0, RecordKind.ABORT, 0, 0, 0, 0)
    return record_of(frame)
