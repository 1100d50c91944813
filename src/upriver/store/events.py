"""System events in a vbucket: stored frames that say that a collection came or went.

They lie among the documents by seqno, so that a stream meets them in order, and under a key of
their own by key, so that the newest event of a collection replaces the one before.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

from ..errors import DecodeError, Status, StoreRefusal
from ..wire import messages as m
from ..wire.dialects.dcp import Dcp
from ..wire.header import REQUEST
from .layout import Kind, Record, event_key, frame_key, frame_seqno, record_of, vbucket_key
from .manifest import Event

__all__ = ["decode", "encode", "is_canonical", "is_event", "key_of", "path_of", "record_for"]

_DIALECT: Final = Dcp(collections=True)
#: The canonical opcode of a system event; every other stored frame is a document's.
_OPCODE: Final = 0x5F
#: Mutations, deletions, expirations and events.
_STORED: Final = frozenset({0x57, 0x58, 0x59, _OPCODE})
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
_VBUCKET_AT: Final = 6
_SEQNO = struct.Struct(">Q")
_SEQNO_AT: Final = 24


def encode(event: Event, vbucket: int, seqno: int) -> bytes:
    """The stored frame of an event. One is written for every vbucket, so only two fields are."""
    frame = bytearray(_template(event))
    _VBUCKET.pack_into(frame, _VBUCKET_AT, vbucket)
    _SEQNO.pack_into(frame, _SEQNO_AT, seqno)
    return bytes(frame)


@lru_cache(maxsize=64)
def _template(event: Event) -> bytes:
    return _DIALECT.encode(event.message)


def is_event(frame: bytes) -> bool:
    return frame[1] == _OPCODE


def is_canonical(frame: bytes, vbucket: int) -> bool:
    """Whether a frame from elsewhere has the stored form: its length, vbucket and opaque fit."""
    if len(frame) < _SEQNO_AT + _SEQNO.size:
        return False
    magic, opcode, frame_vbucket, body, opaque = _HEAD.unpack_from(frame)
    return (
        magic == REQUEST
        and opcode in _STORED
        and frame_vbucket == vbucket
        and body == len(frame) - _SEQNO_AT
        and opaque == 0
    )


def decode(frame: bytes) -> Event:
    """Reads an event's frame, stored or replicated."""
    try:
        message = _DIALECT.decode(frame)
    except DecodeError as problem:
        raise StoreRefusal(Status.INVALID, str(problem)) from None
    if isinstance(
        message, m.CollectionCreated | m.CollectionDropped | m.ScopeCreated | m.ScopeDropped
    ):
        return Event(message)
    raise StoreRefusal(Status.NOT_SUPPORTED, f"{message} is no event that can be stored")


def key_of(vbucket: int, event: Event) -> bytes:
    """Where an event lies by key."""
    if event.collection is not None:
        return event_key(vbucket, collection=event.collection)
    return event_key(vbucket, scope=event.scope)


def path_of(vbucket: int, frame: bytes) -> bytes:
    """Where any stored frame lies by key."""
    if is_event(frame):
        return key_of(vbucket, decode(frame))
    return vbucket_key(vbucket) + frame_key(frame)


def record_for(frame: bytes) -> Record:
    """The record of any stored frame, without its vbucket's counts."""
    if is_event(frame):
        return Record(
            frame_seqno(frame), 0, 0, int(decode(frame).created), 0, Kind.EVENT, 0, 0, 0, 0
        )
    return record_of(frame)
