"""Messages about vbuckets, their seqnos and persistence, and about collections."""

from __future__ import annotations

from dataclasses import dataclass

from ...model import Datatype, FailoverEntry, VBucketState
from ..messages.message import Request, Response
from ..protocol_enums import Command, RequestedState

__all__ = [
    "AllSeqnosResponse",
    "CollectionIdResponse",
    "Compact",
    "DeleteVBucket",
    "GetAllSeqnos",
    "GetCollectionId",
    "GetFailoverLog",
    "GetFailoverLogResponse",
    "GetManifest",
    "GetScopeId",
    "GetVBucket",
    "Observe",
    "ObserveSeqno",
    "ObserveSeqnoResponse",
    "SeqnoPersistence",
    "SetManifest",
    "SetVBucket",
    "StartPersistence",
    "StopPersistence",
    "VBucketResponse",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetVBucket(Request):
    vbucket: int
    state: VBucketState
    #: JSON properties of the vbucket, if any.
    value: bytes = b""
    datatype: Datatype = Datatype.RAW


@dataclass(frozen=True, slots=True, kw_only=True)
class GetVBucket(Request):
    vbucket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VBucketResponse(Response):
    command: Command | int = Command.GET_VBUCKET
    state: VBucketState


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteVBucket(Request):
    vbucket: int
    #: ``async=0`` delays the response until the vbucket is deleted.
    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllSeqnos(Request):
    """Requests the high seqnos of vbuckets in a state, or of one collection in them."""

    state: RequestedState | None = None
    #: Only together with a state.
    collection: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllSeqnosResponse(Response):
    """``(vbucket, seqno)`` pairs, by vbucket."""

    command: Command | int = Command.GET_ALL_SEQNOS
    seqnos: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GetFailoverLog(Request):
    """Requests the failover log of a vbucket on a key-value connection."""

    vbucket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GetFailoverLogResponse(Response):
    command: Command | int = Command.GET_FAILOVER_LOG
    failover_log: tuple[FailoverEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observe(Request):
    """Requests whether documents are persisted; the value holds (vbucket, key) pairs."""

    keys: tuple[tuple[int, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveSeqno(Request):
    """Requests the persisted and current seqnos of a vbucket's branch on this node."""

    vbucket: int
    vbuuid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveSeqnoResponse(Response):
    """The seqnos of a branch; the last two fields say where an old branch ended in a failover."""

    command: Command | int = Command.OBSERVE_SEQNO
    vbucket: int
    vbuuid: int
    persisted_seqno: int
    current_seqno: int
    old_vbuuid: int | None = None
    old_seqno: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeqnoPersistence(Request):
    """Is answered when this seqno is persisted."""

    vbucket: int
    seqno: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StopPersistence(Request):
    """For tests: stops persisting writes until `StartPersistence`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPersistence(Request):
    """For tests: ends `StopPersistence`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compact(Request):
    """Compacts a vbucket: purges tombstones up to a time or a seqno."""

    vbucket: int
    purge_before_time: int = 0
    purge_before_seqno: int = 0
    drop_deletes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SetManifest(Request):
    """Sets the scopes and collections of a bucket, as JSON."""

    manifest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GetManifest(Request):
    """Requests the scopes and collections, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GetCollectionId(Request):
    """Requests the id of ``scope.collection``; real servers accept it as key too."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetScopeId(Request):
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionIdResponse(Response):
    """The id of a collection or a scope, and the uid of the manifest."""

    manifest_uid: int
    id: int
