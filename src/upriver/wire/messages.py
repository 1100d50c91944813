"""The change stream as named values: what any draft of the protocol can say.

A message is a request or a response and holds names only; which number and which bytes it has is
its dialect's business. Not every dialect carries every message or every field: a dialect refuses
to encode what it has no place for. The key-value commands are in `kv`.
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

#: The vbucket of a message whose draft does not say it (002 identifies streams by request id
#: alone); no dialect with a vbucket field can encode it, so it cannot leak by accident.
VBUCKET_NOT_CARRIED: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Anything that can be sent. ``opaque`` is the drafts' "request id"."""

    opaque: int = 0
    frames: tuple[FrameInfo, ...] = ()

    @property
    def stream_id(self) -> int | None:
        """The id of the stream among several of one vbucket, if the message has one."""
        for info in self.frames:
            if isinstance(info, StreamId):
                return info.id
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Message):
    """A message that its sender started; in a change stream either side does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response(Message):
    """An answer. ``command`` is the request's name, or its bare number where it has none."""

    command: Command | int
    status: Status = Status.SUCCESS
    #: The number of a status that has no name; 0 otherwise.
    status_code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainResponse(Response):
    """A response without a layout of its own: refusals, acknowledgements, opaque payloads."""

    extras: bytes = b""
    key: bytes = b""
    value: bytes = b""
    cas: int = 0
    datatype: Datatype = Datatype.RAW
    #: Answers a command without a name that a server sent.
    from_server: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownCommand(Request):
    """A request whose opcode has no name in its dialect; a server answers UNKNOWN_COMMAND."""

    opcode: int
    vbucket: int = 0
    extras: bytes = b""
    key: bytes = b""
    value: bytes = b""
    cas: int = 0
    datatype: Datatype = Datatype.RAW
    #: Sent by a server to a client that negotiated it.
    from_server: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BareHeader(Request):
    """A header with nothing behind it, as the drafts print one to introduce their layout.

    Never part of a conversation: strict decoding refuses it.
    """

    command: Command
    vbucket: int = 0


# ---- connections and streams -------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Open(Request):
    """Names a connection and says what it is for."""

    name: str
    flags: OpenFlag = OpenFlag.CONSUMER
    sequence: int = 0
    #: A JSON object, with `Datatype.JSON`; real servers accept only ``consumer_name`` in it.
    value: bytes = b""
    datatype: Datatype = Datatype.RAW


@dataclass(frozen=True, slots=True, kw_only=True)
class AddStream(Request):
    """Tells a consumer to ask its producer for a stream."""

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
    """Asks for the changes of a vbucket after ``start``, which is the last seqno seen.

    Drafts before 004 have ``high_seqno`` and (002, 000) ``group`` in place of the snapshot;
    where a snapshot is carried and none is given, it is ``start``.
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
    #: A JSON object that chooses collections; only with collections negotiated.
    filter: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAccepted(Response):
    """The stream will flow. 002 and 000 send no failover log with it."""

    command: Command | int = Command.STREAM_REQUEST
    failover_log: tuple[FailoverEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRollback(Response):
    """The reader must forget everything above ``seqno`` and ask again."""

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
    """The edge of a snapshot in 002 and 000, which does not say its seqnos."""

    vbucket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotEnd(Request):
    """The other edge of a snapshot in 002 and 000."""

    vbucket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotMarker(Request):
    """Begins a snapshot. Draft 001 carries none of the seqnos; the last four are for replicas."""

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
    """An edge of a snapshot whose items come in any order."""

    vbucket: int
    flags: OsoFlag


@dataclass(frozen=True, slots=True, kw_only=True)
class SeqnoAdvanced(Request):
    """The seqnos up to here were filtered out."""

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
    #: Draft 001 only: bytes behind the value.
    extended_meta: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion(Request):
    """A document was deleted; the value can hold nothing but xattrs.

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
    #: Draft 001 only: bytes behind the key.
    extended_meta: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiration(Deletion):
    """A document was deleted because its time had come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare(Request):
    """A write that waits for enough copies."""

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
    """A replica has prepared everything up to here."""

    vbucket: int
    prepared_seqno: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit(Request):
    """A prepared write became real."""

    vbucket: int
    prepared_seqno: int
    commit_seqno: int
    key: bytes
    collection: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort(Request):
    """A prepared write was given up."""

    vbucket: int
    prepared_seqno: int
    abort_seqno: int
    key: bytes
    collection: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushStream(Request):
    """Every document of the vbucket is gone."""

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
    """Documents that were in the sender's memory."""

    vbucket: int
    items: tuple[CachedItem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheTransferEnd(Request):
    vbucket: int


# ---- collections -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionCreated(Request):
    """A collection begins, or begins anew: with a higher seqno for a known id it was flushed."""

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
    """A system event in a form without names here: flatbuffers (version 2) and later ones."""

    vbucket: int
    seqno: int
    event: int
    version: int
    key: bytes = b""
    value: bytes = b""


# ---- the conversation itself -------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SetStreamState(Request):
    """The state that the consumer's copy of the vbucket takes; part of a takeover."""

    vbucket: int
    state: VBucketState


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamNoop(Request):
    """Asks the other side whether it is alive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferAck(Request):
    """Gives the producer room for this many more bytes."""

    size: int
    vbucket: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Control(Request):
    """Sets one property of the connection."""

    key: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestError(Request):
    """Draft 002: a request that could not be served."""

    reason: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseError(Request):
    """Draft 002: a response that could not be read."""

    reason: int = 0
    text: str = ""
