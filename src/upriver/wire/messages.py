"""The messages of the change stream, of all drafts, as dataclasses.

A message is a request or a response and has no opcodes or layouts: those belong to the dialects.
Not every dialect has every message or field; encoding one that it lacks raises `EncodeError`. The
key-value commands are in `kv`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..errors import Status
from ..model import Datatype, FailoverEntry, StreamEndReason, VBucketState
from .frameinfo import FrameInfo, StreamId
from .names import Command, DurabilityLevel, MarkerFlag, OpenFlag, OsoFlag, StreamFlag

__all__ = [
    "VBUCKET_NOT_CARRIED",
    "Abort",
    "AddStream",
    "AddStreamResponse",
    "BareHeader",
    "BufferAck",
    "CacheTransfer",
    "CacheTransferEnd",
    "CachedItem",
    "CloseStream",
    "CollectionCreated",
    "CollectionDropped",
    "CollectionModified",
    "Commit",
    "Control",
    "Deletion",
    "Expiration",
    "FailoverLogRequest",
    "FailoverLogResponse",
    "FlushStream",
    "Message",
    "Mutation",
    "Open",
    "OsoSnapshot",
    "PlainResponse",
    "Prepare",
    "Request",
    "RequestError",
    "Response",
    "ResponseError",
    "ScopeCreated",
    "ScopeDropped",
    "SeqnoAcknowledged",
    "SeqnoAdvanced",
    "SetStreamState",
    "SnapshotEnd",
    "SnapshotMarker",
    "SnapshotStart",
    "StreamAccepted",
    "StreamEnd",
    "StreamNoop",
    "StreamRequest",
    "StreamRollback",
    "StreamStart",
    "SystemEvent",
    "UnknownCommand",
]

#: The vbucket of a message whose draft has no vbucket field (002 identifies streams by request id
#: alone). No dialect with such a field can encode it, so it is never sent by accident.
VBUCKET_NOT_CARRIED: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Base class of all messages. ``opaque`` is the drafts' "request id"."""

    opaque: int = 0
    frames: tuple[FrameInfo, ...] = ()

    @property
    def stream_id(self) -> int | None:
        """The stream id, if any, which identifies one of several streams of a vbucket."""
        for info in self.frames:
            if isinstance(info, StreamId):
                return info.id
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Message):
    """A message that is not a response; in a change stream both sides send requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response(Message):
    """The response to a request. ``command`` is the request's name, or its opcode if unknown."""

    command: Command | int
    status: Status = Status.SUCCESS
    #: The number of an unrecognised status; 0 otherwise.
    status_code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainResponse(Response):
    """A response without a layout of its own: errors, acknowledgements, raw payloads."""

    extras: bytes = b""
    key: bytes = b""
    value: bytes = b""
    cas: int = 0
    datatype: Datatype = Datatype.RAW
    #: Whether it answers an unknown request from a server.
    from_server: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownCommand(Request):
    """A request with an opcode that its dialect does not know; answered with UNKNOWN_COMMAND."""

    opcode: int
    vbucket: int = 0
    extras: bytes = b""
    key: bytes = b""
    value: bytes = b""
    cas: int = 0
    datatype: Datatype = Datatype.RAW
    #: Whether it was sent by a server to a client.
    from_server: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BareHeader(Request):
    """A header without a body, as the drafts print one to explain its layout.

    It is never sent on a connection: strict decoding refuses it.
    """

    command: Command
    vbucket: int = 0


# ---- connections and streams -------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Open(Request):
    """Opens a change-stream connection: its name and its role."""

    name: str
    flags: OpenFlag = OpenFlag.CONSUMER
    sequence: int = 0
    #: A JSON object, with `Datatype.JSON`; real servers accept only ``consumer_name`` in it.
    value: bytes = b""
    datatype: Datatype = Datatype.RAW


@dataclass(frozen=True, slots=True, kw_only=True)
class AddStream(Request):
    """Tells a consumer to request a stream from its producer."""

    vbucket: int
    flags: StreamFlag = StreamFlag.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class AddStreamResponse(Response):
    command: Command | int = Command.ADD_STREAM
    stream_opaque: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseStream(Request):
    vbucket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRequest(Request):
    """Requests the changes of a vbucket after ``start``, the last seqno that the consumer has.

    Drafts before 004 have ``high_seqno`` and (002, 000) ``group`` instead of the snapshot, whose
    default is ``start``.
    """

    vbucket: int
    start: int
    end: int
    vbuuid: int = 0
    snapshot_start: int | None = None
    snapshot_end: int | None = None
    high_seqno: int | None = None
    group: str = ""
    flags: StreamFlag = StreamFlag.NONE
    #: A JSON object that selects collections; only with collections negotiated.
    filter: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAccepted(Response):
    """Accepts a stream request. In 002 and 000 it has no failover log."""

    command: Command | int = Command.STREAM_REQUEST
    failover_log: tuple[FailoverEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRollback(Response):
    """The consumer must discard everything above ``seqno`` and send a new stream request."""

    command: Command | int = Command.STREAM_REQUEST
    status: Status = Status.ROLLBACK
    seqno: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverLogRequest(Request):
    vbucket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverLogResponse(Response):
    """The branches of a vbucket, newest first."""

    command: Command | int = Command.FAILOVER_LOG
    failover_log: tuple[FailoverEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStart(Request):
    """The first message of a stream in 002 and 000."""

    vbucket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEnd(Request):
    """The last message of a stream."""

    vbucket: int
    reason: StreamEndReason = StreamEndReason.OK


# ---- snapshots ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotStart(Request):
    """The start of a snapshot in 002 and 000, without its seqnos."""

    vbucket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotEnd(Request):
    """The end of a snapshot in 002 and 000."""

    vbucket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotMarker(Request):
    """Begins a snapshot. Draft 001 has none of the seqnos; the last four are for replicas."""

    vbucket: int
    start: int | None = None
    end: int | None = None
    flags: MarkerFlag = MarkerFlag.NONE
    max_visible_seqno: int | None = None
    high_completed_seqno: int | None = None
    purge_seqno: int | None = None
    high_prepared_seqno: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OsoSnapshot(Request):
    """The start or end of an out-of-seqno-order (OSO) snapshot."""

    vbucket: int
    flags: OsoFlag


@dataclass(frozen=True, slots=True, kw_only=True)
class SeqnoAdvanced(Request):
    """The changes up to this seqno were removed by the stream's filter."""

    vbucket: int
    seqno: int


# ---- changes -----------------------------------------------------------------------------


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


# ---- collections -------------------------------------------------------------------------


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

    It is made of a system event in FlatBuffers (`system_events`), and has no layout of its own.
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


# ---- connection and flow control ---------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SetStreamState(Request):
    """Sets the state of the consumer's copy of the vbucket; part of a takeover."""

    vbucket: int
    state: VBucketState


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamNoop(Request):
    """A keepalive that the peer must answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferAck(Request):
    """Acknowledges processed bytes, which opens the producer's flow-control window by as many."""

    size: int
    vbucket: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Control(Request):
    """Sets one property of the connection."""

    key: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestError(Request):
    """Draft 002: the error response to a request."""

    reason: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseError(Request):
    """Draft 002: a response could not be decoded."""

    reason: int = 0
    text: str = ""
