"""The dialect of draft 000: the first with the memcached header; without Open.

The first Stream Request opens the connection. In the draft's examples byte 5 still holds draft
002's request type; it is sent as 0 and ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ...errors import Status
from .. import messages as m
from ..enum_codes import DRAFT_REASONS, DRAFT_STATES, STATUSES
from ..layout import KeyRule, Layout, Record, Value, u8, u32, u64
from ..protocol_enums import Command as C
from . import keyvalue
from .dcp import STREAM_RANGE, stream_responses
from .interface import SnapshotStyle
from .layout_table import Table
from .memcached_base import MemcachedDialect

_ITEM = Record(
    u64("seqno", label="by seqno"),
    u64("rev", label="rev seqno"),
    u32("flags", label="item flags"),
    u32("expiry", label="item expiration"),
    u32("lock_time"),
)


def _stream(command: C, opcode: int, message: type[Any], *slots: Any) -> Layout:
    return Layout(command, opcode, message, Record(*slots), datatypes=None)


def _data(command: C, opcode: int, message: type[Any], value: Value | None = None) -> Layout:
    return Layout(command, opcode, message, _ITEM, KeyRule.DOCUMENT, value=value, datatypes=None)


_REQUESTS = [
    Layout(
        C.STREAM_REQUEST,
        0x50,
        m.StreamRequest,
        Record(*STREAM_RANGE, u64("high_seqno", absent=0)),
        KeyRule.OPTIONAL_NAME,
        key_attribute="group",
        datatypes=None,
    ),
    _stream(C.FAILOVER_LOG, 0x51, m.FailoverLogRequest),
    _stream(C.STREAM_START, 0x52, m.StreamStart),
    _stream(C.STREAM_END, 0x53, m.StreamEnd, u32("reason", DRAFT_REASONS)),
    _stream(C.SNAPSHOT_START, 0x54, m.SnapshotStart),
    _stream(C.SNAPSHOT_END, 0x55, m.SnapshotEnd),
    _data(C.MUTATION, 0x56, m.Mutation, Value(document=True)),
    _data(C.DELETION, 0x57, m.Deletion),
    _data(C.EXPIRATION, 0x58, m.Expiration),
    _stream(C.FLUSH_STREAM, 0x59, m.FlushStream),
    _stream(C.SET_STREAM_STATE, 0x5A, m.SetStreamState, u8("state", DRAFT_STATES)),
]


@dataclass(frozen=True, slots=True)
class Draft000(MemcachedDialect):
    """Draft 000."""

    name: ClassVar[str] = "000"
    snapshot_style: ClassVar[SnapshotStyle] = SnapshotStyle.EDGES
    opens_connections: ClassVar[bool] = False
    accepts_with_failover_log: ClassVar[bool] = False
    has_datatypes: ClassVar[bool] = False
    table: ClassVar[Table] = Table(
        [*_REQUESTS, *keyvalue.REQUESTS],
        [*stream_responses(stream_request=0x50, failover_log=0x51), *keyvalue.RESPONSES],
        STATUSES,
        # the draft's own example of "not my vbucket" has 1 where its list says 7
        status_aliases={(C.STREAM_REQUEST, 0x01): Status.NOT_MY_VBUCKET},
    )
