"""The messages of the memcached key-value commands, as dataclasses.

A quiet request (``quiet=True``) is answered only with an error (writes) or a hit (reads). Documents
are addressed by ``collection`` (None if collections are not negotiated) and ``key``.
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
    "RangeScanCancel",
    "RangeScanContinue",
    "RangeScanCreate",
    "Replace",
    "SaslAuth",
    "SaslListMechanisms",
    "SaslStep",
    "SelectBucket",
    "SeqnoPersistence",
    "Set",
    "SetClusterConfig",
    "SetCtrlToken",
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
    #: Whether the response repeats the key.
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
    """Reads and locks; ``lock_time`` None is the server's default."""

    lock_time: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetRandomKey(Request):
    collection: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentResponse(Response):
    """A document that was read; ``key`` only if the request asked for it."""

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
    #: Replaces only the version with this CAS; 0 for any.
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
    """Increments a decimal counter; with an expiry of 2**32-1 the document must exist."""

    delta: int = 1
    initial: int = 0
    expiry: int = 0
    quiet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decrement(Increment):
    """Decrements a decimal counter, never below 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Touch(DocumentRequest):
    expiry: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unlock(DocumentRequest):
    cas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MutationResponse(Response):
    """A successful write; vbuuid and seqno only if mutation seqnos are negotiated."""

    cas: int = 0
    vbuuid: int | None = None
    seqno: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterResponse(MutationResponse):
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetWithMeta(DocumentRequest):
    """Writes a document with the given revision and CAS, as cross-datacenter replication does."""

    value: bytes = b""
    flags: int = 0
    expiry: int = 0
    rev: int
    new_cas: int
    cas: int = 0
    datatype: Datatype = Datatype.RAW
    options: int | None = None
    #: Bytes after the value, with their length in the extras.
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


# ---- scans -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeScanCreate(Request):
    """Opens a scan over the documents of a vbucket; ``value`` is JSON that says which."""

    vbucket: int
    value: bytes = b""
    datatype: Datatype = Datatype.JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeScanContinue(Request):
    """Asks for the next documents of a scan, whose id has 128 bits; a limit of 0 is none."""

    vbucket: int
    scan_high: int
    scan_low: int
    item_limit: int = 0
    #: In milliseconds.
    time_limit: int = 0
    byte_limit: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeScanCancel(Request):
    """Ends a scan."""

    vbucket: int
    scan_high: int
    scan_low: int


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
    """One operation of a multi-path request; lookups have no value."""

    command: Command
    path: bytes = b""
    value: bytes = b""
    path_flags: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SubdocMultiLookup(DocumentRequest):
    paths: tuple[SubdocPath, ...]
    doc_flags: int | None = None
    cas: int = 0


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
    """Does nothing; is answered with SUCCESS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version(Request):
    """Asks for the server's version as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verbosity(Request):
    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat(Request):
    """Requests a group of statistics, answered by a packet for each and an empty one at the end."""

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
    """Offers features; a number is a feature that is unknown here."""

    agent: str = ""
    features: tuple[Feature | int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HelloResponse(Response):
    command: Command | int = Command.HELLO
    features: tuple[Feature | int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslListMechanisms(Request):
    """Requests the SASL mechanisms, answered as names separated by spaces."""


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
    """Requests the names of the buckets, answered as names separated by spaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectBucket(Request):
    bucket: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetClusterConfig(Request):
    """Requests the cluster map, or only one newer than ``(epoch, revision)``."""

    epoch: int | None = None
    revision: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetClusterConfig(Request):
    """Sets the map of a bucket on a node, or the map of the cluster if ``bucket`` is empty."""

    bucket: str = ""
    epoch: int
    revision: int
    config: bytes
    datatype: Datatype = Datatype.RAW


@dataclass(frozen=True, slots=True, kw_only=True)
class ClustermapChanged(Request):
    """Notifies a client of a new map. Older servers send a revision without an epoch."""

    bucket: str = ""
    epoch: int | None = None
    revision: int = 0
    config: bytes = b""
    datatype: Datatype = Datatype.RAW


@dataclass(frozen=True, slots=True, kw_only=True)
class SetCtrlToken(Request):
    """Sets a cluster manager's session token; commands with a lower token are refused afterwards.

    ``value`` is JSON that only Upriver's nodes understand: manager and node authenticate each other
    with it, and it renews the node's lease.
    """

    token: int
    value: bytes = b""
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
    """The seqnos of a branch; the last two fields tell where an old branch ended in a failover."""

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
