"""Messages about documents: reading, writing, scans and sub-documents."""

from __future__ import annotations

from dataclasses import dataclass

from ...model import Datatype
from ..messages.message import Request, Response
from ..protocol_enums import Command

__all__ = [
    "Add",
    "Append",
    "CounterResponse",
    "Decrement",
    "Delete",
    "DeleteWithMeta",
    "DocumentRequest",
    "DocumentResponse",
    "FlushAll",
    "Get",
    "GetAndTouch",
    "GetLocked",
    "GetMeta",
    "GetRandomKey",
    "GetReplica",
    "Increment",
    "MetaResponse",
    "MutationResponse",
    "Prepend",
    "RangeScanCancel",
    "RangeScanContinue",
    "RangeScanCreate",
    "Replace",
    "Set",
    "SetWithMeta",
    "StoreRequest",
    "SubdocMultiLookup",
    "SubdocMultiMutation",
    "SubdocOperation",
    "SubdocPath",
    "Touch",
    "Unlock",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentRequest(Request):
    """A request about one document."""

    key: bytes
    vbucket: int = 0
    collection: int | None = None


# ---- reading ----------------------------------------------------------------------------


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


# ---- writing ----------------------------------------------------------------------------


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


# ---- scans ------------------------------------------------------------------------------


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


# ---- parts of documents -----------------------------------------------------------------


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
