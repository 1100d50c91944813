"""The dialect of draft 001: Open, Add Stream, Close Stream; snapshot markers without seqnos.

Servers of its time send mutations with 31 bytes of extras where the draft has 30; both are
accepted, and `nru` selects which is sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from .. import messages as m
from ..enum_codes import DRAFT_REASONS, DRAFT_STATES, STATUSES
from ..layout import ALL_DATATYPES, KeyRule, Layout, Record, Value, length_of, u8, u32, u64
from ..packet_value_codecs import TEXT
from ..protocol_enums import Command as C
from ..protocol_enums import StreamFlag
from . import keyvalue
from .dcp import OPEN_EXTRAS, STREAM_RANGE, STREAM_RESPONSES
from .interface import SnapshotStyle
from .layout_table import Table
from .memcached_base import MemcachedDialect

_BODY = Value(document=True)
_SEQNOS = (u64("seqno", label="by seqno"), u64("rev", label="rev seqno"))
_NMETA = length_of("H", "extended_meta", "extended metadata length")


def _stream(command: C, opcode: int, message: type[Any], *slots: Any, **rest: Any) -> Layout:
    return Layout(command, opcode, message, Record(*slots), datatypes=None, **rest)


def _data(command: C, opcode: int, message: type[Any], *slots: Any, **rest: Any) -> Layout:
    return Layout(
        command,
        opcode,
        message,
        Record(*_SEQNOS, *slots),
        KeyRule.DOCUMENT,
        suffix="extended_meta",
        datatypes=ALL_DATATYPES,
        **rest,
    )


_MUTATION = (u32("flags"), u32("expiry"), u32("lock_time"), _NMETA)
_MUTATION_WITH_NRU = _data(C.MUTATION, 0x57, m.Mutation, *_MUTATION, u8("nru"), value=_BODY)

_REQUESTS = [
    Layout(
        C.OPEN,
        0x50,
        m.Open,
        OPEN_EXTRAS,
        KeyRule.NAME,
        key_attribute="name",
        datatypes=None,
    ),
    _stream(C.ADD_STREAM, 0x51, m.AddStream, u32("flags", StreamFlag)),
    _stream(C.CLOSE_STREAM, 0x52, m.CloseStream),
    _stream(
        C.STREAM_REQUEST,
        0x53,
        m.StreamRequest,
        *STREAM_RANGE,
        u64("high_seqno", absent=0),
    ),
    _stream(C.FAILOVER_LOG, 0x54, m.FailoverLogRequest),
    _stream(C.STREAM_END, 0x55, m.StreamEnd, u32("reason", DRAFT_REASONS)),
    _stream(C.SNAPSHOT_MARKER, 0x56, m.SnapshotMarker),
    _data(C.MUTATION, 0x57, m.Mutation, *_MUTATION, value=_BODY),
    _MUTATION_WITH_NRU,
    _data(C.DELETION, 0x58, m.Deletion, _NMETA),
    _data(C.EXPIRATION, 0x59, m.Expiration, _NMETA),
    _stream(C.FLUSH_STREAM, 0x5A, m.FlushStream),
    _stream(C.SET_STREAM_STATE, 0x5B, m.SetStreamState, u8("state", DRAFT_STATES)),
    #: Not in the draft: clients of its servers send it, so it is decoded and refused by name.
    _stream(C.CONTROL, 0x5E, m.Control, key=KeyRule.NAME, value=TEXT),
]


@dataclass(frozen=True, slots=True)
class Draft001(MemcachedDialect):
    """Draft 001."""

    #: Whether mutations are sent with 31 bytes of extras, like servers of the draft's time do.
    nru: bool = False

    name: ClassVar[str] = "001"
    snapshot_style: ClassVar[SnapshotStyle] = SnapshotStyle.BARE_MARKER
    table: ClassVar[Table] = Table(
        [*_REQUESTS, *keyvalue.REQUESTS],
        [*STREAM_RESPONSES, *keyvalue.RESPONSES],
        STATUSES,
    )

    @property
    def sends_nru(self) -> bool:
        return self.nru

    def layout_for(self, message: m.Message) -> Layout:
        if self.nru and isinstance(message, m.Mutation):
            return _MUTATION_WITH_NRU
        return MemcachedDialect.layout_for(self, message)
