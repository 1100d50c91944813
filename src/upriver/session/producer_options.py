"""Options of a producer's connection: the flags of Open, and the keys of Control.

Every key is answered as Couchbase servers answer it. A key that this producer does not implement
is answered with NOT_SUPPORTED, and an unknown key with INVALID.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias

from ..errors import Status
from ..wire.protocol_enums import OpenFlag
from .flow_control import SendWindow
from .keepalive import ProducerKeepalive

_KNOWN_OPEN_FLAGS: Final = (
    OpenFlag.PRODUCER
    | OpenFlag.NOTIFIER
    | OpenFlag.INCLUDE_XATTRS
    | OpenFlag.NO_VALUE
    | OpenFlag.INCLUDE_DELETE_TIMES
    | OpenFlag.NO_VALUE_WITH_DATATYPE
    | OpenFlag.INCLUDE_DELETED_USER_XATTRS
    | OpenFlag.SKIP_DELETES_IN_BACKFILL
)
_SHORTEST_NOOP_INTERVAL: Final = 0.1
_MAX_BUFFER: Final = 2**32 - 1


class OutOfOrder(Enum):
    """Whether a backfill from seqno 0 may be sent out of seqno order."""

    NO = "no"
    YES = "true"
    #: Also send a Seqno Advanced at the end of the backfill.
    YES_WITH_SEQNO_ADVANCED = "true_with_seqno_advanced"


class BackfillOrder(Enum):
    """How the backfills of one connection are scheduled."""

    ROUND_ROBIN = "round-robin"
    SEQUENTIAL = "sequential"


@dataclass(slots=True, kw_only=True)
class ProducerOptions:
    """The options of one connection: what HELLO negotiated, and what the consumer set."""

    flags: OpenFlag
    keepalive: ProducerKeepalive
    snappy: bool = False
    collections: bool = False
    window: SendWindow = field(default_factory=SendWindow)
    priority: str = "medium"
    force_compression: bool = False
    stream_end_on_close: bool = False
    expiry_opcode: bool = False
    stream_ids: bool = False
    sync_writes: bool = False
    consumer_name: str = ""
    out_of_order: OutOfOrder = OutOfOrder.NO
    backfill_order: BackfillOrder = BackfillOrder.ROUND_ROBIN
    marker_2_2: bool = False
    #: Send system events as FlatBuffers.
    flatbuffers: bool = False

    def has(self, flag: OpenFlag) -> bool:
        return bool(self.flags & flag)

    @property
    def notifies(self) -> bool:
        """Whether streams send no changes: a notifier stream only ends when there is a change."""
        return bool(self.flags & OpenFlag.NOTIFIER) and not self.flags & OpenFlag.PRODUCER


def is_for_consumer(flags: OpenFlag) -> bool:
    """Whether the flags of an Open make the server the consumer of the connection."""
    return not flags & (OpenFlag.PRODUCER | OpenFlag.NOTIFIER)


def check_open_flags(flags: OpenFlag) -> str:
    """Returns what is wrong with the flags of an Open; "" if they are valid."""
    unknown = int(flags) & ~int(_KNOWN_OPEN_FLAGS)  # ~ of a flag drops bits that have no name
    if unknown:
        return f"unknown flags {unknown:#x}"
    if flags & OpenFlag.SKIP_DELETES_IN_BACKFILL and not flags & OpenFlag.PRODUCER:
        return "only a producer can skip deletes"
    if flags & OpenFlag.NO_VALUE and flags & OpenFlag.NO_VALUE_WITH_DATATYPE:
        return "no value is asked for in two ways"
    if flags & OpenFlag.INCLUDE_DELETED_USER_XATTRS and not flags & OpenFlag.INCLUDE_XATTRS:
        return "xattrs of deleted documents need xattrs"
    return ""


def set_control(options: ProducerOptions, key: str, value: str) -> Status:
    """Sets one option of the connection, and returns the status to answer."""
    rule = _CONTROLS.get(key)
    return rule(options, value) if rule else Status.INVALID


#: Sets an option to the value of a control, and returns the status to answer.
_Control: TypeAlias = Callable[[ProducerOptions, str], Status]


def _noop(options: ProducerOptions, value: str) -> Status:
    options.keepalive.enabled = value == "true"
    return Status.SUCCESS


def _noop_interval(options: ProducerOptions, value: str) -> Status:
    try:
        interval = float(value)
    except ValueError:
        return Status.INVALID
    if not _SHORTEST_NOOP_INTERVAL <= interval < math.inf:
        return Status.INVALID
    options.keepalive.interval = interval
    return Status.SUCCESS


def _buffer_size(options: ProducerOptions, value: str) -> Status:
    digits = value.isascii() and value.isdigit() and len(value) <= len(str(_MAX_BUFFER))
    if not digits or int(value) > _MAX_BUFFER:
        return Status.INVALID
    options.window.size = int(value)
    return Status.SUCCESS


def _priority(options: ProducerOptions, value: str) -> Status:
    if value not in ("high", "medium", "low"):
        return Status.INVALID
    options.priority = value
    return Status.SUCCESS


def _force_compression(options: ProducerOptions, value: str) -> Status:
    if not options.snappy:
        return Status.INVALID
    options.force_compression = value == "true"
    return Status.SUCCESS


def _stream_end_on_close(options: ProducerOptions, value: str) -> Status:
    options.stream_end_on_close = options.stream_end_on_close or value == "true"
    return Status.SUCCESS


def _expiry_opcode(options: ProducerOptions, value: str) -> Status:
    # An expiration carries a delete time, so the consumer must have enabled delete times.
    options.expiry_opcode = value == "true" and options.has(OpenFlag.INCLUDE_DELETE_TIMES)
    return Status.SUCCESS


def _switch(name: str, *, excludes: str = "") -> _Control:
    """Returns the rule of an option that can only be switched on, and not beside another."""

    def switch_on(options: ProducerOptions, value: str) -> Status:
        if value != "true":
            return Status.INVALID
        if excludes and getattr(options, excludes):
            return Status.NOT_SUPPORTED
        setattr(options, name, True)
        return Status.SUCCESS

    return switch_on


def _stream_ids(options: ProducerOptions, value: str) -> Status:
    """Stream ids are in the value of a stream request, which needs collections."""
    if value == "true" and not options.collections:
        return Status.NOT_SUPPORTED
    return _switch("stream_ids", excludes="sync_writes")(options, value)


def _consumer_name(options: ProducerOptions, value: str) -> Status:
    if not value:
        return Status.INVALID
    options.consumer_name = value
    return Status.SUCCESS


def _out_of_order(options: ProducerOptions, value: str) -> Status:
    if value not in (OutOfOrder.YES.value, OutOfOrder.YES_WITH_SEQNO_ADVANCED.value):
        return Status.INVALID
    options.out_of_order = OutOfOrder(value)
    return Status.SUCCESS


def _deleted_user_xattrs(options: ProducerOptions, value: str) -> Status:
    opened = options.has(OpenFlag.INCLUDE_DELETED_USER_XATTRS)
    return Status.SUCCESS if value == "true" and opened else Status.INVALID


def _backfill_order(options: ProducerOptions, value: str) -> Status:
    try:
        options.backfill_order = BackfillOrder(value)
    except ValueError:
        return Status.INVALID
    return Status.SUCCESS


def _marker_version(options: ProducerOptions, value: str) -> Status:
    if value != "2.2":
        return Status.INVALID
    if not options.collections:
        return Status.NOT_SUPPORTED
    options.marker_2_2 = True
    return Status.SUCCESS


def _accepted(options: ProducerOptions, value: str) -> Status:
    """Accepts a control that announces a consumer's ability and changes nothing here."""
    return Status.SUCCESS


def _accepted_if_true(options: ProducerOptions, value: str) -> Status:
    return Status.SUCCESS if value == "true" else Status.INVALID


def _unsupported(options: ProducerOptions, value: str) -> Status:
    return Status.NOT_SUPPORTED


def _unsupported_if_true(options: ProducerOptions, value: str) -> Status:
    return Status.NOT_SUPPORTED if value == "true" else Status.INVALID


_CONTROLS: Final[dict[str, _Control]] = {
    "enable_noop": _noop,
    "set_noop_interval": _noop_interval,
    "connection_buffer_size": _buffer_size,
    "stream_buffer_size": _unsupported,
    "set_priority": _priority,
    "force_value_compression": _force_compression,
    "supports_cursor_dropping": _accepted,
    "supports_cursor_dropping_vulcan": _accepted,
    "supports_hifi_MFU": _accepted,
    "send_stream_end_on_client_close_stream": _stream_end_on_close,
    "enable_expiry_opcode": _expiry_opcode,
    "enable_stream_id": _stream_ids,
    "enable_sync_writes": _switch("sync_writes", excludes="stream_ids"),
    "consumer_name": _consumer_name,
    "enable_out_of_order_snapshots": _out_of_order,
    "include_deleted_user_xattrs": _deleted_user_xattrs,
    "backfill_order": _backfill_order,
    # The consumer tells an unknown stream by a status of its own; here every error status ends one.
    "v7_dcp_status_codes": _accepted_if_true,
    "flatbuffers_system_events": _switch("flatbuffers"),
    # The store keeps older versions for rollbacks only, and does not stream them.
    "change_streams": _unsupported_if_true,
    "max_marker_version": _marker_version,
    "cache_transfer": _unsupported,
}
