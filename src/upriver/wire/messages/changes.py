"""Messages about changes: mutations, deletions, durable writes, flushes."""

from __future__ import annotations

from dataclasses import dataclass

from ...model import Datatype
from ..protocol_enums import DurabilityLevel
from .message import Request

__all__ = [
    "Abort",
    "CacheTransfer",
    "CacheTransferEnd",
    "CachedItem",
    "Commit",
    "Deletion",
    "Expiration",
    "FlushStream",
    "Mutation",
    "Prepare",
    "SeqnoAcknowledged",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation(Request):
    """A document was written. ``collection`` is None where collections are not negotiated."""

    vbucket: int
    seqno: int
    key: bytes
    value: bytes = b""
    rev: int = 0
    cas: int = 0
    datatype: Datatype = Datatype.RAW
    flags: int = 0
    expiry: int = 0
    lock_time: int = 0
    nru: int = 0
    collection: int | None = None
    #: Draft 001 only: bytes after the value.
    extended_meta: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion(Request):
    """A document was deleted; the value may hold only xattrs.

    ``flags``, ``expiry`` and ``lock_time`` exist in 002 and 000 only.
    """

    vbucket: int
    seqno: int
    key: bytes
    value: bytes = b""
    rev: int = 0
    cas: int = 0
    datatype: Datatype = Datatype.RAW
    delete_time: int | None = None
    flags: int = 0
    expiry: int = 0
    lock_time: int = 0
    collection: int | None = None
    #: Draft 001 only: bytes after the key.
    extended_meta: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiration(Deletion):
    """A document was deleted because it expired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare(Request):
    """A prepared durable write, not yet committed."""

    vbucket: int
    seqno: int
    key: bytes
    cas: int
    level: DurabilityLevel
    value: bytes = b""
    rev: int = 0
    datatype: Datatype = Datatype.RAW
    flags: int = 0
    expiry: int = 0
    lock_time: int = 0
    nru: int = 0
    deleted: bool = False
    collection: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeqnoAcknowledged(Request):
    """A replica has prepared everything up to this seqno."""

    vbucket: int
    prepared_seqno: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit(Request):
    """A prepared write was committed."""

    vbucket: int
    prepared_seqno: int
    commit_seqno: int
    key: bytes
    collection: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort(Request):
    """A prepared write was aborted."""

    vbucket: int
    prepared_seqno: int
    abort_seqno: int
    key: bytes
    collection: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushStream(Request):
    """The vbucket was flushed: all of its documents were deleted."""

    vbucket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedItem:
    """One document of a cache transfer; its key includes the collection prefix."""

    seqno: int
    key: bytes
    value: bytes = b""
    rev: int = 0
    cas: int = 0
    flags: int = 0
    expiry: int = 0
    datatype: Datatype = Datatype.RAW
    cache_hint: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheTransfer(Request):
    """Documents from the sender's cache."""

    vbucket: int
    items: tuple[CachedItem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheTransferEnd(Request):
    vbucket: int
