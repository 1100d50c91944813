"""The key-value commands as named values: what ordinary clients and tools say on the same port.

A quiet request (``quiet=True``) is answered only when the answer is interesting: errors for
writes, hits for reads. Documents are addressed by ``collection`` (None where collections are not
negotiated) and ``key``.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..model import Datatype, FailoverEntry, VBucketState
from .messages import Request, Response
from .names import Command, Feature, RequestedState

__all__ = [
    "Add",
    "AllSeqnosResponse",
    "Append",
    "ClustermapChanged",
    "CollectionIdResponse",
    "Compact",
    "CounterResponse",
    "Decrement",
    "Delete",
    "DeleteVBucket",
    "DeleteWithMeta",
    "DocumentRequest",
    "DocumentResponse",
    "FlushAll",
    "Get",
    "GetAllSeqnos",
    "GetAndTouch",
    "GetClusterConfig",
    "GetCollectionId",
    "GetErrorMap",
    "GetFailoverLog",
    "GetFailoverLogResponse",
    "GetLocked",
    "GetManifest",
    "GetMeta",
    "GetRandomKey",
    "GetReplica",
    "GetScopeId",
    "GetVBucket",
    "Hello",
    "HelloResponse",
    "Increment",
    "ListBuckets",
    "MetaResponse",
    "MutationResponse",
    "Noop",
    "Observe",
    "ObserveSeqno",
    "ObserveSeqnoResponse",
    "Prepend",
    "Quit",
    "Replace",
    "SaslAuth",
    "SaslListMechanisms",
    "SaslStep",
    "SelectBucket",
    "SeqnoPersistence",
    "Set",
    "SetClusterConfig",
    "SetManifest",
    "SetVBucket",
    "SetWithMeta",
    "StartPersistence",
    "Stat",
    "StatResponse",
    "StopPersistence",
    "StoreRequest",
    "SubdocMultiLookup",
    "SubdocMultiMutation",
    "SubdocOperation",
    "SubdocPath",
    "Touch",
    "Unlock",
    "VBucketResponse",
    "Verbosity",
    "Version",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentRequest(Request):
    """A request about one document."""

    key: bytes
    vbucket: int = 0
    collection: int | None = None


# ---- reading -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Get(DocumentRequest):
    quiet: bool = False
    #: Whether the answer repeats the key.
    with_key: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAndTouch(DocumentRequest):
    expiry: int
    quiet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GetReplica(DocumentRequest):
    """Reads from a replica vbucket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GetLocked(DocumentRequest):
    """Reads and locks; the server's own lock time if None."""

    lock_time: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetRandomKey(Request):
    collection: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentResponse(Response):
    """A document that was read; ``key`` only where it was asked for."""

    value: bytes = b""
    flags: int = 0
    cas: int = 0
    datatype: Datatype = Datatype.RAW
    key: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMeta(DocumentRequest):
    """Reads a document's metadata; version 2 includes the datatype."""

    version: int | None = None
    quiet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaResponse(Response):
    command: Command | int = Command.GET_META
    deleted: bool
    flags: int
    expiry: int
    rev: int
    cas: int = 0
    document_datatype: Datatype | None = None


# ---- writing -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRequest(DocumentRequest):
    value: bytes = b""
    flags: int = 0
    expiry: int = 0
    datatype: Datatype = Datatype.RAW
    quiet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Set(StoreRequest):
    #: Only over the version with this CAS; 0 for any.
    cas: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Replace(StoreRequest):
    cas: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Add(StoreRequest):
    """Writes a document that must not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Append(DocumentRequest):
    value: bytes = b""
    cas: int = 0
    datatype: Datatype = Datatype.RAW
    quiet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepend(Append):
    """As `Append`, before the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete(DocumentRequest):
    cas: int = 0
    quiet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Increment(DocumentRequest):
    """Counts a decimal document; an expiry of 2**32-1 says that it must exist."""

    delta: int = 1
    initial: int = 0
    expiry: int = 0
    quiet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decrement(Increment):
    """As `Increment`, downwards, never below 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Touch(DocumentRequest):
    expiry: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unlock(DocumentRequest):
    cas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MutationResponse(Response):
    """A write that succeeded; branch and seqno where mutation seqnos are negotiated."""

    cas: int = 0
    vbuuid: int | None = None
    seqno: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterResponse(MutationResponse):
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetWithMeta(DocumentRequest):
    """Writes a document with the revision and CAS it has elsewhere."""

    value: bytes = b""
    flags: int = 0
    expiry: int = 0
    rev: int
    new_cas: int
    cas: int = 0
    datatype: Datatype = Datatype.RAW
    options: int | None = None
    #: Bytes behind the value, with their length in the extras.
    extended_meta: bytes | None = None
    add_only: bool = False
    quiet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteWithMeta(DocumentRequest):
    value: bytes = b""
    flags: int = 0
    delete_time: int = 0
    rev: int
    new_cas: int
    cas: int = 0
    datatype: Datatype = Datatype.RAW
    options: int | None = None
    extended_meta: bytes | None = None
    quiet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushAll(Request):
    """Deletes every document of the bucket, after ``delay`` if one is given."""

    delay: int | None = None
    quiet: bool = False


# ---- parts of documents ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SubdocOperation(DocumentRequest):
    """One operation on one path of a document."""

    command: Command
    path: bytes = b""
    value: bytes = b""
    path_flags: int = 0
    expiry: int | None = None
    doc_flags: int | None = None
    cas: int = 0
    datatype: Datatype = Datatype.RAW


@dataclass(frozen=True, slots=True, kw_only=True)
class SubdocPath:
    """One operation of several; lookups have no value."""

    command: Command
    path: bytes = b""
    value: bytes = b""
    path_flags: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SubdocMultiLookup(DocumentRequest):
    paths: tuple[SubdocPath, ...]
    doc_flags: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubdocMultiMutation(DocumentRequest):
    paths: tuple[SubdocPath, ...]
    expiry: int | None = None
    doc_flags: int | None = None
    cas: int = 0


# ---- the connection ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Quit(Request):
    quiet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Noop(Request):
    """Is answered, and nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version(Request):
    """Asks for the server's version as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verbosity(Request):
    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat(Request):
    """Asks for a group of statistics; the answer is a packet for each and an empty one."""

    group: str = ""
    value: bytes = b""
    datatype: Datatype = Datatype.RAW


@dataclass(frozen=True, slots=True, kw_only=True)
class StatResponse(Response):
    """One statistic; the last of an answer has neither key nor value."""

    command: Command | int = Command.STAT
    key: str = ""
    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello(Request):
    """Offers features; a number stands for one without a name here."""

    agent: str = ""
    features: tuple[Feature | int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HelloResponse(Response):
    command: Command | int = Command.HELLO
    features: tuple[Feature | int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslListMechanisms(Request):
    """Asks for the mechanisms, answered as text with spaces between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslAuth(Request):
    mechanism: str
    payload: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslStep(Request):
    mechanism: str
    payload: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListBuckets(Request):
    """Asks for the names of the buckets, answered as text with spaces between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectBucket(Request):
    bucket: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetClusterConfig(Request):
    """Asks for the cluster map, or for a newer one than ``(epoch, revision)``."""

    epoch: int | None = None
    revision: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetClusterConfig(Request):
    """Gives a node the map of a bucket, or of the cluster where the bucket is empty."""

    bucket: str = ""
    epoch: int
    revision: int
    config: bytes
    datatype: Datatype = Datatype.RAW


@dataclass(frozen=True, slots=True, kw_only=True)
class ClustermapChanged(Request):
    """A server tells a client of a new map. Older servers give a revision without an epoch."""

    bucket: str = ""
    epoch: int | None = None
    revision: int = 0
    config: bytes = b""
    datatype: Datatype = Datatype.RAW


@dataclass(frozen=True, slots=True, kw_only=True)
class GetErrorMap(Request):
    version: int


# ---- vbuckets and collections ------------------------------------------------------------


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
    #: ``async=0`` asks to be answered only when it is gone.
    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllSeqnos(Request):
    """Asks for high seqnos of vbuckets in a state, or of one collection in them."""

    state: RequestedState | None = None
    #: Needs a state before it.
    collection: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllSeqnosResponse(Response):
    """``(vbucket, seqno)`` pairs, by vbucket."""

    command: Command | int = Command.GET_ALL_SEQNOS
    seqnos: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GetFailoverLog(Request):
    """The failover log of a vbucket, on a connection that is no change stream."""

    vbucket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GetFailoverLogResponse(Response):
    command: Command | int = Command.GET_FAILOVER_LOG
    failover_log: tuple[FailoverEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observe(Request):
    """Whether documents are persisted; vbucket, key pairs in the value."""

    keys: tuple[tuple[int, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveSeqno(Request):
    """How far a branch of a vbucket has come on this node."""

    vbucket: int
    vbuuid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveSeqnoResponse(Response):
    """The last two say where an old branch ended; they are there only after a failover."""

    command: Command | int = Command.OBSERVE_SEQNO
    vbucket: int
    vbuuid: int
    persisted_seqno: int
    current_seqno: int
    old_vbuuid: int | None = None
    old_seqno: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeqnoPersistence(Request):
    """Is answered when this seqno is on disk."""

    vbucket: int
    seqno: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StopPersistence(Request):
    """For tests: writes stay in memory until `StartPersistence`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPersistence(Request):
    """For tests: ends `StopPersistence`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compact(Request):
    """Compacts a vbucket: tombstones up to either bound go."""

    vbucket: int
    purge_before_time: int = 0
    purge_before_seqno: int = 0
    drop_deletes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SetManifest(Request):
    """Gives a bucket its scopes and collections, as JSON."""

    manifest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GetManifest(Request):
    """Asks for the scopes and collections, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GetCollectionId(Request):
    """Asks for a collection by ``scope.collection``; real servers accept it as key too."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetScopeId(Request):
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionIdResponse(Response):
    """The id of a collection or a scope, and the manifest that says so."""

    manifest_uid: int
    id: int
