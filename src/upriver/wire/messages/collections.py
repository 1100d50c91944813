"""System events: collections and scopes that were created, changed or dropped."""

from __future__ import annotations

from dataclasses import dataclass

from .message import Request

__all__ = [
    "CollectionCreated",
    "CollectionDropped",
    "CollectionModified",
    "ScopeCreated",
    "ScopeDropped",
    "SystemEvent",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionCreated(Request):
    """A collection was created; with a higher seqno for a known id, it was flushed."""

    vbucket: int
    seqno: int
    name: str
    manifest_uid: int
    scope: int
    collection: int
    max_ttl: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionDropped(Request):
    vbucket: int
    seqno: int
    manifest_uid: int
    scope: int
    collection: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionModified(Request):
    """A collection has another time to live, or keeps its history from now on or no more.

    It is made of a system event in FlatBuffers (`flatbuffer_event_decoder`); it has no layout.
    """

    vbucket: int
    seqno: int
    name: str
    manifest_uid: int
    scope: int
    collection: int
    max_ttl: int | None = None
    history: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeCreated(Request):
    vbucket: int
    seqno: int
    name: str
    manifest_uid: int
    scope: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeDropped(Request):
    vbucket: int
    seqno: int
    manifest_uid: int
    scope: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemEvent(Request):
    """A system event that is not decoded: flatbuffers (version 2) and later versions."""

    vbucket: int
    seqno: int
    event: int
    version: int
    key: bytes = b""
    value: bytes = b""
