"""Messages that open, control and end connections, streams and snapshots."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import Status
from ...model import Datatype, FailoverEntry, StreamEndReason, VBucketState
from ..protocol_enums import Command, MarkerFlag, OpenFlag, OsoFlag, StreamFlag
from .message import Request, Response

__all__ = [
    "AddStream",
    "AddStreamResponse",
    "BufferAck",
    "CloseStream",
    "Control",
    "FailoverLogRequest",
    "FailoverLogResponse",
    "Open",
    "OsoSnapshot",
    "RequestError",
    "ResponseError",
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
]


# ---- connections and streams ------------------------------------------------------------


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
    """Asks a consumer to request a stream from its producer."""

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


# ---- snapshots --------------------------------------------------------------------------


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


# ---- connection and flow control --------------------------------------------------------


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
