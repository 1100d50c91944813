"""The messages of a consumer's stream other than rows: snapshots, system events, its end."""

from __future__ import annotations

from typing import Final

from ..model import NO_END, Snapshot, StreamEndReason
from ..wire import messages as m
from ..wire.flatbuffer_event_decoder import NamedEvent, named_event
from ..wire.protocol_enums import MarkerFlag, OsoFlag
from .consumer_events import (
    Event,
    Flushed,
    RollbackReason,
    RolledBack,
    StateAsked,
    SyncWrite,
    SystemHappened,
)
from .inbound_row_checks import RowCheck
from .requested_stream import RequestedStream, broken_rule
from .stream_position import Position

_SYSTEM: Final = (
    m.CollectionCreated,
    m.CollectionDropped,
    m.ScopeCreated,
    m.ScopeDropped,
    m.SystemEvent,
)
_SYNC_WRITES: Final = (m.Prepare, m.Commit, m.Abort)


class InboundStreamMessages:
    """Applies messages to streams; a message that was not negotiated breaks a rule."""

    def __init__(self, *, sync_writes: bool, out_of_order: bool, refuse_rollback: bool) -> None:
        self._refuse_rollback = refuse_rollback
        self._sync_writes = sync_writes
        self._takes_out_of_order = out_of_order

    def apply(
        self, stream: RequestedStream, message: m.Message, rows: RowCheck
    ) -> StreamEndReason | None:
        """Applies one message, which follows ``rows``; returns why its stream has ended, if so."""
        vbucket = getattr(message, "vbucket", stream.vbucket)
        if vbucket not in (stream.vbucket, m.VBUCKET_NOT_CARRIED):
            raise broken_rule("vbucket", stream.vbucket, f"a message is of vbucket {vbucket}")
        if not stream.flowing:
            name = type(message).__name__
            raise broken_rule("message", stream.vbucket, f"{name} came before the stream did")
        if isinstance(message, m.SnapshotMarker):
            self._marker(stream, message, rows)
        elif isinstance(message, m.SnapshotStart):
            stream.open_snapshot()
        elif isinstance(message, m.SnapshotEnd):
            rows.closed(stream)
        elif isinstance(message, m.StreamStart):
            pass
        elif isinstance(message, m.SeqnoAdvanced):
            # Couchbase servers may announce the end of a backfill twice.
            at_end = stream.tracker.is_consistent and message.seqno == stream.tracker.seqno
            if not at_end:
                rows.advanced(stream, message.seqno)
        elif isinstance(message, _SYSTEM):
            self._system(stream, message, rows)
        elif self._sync_writes and isinstance(message, _SYNC_WRITES):
            self._sync_write(stream, message, rows)
        elif self._takes_out_of_order and isinstance(message, m.OsoSnapshot):
            self._out_of_order(stream, message, rows)
        elif isinstance(message, m.StreamEnd):
            if message.reason is StreamEndReason.OK:
                self._close_open_snapshot(stream, rows)
            return message.reason
        elif isinstance(message, m.SetStreamState):
            rows.flush()
            rows.events.append(StateAsked(stream.vbucket, message.state))
        elif isinstance(message, m.FlushStream):
            rows.flush()
            rows.events.append(self._flushed(stream))
        else:
            name = type(message).__name__
            raise broken_rule("message", stream.vbucket, f"{name} was not negotiated")
        return None

    def _flushed(self, stream: RequestedStream) -> Event:
        """Goes back to the beginning, or reports that the session does not go back."""
        if not self._refuse_rollback:
            stream.flushed()
            return Flushed(stream.vbucket)
        at, why = stream.tracker.seqno, RollbackReason.FLUSHED
        return RolledBack(stream.vbucket, at, Position(), why, refused=True, served=stream.served)

    def _marker(self, stream: RequestedStream, marker: m.SnapshotMarker, rows: RowCheck) -> None:
        if marker.start is None or marker.end is None:
            # In draft 001 a marker ends the snapshot before it, and may begin another.
            self._close_open_snapshot(stream, rows)
            stream.open_snapshot()
            return
        stream.begin_snapshot(Snapshot(marker.start, marker.end), marker.purge_seqno)
        stream.owes_ack = bool(marker.flags & MarkerFlag.ACK)

    def _out_of_order(self, stream: RequestedStream, edge: m.OsoSnapshot, rows: RowCheck) -> None:
        if edge.flags & OsoFlag.START:
            stream.begin_out_of_order()
        elif edge.flags & OsoFlag.END:
            rows.out_of_order_ended(stream)

    def _system(
        self,
        stream: RequestedStream,
        message: NamedEvent | m.SystemEvent,
        rows: RowCheck,
    ) -> None:
        if isinstance(message, m.SystemEvent):
            try:
                message = named_event(message)
            except ValueError as problem:
                detail = f"a system event cannot be read: {problem}"
                raise broken_rule("system event", stream.vbucket, detail) from None
        rows.flush()
        rows.advanced(stream, message.seqno)
        if not isinstance(message, m.SystemEvent):
            stream.tracker.manifest_uid = max(stream.tracker.manifest_uid, message.manifest_uid)
        rows.events.append(SystemHappened(stream.vbucket, message))

    def _sync_write(
        self, stream: RequestedStream, write: m.Prepare | m.Commit | m.Abort, rows: RowCheck
    ) -> None:
        if isinstance(write, m.Prepare):
            seqno = write.seqno
        elif isinstance(write, m.Commit):
            seqno = write.commit_seqno
        else:
            seqno = write.abort_seqno
        rows.flush()
        rows.advanced(stream, seqno)
        rows.events.append(SyncWrite(stream.vbucket, write))

    def _close_open_snapshot(self, stream: RequestedStream, rows: RowCheck) -> None:
        """Completes a snapshot without a known end, unless it was only implied and is empty."""
        is_open = stream.tracker.snapshot.end == NO_END
        if is_open and (stream.heard or not stream.implied):
            rows.closed(stream)
        stream.implied = False
