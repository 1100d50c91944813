"""The dialect of today's servers: DCP, with the stream request of draft 004.

Opcodes 0x50 to 0x67, snapshot markers 1, 2.0 and 2.2, deletions with and without a delete time,
flexible framing and collections.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ...errors import Status
from ...model import VBucketState
from .. import messages as m
from ..enum_codes import DURABILITY_LEVELS, MODERN_REASONS, MODERN_STATES, STATUSES
from ..layout import (
    ALL_DATATYPES,
    Cas,
    KeyRule,
    Layout,
    Record,
    Value,
    const,
    reserved,
    u8,
    u32,
    u64,
)
from ..packet_value_codecs import CACHED_ITEMS, FAILOVER_LOG, TEXT
from ..protocol_enums import Command as C
from ..protocol_enums import MarkerFlag, OpenFlag, OsoFlag, StreamFlag
from . import keyvalue
from .interface import SnapshotStyle
from .layout_table import Table
from .memcached_base import MemcachedDialect

#: Datatypes of a deletion's value: xattrs, and what some server releases stored by mistake.
_DELETION_DATATYPES = frozenset({0, 2, 4, 5, 6, 7})

_BODY = Value(document=True)

_NMETA = const("H", 0, "extended metadata length")
_SEQNO = u64("seqno", label="by seqno")
_DATA_SEQNO = u64("seqno", label="by seqno", minimum=1)
_REV = u64("rev", label="rev seqno")
_DELETE_TIME = u32("delete_time")
_SNAPSHOT = (u64("start", label="start seqno"), u64("end", label="end seqno"))
_MARKER_FLAGS = u32("flags", MarkerFlag)


def _stream(command: C, opcode: int, message: type[Any], *slots: Any, **rest: Any) -> Layout:
    return Layout(command, opcode, message, Record(*slots), **rest)


def _data(command: C, opcode: int, message: type[Any], *slots: Any, **rest: Any) -> Layout:
    rest.setdefault("datatypes", ALL_DATATYPES)
    return Layout(command, opcode, message, Record(*slots), KeyRule.DOCUMENT, value=_BODY, **rest)


def _marker(version: int, *slots: Any) -> Layout:
    record = Record(*_SNAPSHOT, _MARKER_FLAGS, *slots)
    return _stream(
        C.SNAPSHOT_MARKER,
        0x56,
        m.SnapshotMarker,
        const("B", version, "marker version"),
        value=Value(record=record),
    )


def _event(
    event: int, version: int, message: type[Any], *slots: Any, named: bool = False
) -> Layout:
    return Layout(
        C.SYSTEM_EVENT,
        0x5F,
        message,
        Record(_SEQNO, const("I", event, "event"), const("B", version, "version")),
        KeyRule.NAME if named else KeyRule.NONE,
        key_attribute="name",
        value=Value(record=Record(u64("manifest_uid"), u32("scope", label="scope id"), *slots)),
        datatypes=None,
    )


def _sync_write(command: C, opcode: int, message: type[Any], seqno: str) -> Layout:
    return _stream(
        command,
        opcode,
        message,
        u64("prepared_seqno"),
        u64(seqno),
        key=KeyRule.DOCUMENT,
        cas=Cas.ZERO,
    )


_COLLECTION = u32("collection", label="collection id")
#: Only for replicas: the active vbucket's prepared writes and purge seqno.
_VISIBLE = (u64("max_visible_seqno", absent=0), u64("high_completed_seqno", absent=0))
_PURGE = (u64("purge_seqno", absent=0), u64("high_prepared_seqno", absent=0))

#: The extras of Open, in every draft that has it.
OPEN_EXTRAS = Record(u32("sequence"), u32("flags", OpenFlag))

#: The range of a Stream Request, in every draft with this header.
STREAM_RANGE = (
    u32("flags", StreamFlag),
    reserved("I"),
    u64("start", label="start seqno"),
    u64("end", label="end seqno"),
    u64("vbuuid", label="vbucket uuid"),
)

_REQUESTS = [
    Layout(
        C.OPEN,
        0x50,
        m.Open,
        OPEN_EXTRAS,
        KeyRule.NAME,
        key_attribute="name",
        value=Value(),
        datatypes=frozenset({0, 1}),
    ),
    _stream(C.ADD_STREAM, 0x51, m.AddStream, u32("flags", StreamFlag)),
    _stream(C.CLOSE_STREAM, 0x52, m.CloseStream),
    _stream(
        C.STREAM_REQUEST,
        0x53,
        m.StreamRequest,
        *STREAM_RANGE,
        u64("snapshot_start", absent="start"),
        u64("snapshot_end", absent="start"),
        value=Value("filter"),
    ),
    _stream(C.FAILOVER_LOG, 0x54, m.FailoverLogRequest),
    _stream(C.STREAM_END, 0x55, m.StreamEnd, u32("reason", MODERN_REASONS)),
    _stream(C.SNAPSHOT_MARKER, 0x56, m.SnapshotMarker, *_SNAPSHOT, _MARKER_FLAGS),
    _marker(0, *_VISIBLE),
    _marker(2, *_VISIBLE, *_PURGE),
    _data(
        C.MUTATION,
        0x57,
        m.Mutation,
        _DATA_SEQNO,
        _REV,
        u32("flags"),
        u32("expiry"),
        u32("lock_time"),
        _NMETA,
        u8("nru"),
    ),
    _data(C.DELETION, 0x58, m.Deletion, _SEQNO, _REV, _NMETA, datatypes=_DELETION_DATATYPES),
    _data(
        C.DELETION,
        0x58,
        m.Deletion,
        _SEQNO,
        _REV,
        _DELETE_TIME,
        reserved("B", "unused"),
        datatypes=_DELETION_DATATYPES,
    ),
    _data(C.EXPIRATION, 0x59, m.Expiration, _SEQNO, _REV, u32("delete_time", absent=0)),
    _stream(C.FLUSH_STREAM, 0x5A, m.FlushStream),
    _stream(C.SET_STREAM_STATE, 0x5B, m.SetStreamState, u8("state", MODERN_STATES)),
    _stream(C.STREAM_NOOP, 0x5C, m.StreamNoop),
    _stream(C.BUFFER_ACK, 0x5D, m.BufferAck, u32("size", label="bytes")),
    Layout(C.CONTROL, 0x5E, m.Control, key=KeyRule.NAME, value=TEXT),
    _event(0, 0, m.CollectionCreated, _COLLECTION, named=True),
    _event(0, 1, m.CollectionCreated, _COLLECTION, u32("max_ttl"), named=True),
    _event(1, 0, m.CollectionDropped, _COLLECTION),
    _event(3, 0, m.ScopeCreated, named=True),
    _event(4, 0, m.ScopeDropped),
    Layout(
        C.SYSTEM_EVENT,
        0x5F,
        m.SystemEvent,
        Record(_SEQNO, u32("event"), u8("version")),
        KeyRule.RAW,
        value=Value(),
        datatypes=None,
    ),
    _data(
        C.PREPARE,
        0x60,
        m.Prepare,
        _DATA_SEQNO,
        _REV,
        u32("flags"),
        u32("expiry"),
        u32("lock_time"),
        u8("nru"),
        u8("deleted", bool),
        u8("level", DURABILITY_LEVELS, label="durability level"),
        cas=Cas.SET,
    ),
    _stream(C.SEQNO_ACKNOWLEDGED, 0x61, m.SeqnoAcknowledged, u64("prepared_seqno"), cas=Cas.ZERO),
    _sync_write(C.COMMIT, 0x62, m.Commit, "commit_seqno"),
    _sync_write(C.ABORT, 0x63, m.Abort, "abort_seqno"),
    _stream(C.SEQNO_ADVANCED, 0x64, m.SeqnoAdvanced, _SEQNO),
    _stream(C.OSO_SNAPSHOT, 0x65, m.OsoSnapshot, u32("flags", OsoFlag)),
    _stream(C.CACHE_TRANSFER, 0x66, m.CacheTransfer, value=CACHED_ITEMS, cas=Cas.ZERO),
    _stream(C.CACHE_TRANSFER_END, 0x67, m.CacheTransferEnd, cas=Cas.ZERO),
]


def stream_responses(
    *, stream_request: int, failover_log: int, add_stream: int | None = None
) -> list[Layout]:
    """The layouts of the responses of the change stream, whose opcodes differ between drafts.

    Draft 000, which has no Add Stream, also accepts a stream without sending the failover log.
    """
    layouts = [
        Layout(
            C.STREAM_REQUEST,
            stream_request,
            m.StreamAccepted,
            value=FAILOVER_LOG if add_stream is not None else None,
            datatypes=None,
        ),
        Layout(
            C.STREAM_REQUEST,
            stream_request,
            m.StreamRollback,
            value=Value(record=Record(u64("seqno", label="rollback seqno"))),
            status=Status.ROLLBACK,
            datatypes=None,
        ),
        Layout(  # as draft 001 prints it, and servers of its time may send it
            C.STREAM_REQUEST,
            stream_request,
            m.StreamRollback,
            Record(u64("seqno", label="rollback seqno")),
            status=Status.ROLLBACK,
            datatypes=None,
        ),
        Layout(
            C.FAILOVER_LOG, failover_log, m.FailoverLogResponse, value=FAILOVER_LOG, datatypes=None
        ),
    ]
    if add_stream is not None:
        layouts.append(
            Layout(
                C.ADD_STREAM,
                add_stream,
                m.AddStreamResponse,
                Record(u32("stream_opaque")),
                datatypes=None,
            )
        )
    return layouts


STREAM_RESPONSES = stream_responses(stream_request=0x53, failover_log=0x54, add_stream=0x51)

_SWAPPED = {
    VBucketState.REPLICA: VBucketState.PENDING,
    VBucketState.PENDING: VBucketState.REPLICA,
}


def _swapped(message: m.Message) -> m.Message:
    """A Set VBucket State with the two states exchanged that the drafts number in reverse."""
    if isinstance(message, m.SetStreamState):
        return replace(message, state=_SWAPPED.get(message.state, message.state))
    return message


@dataclass(frozen=True, slots=True)
class Dcp(MemcachedDialect):
    """Modern DCP."""

    #: For servers up to release 3.0, which number vbucket states on a stream like the drafts.
    draft_states: bool = False

    name: ClassVar[str] = "dcp"
    snapshot_style: ClassVar[SnapshotStyle] = SnapshotStyle.RANGE_MARKER
    negotiates: ClassVar[bool] = True
    acknowledges_state: ClassVar[bool] = True
    #: Today's servers know the opcode and refuse it; a flush shows as a new vbuuid instead.
    has_flush: ClassVar[bool] = False
    has_columns: ClassVar[bool] = True
    flexible: ClassVar[bool] = True
    table: ClassVar[Table] = Table(
        [*_REQUESTS, *keyvalue.REQUESTS],
        [*STREAM_RESPONSES, *keyvalue.RESPONSES],
        STATUSES,
    )

    def encode(self, message: m.Message) -> bytes:
        return MemcachedDialect.encode(self, _swapped(message) if self.draft_states else message)

    def decode(self, packet: bytes) -> m.Message:
        message = MemcachedDialect.decode(self, packet)
        return _swapped(message) if self.draft_states else message
