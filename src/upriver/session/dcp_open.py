"""Opens a consumer's DCP connection after authentication: sends Open and the controls.

If the server refuses an optional flag or control, the consumer continues without it. If it
refuses a required one, the conversation fails. Drafts 002 and 000 have neither Open nor controls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..errors import Status, StatusError
from ..wire import messages as m
from ..wire.dialects import Dialect
from ..wire.protocol_enums import OpenFlag
from .client_handshake import STREAM_ROLE, refusal_context
from .conversation import Conversation


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The options that a consumer requests for its connection."""

    name: str
    #: The flow-control window in bytes; 0 for no flow control.
    window: int
    #: Seconds between two noops.
    noop_interval: float
    values: bool = True
    xattrs: bool = False
    #: Accept compressed values, and have the server compress the others before it sends them.
    compression: bool = False
    #: Leave out deletions during a backfill.
    skip_deletes: bool = False
    #: Accept snapshots out of seqno order, which some servers read faster.
    out_of_order: bool = False
    #: Request prepares, commits and aborts of durable writes.
    sync_writes: bool = False
    #: The connection's priority and the order of its backfills; "" for the server's default.
    priority: str = ""
    backfill_order: str = ""

    @property
    def flags(self) -> OpenFlag:
        flags = OpenFlag.PRODUCER | OpenFlag.INCLUDE_DELETE_TIMES
        if self.xattrs:
            flags |= OpenFlag.INCLUDE_XATTRS | OpenFlag.INCLUDE_DELETED_USER_XATTRS
        if not self.values:
            flags |= OpenFlag.NO_VALUE_WITH_DATATYPE
        if self.skip_deletes:
            flags |= OpenFlag.SKIP_DELETES_IN_BACKFILL
        return flags


@dataclass(frozen=True, slots=True)
class Opened:
    """The options that the server granted."""

    window: int = 0
    noop_interval: float = 0.0
    #: The server sends purge seqnos in snapshot markers, and accepts them in stream requests.
    purge_seqnos: bool = False
    #: The server sends prepares, commits and aborts.
    sync_writes: bool = False
    #: The server may send a backfill from seqno 0 in any order.
    out_of_order: bool = False


#: The older way to have no values.
_NO_VALUE_BUT_XATTRS: Final = OpenFlag.NO_VALUE | OpenFlag.INCLUDE_XATTRS


def open_connection(dialect: Dialect, opening: Opening) -> Conversation[Opened]:
    """Opens a connection in a dialect. Raises `StatusError` if the server refuses."""
    if not dialect.opens_connections:
        return Opened()
    if not dialect.negotiates:
        yield from _open(opening.name, OpenFlag.PRODUCER)
        return Opened()
    flags = yield from _open_with_most(opening)
    # Servers send collections and xattrs only on connections with noops.
    needs_noop = dialect.collections or bool(flags & OpenFlag.INCLUDE_XATTRS)
    interval = f"{opening.noop_interval:g}"
    # A server that refuses only the interval uses its own; its noops still come.
    alive = (yield from _control("enable_noop", "true", required=needs_noop)) and (
        yield from _control("set_noop_interval", interval, required=False)
    )
    window = str(opening.window)
    limited = yield from _control("connection_buffer_size", window, required=False)
    yield from _control("enable_expiry_opcode", "true", required=False)
    if opening.compression:
        yield from _control("force_value_compression", "true", required=False)
    if flags & OpenFlag.INCLUDE_DELETED_USER_XATTRS:
        yield from _control("include_deleted_user_xattrs", "true", required=False)
    purge_seqnos = False
    if dialect.collections:
        purge_seqnos = yield from _control("max_marker_version", "2.2", required=False)
        yield from _control("flatbuffers_system_events", "true", required=False)
    out_of_order = False
    for how in ("true_with_seqno_advanced", "true") if opening.out_of_order else ():
        if not out_of_order:
            control = "enable_out_of_order_snapshots"
            out_of_order = yield from _control(control, how, required=False)
    if opening.sync_writes:
        yield from _control("enable_sync_writes", "true", required=True)
    if opening.priority:
        yield from _control("set_priority", opening.priority, required=False)
    if opening.backfill_order:
        yield from _control("backfill_order", opening.backfill_order, required=False)
    return Opened(
        window=opening.window if limited else 0,
        noop_interval=opening.noop_interval if alive else 0.0,
        purge_seqnos=purge_seqnos,
        sync_writes=opening.sync_writes,
        out_of_order=out_of_order,
    )


#: Flags that older releases do not know, the newest first, and what stands in for each. Without a
#: flag the stream carries less; without one that leaves values out, it carries values, which the
#: client drops. NO_VALUE is never sent without INCLUDE_XATTRS: releases from 7.6 on read only keys
#: from disk then, and send deletions as mutations with CAS 0.
_NEWER_FLAGS: Final = (
    (OpenFlag.SKIP_DELETES_IN_BACKFILL, OpenFlag(0)),
    (OpenFlag.INCLUDE_DELETED_USER_XATTRS, OpenFlag(0)),
    (OpenFlag.NO_VALUE_WITH_DATATYPE, _NO_VALUE_BUT_XATTRS),
    (OpenFlag.INCLUDE_DELETE_TIMES, OpenFlag(0)),
    (_NO_VALUE_BUT_XATTRS, OpenFlag(0)),
)


def _open_with_most(opening: Opening) -> Conversation[OpenFlag]:
    """Opens with all requested flags, and does without the newest each time the server refuses."""
    flags = opening.flags
    needed = OpenFlag.INCLUDE_XATTRS if opening.xattrs else OpenFlag(0)
    for newer, instead in _NEWER_FLAGS:
        if flags & newer != newer:
            continue
        try:
            yield from _open(opening.name, flags)
            return flags
        except StatusError as refusal:
            if refusal.status is not Status.INVALID:
                raise
        flags = flags & ~newer | instead | needed
    yield from _open(opening.name, flags)
    return flags


def open_for_questions(name: str) -> Conversation[None]:
    """Opens a DCP connection that requests failover logs only, and no streams."""
    yield from _open(name, OpenFlag.PRODUCER)


def _open(name: str, flags: OpenFlag) -> Conversation[None]:
    answer: m.Response = yield m.Open(name=name, flags=flags)
    if answer.status is not Status.SUCCESS:
        raise refused(answer, "Open")


def _control(key: str, value: str, *, required: bool) -> Conversation[bool]:
    answer: m.Response = yield m.Control(key=key, value=value)
    if answer.status is not Status.SUCCESS and required:
        raise refused(answer, f"Control {key}={value}")
    return answer.status is Status.SUCCESS


def refused(answer: m.Response, request: str) -> StatusError:
    """Returns the error for a refusal, with what the user can do about it."""
    return StatusError(
        answer.status, request=request, context=denied(answer.status) or refusal_context(answer)
    )


def denied(status: Status) -> str:
    """Returns the explanation of an access denial; "" for any other status."""
    if status is not Status.NO_ACCESS:
        return ""
    return f"access to the bucket is denied (needs {STREAM_ROLE})"
