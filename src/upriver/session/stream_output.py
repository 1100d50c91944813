"""Output of one stream: encodes stored changes, in any dialect and in the requested shape.

Stored frames are complete DCP packets. A consumer that requests everything receives the stored
bytes with its opaque written in. For any other consumer of the current DCP dialect,
`wire.columns` selects and patches many frames at once. Changes that need more than that, and all
changes of the older drafts, are encoded by `ChangeWriter`. Each draft has its own message order:

    002        Stream Start, { Snapshot Start, changes, Snapshot End }*, Stream End
    000        Stream Start, { Snapshot Start, changes, Snapshot End }*, Flush?, Stream End
    001        { Snapshot Marker, changes }*, Flush?, Stream End
    DCP        { Snapshot Marker with its seqnos, changes, Seqno Advanced? }*, Stream End

Prepares and aborts of durable writes are stored among the changes. They are left out unless the
consumer enabled sync writes; see `sync_write_output`.

A Flush carries neither a seqno nor a vbuuid. After it a new history begins at seqno 0, but seqnos
must increase within a stream. So the stream ends after a Flush, and a consumer that requests it
again receives the new vbuuid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..model import StreamEndReason, VBucketState
from ..wire import canonical
from ..wire import messages as m
from ..wire.columns import Part, Selection, patch_opaque, select
from ..wire.dialects import Dcp, Dialect, SnapshotStyle
from ..wire.enum_codes import DRAFT_STATES
from ..wire.framing import packet_length
from ..wire.protocol_enums import MarkerFlag, OsoFlag
from ..wire.stored_prepares import is_hidden
from .change_writer import ChangeWriter, Shape, ValueMode
from .collection_filter import FilterKind, StreamFilter
from .sync_write_output import SyncWriteOutput

#: The extras of a plain snapshot marker.
_RANGE: Final = Dcp.table.of_message[m.SnapshotMarker][0].extras.struct
_DEFAULT: Final = 0


@dataclass(frozen=True, slots=True)
class StoredChanges:
    """The packets for a run of stored frames."""

    packets: bytes | bytearray
    count: int
    #: The last seqno among the packets; 0 if the filter excludes all frames.
    last_seqno: int


class StreamOutput:
    """Encodes the messages of one stream."""

    def __init__(
        self,
        dialect: Dialect,
        *,
        vbucket: int,
        opaque: int,
        shape: Shape | None = None,
        filter: StreamFilter | None = None,  # noqa: A002 - the protocol's own word
        sync_writes: bool = False,
        draft_states: bool = False,
    ) -> None:
        """``sync_writes``: the consumer is a replica that accepts prepares, commits and aborts.

        ``draft_states``: it numbers vbucket states as the drafts and releases up to 3.0 do.
        """
        self._draft_states = draft_states
        shape = shape or Shape()
        self._dialect = dialect
        self._vbucket = vbucket
        self._opaque = opaque
        self._writer = ChangeWriter(
            dialect,
            vbucket=vbucket,
            opaque=opaque,
            shape=shape,
            filter=filter or StreamFilter(kind=FilterKind.EVERYTHING),
        )
        #: Encodes durable writes, if the consumer enabled them.
        self.sync_writes = SyncWriteOutput(self._writer) if sync_writes else None
        as_stored = self._writer.wants_everything and not shape.flatbuffers
        self._parts = _parts(shape, dialect, events=as_stored)
        #: Whether all stored frames can be sent unchanged except for the opaque.
        self._whole = self._parts == _EVERYTHING and self._writer.stream_id is None
        #: Cached selections by ``skip_deletions``; cleared when a system event may change them.
        self._selections: dict[bool, Selection] = {}
        #: An encoded marker without its seqnos: a live stream has a marker for almost every change.
        self._marker_head = b""
        if dialect.snapshot_style is SnapshotStyle.RANGE_MARKER:
            marker = self._encode(m.SnapshotMarker(vbucket=vbucket, start=0, end=0))
            self._marker_head = marker[: -_RANGE.size]

    @property
    def emptied(self) -> bool:
        """Whether every collection that the filter selected has been dropped."""
        return self._writer.emptied

    # ---- messages around the changes -----------------------------------------------------

    def opening(self) -> bytes:
        """Returns the first message of the stream, sent after the request was accepted."""
        return self._encode(m.StreamStart(vbucket=self._vbucket)) if self._has_edges else b""

    def snapshot_start(
        self,
        start: int,
        end: int,
        flags: MarkerFlag,
        *,
        purge_seqno: int | None = None,
        visible_seqno: int | None = None,
        completed_seqno: int | None = None,
        prepared_seqno: int | None = None,
    ) -> bytes:
        """Announces a snapshot. The seqnos that are not None decide the version of the marker."""
        if self._has_edges:
            return self._encode(m.SnapshotStart(vbucket=self._vbucket))
        if self._dialect.snapshot_style is SnapshotStyle.BARE_MARKER:
            return self._encode(m.SnapshotMarker(vbucket=self._vbucket))
        if purge_seqno is None and visible_seqno is None:
            return self._marker_head + _RANGE.pack(start, end, flags)
        return self._encode(
            m.SnapshotMarker(
                vbucket=self._vbucket,
                start=start,
                end=end,
                flags=flags,
                max_visible_seqno=visible_seqno,
                high_completed_seqno=completed_seqno,
                purge_seqno=purge_seqno,
                high_prepared_seqno=prepared_seqno if purge_seqno is not None else None,
            )
        )

    def snapshot_end(self, end: int, last_seqno: int) -> bytes:
        """Ends a snapshot, or sends a Seqno Advanced if its last changes were left out."""
        if self._has_edges:
            return self._encode(m.SnapshotEnd(vbucket=self._vbucket))
        return self.seqno_advanced(end) if self._dialect.collections and last_seqno < end else b""

    def seqno_advanced(self, seqno: int) -> bytes:
        """Returns the message that everything up to ``seqno`` was sent or left out."""
        return self._encode(m.SeqnoAdvanced(vbucket=self._vbucket, seqno=seqno))

    def state(self, state: VBucketState) -> bytes:
        """Sets the state of the consumer's vbucket in a takeover."""
        packet = self._encode(m.SetStreamState(vbucket=self._vbucket, state=state))
        return packet[:-1] + bytes([DRAFT_STATES.dump(state)]) if self._draft_states else packet

    def out_of_order(self, flags: OsoFlag) -> bytes:
        """Begins or ends an out-of-order snapshot."""
        return self._encode(m.OsoSnapshot(vbucket=self._vbucket, flags=flags))

    def flushed(self) -> bytes:
        """Returns the request to delete all data of the consumer, in the drafts that have Flush.

        In other dialects the consumer learns of a flush from the new vbuuid, when it requests the
        stream again.
        """
        if not self._dialect.has_flush:
            return b""
        return self._encode(m.FlushStream(vbucket=self._vbucket))

    def ending(self, reason: StreamEndReason) -> bytes:
        """Ends the stream. A reason that the dialect lacks is sent as the nearest one it has."""
        return self._encode(m.StreamEnd(vbucket=self._vbucket, reason=self._sayable(reason)))

    def _sayable(self, reason: StreamEndReason) -> StreamEndReason:
        if not self._dialect.negotiates:
            fine = (StreamEndReason.OK, StreamEndReason.CLOSED, StreamEndReason.FILTER_EMPTY)
            return StreamEndReason.OK if reason in fine else StreamEndReason.STATE_CHANGED
        if reason is StreamEndReason.ROLLBACK:  # Couchbase servers never send it
            return StreamEndReason.STATE_CHANGED
        newer = (StreamEndReason.FILTER_EMPTY, StreamEndReason.LOST_PRIVILEGES)
        if reason in newer and not self._dialect.collections:
            return StreamEndReason.OK
        return reason

    @property
    def _has_edges(self) -> bool:
        return self._dialect.snapshot_style is SnapshotStyle.EDGES

    def _encode(self, message: m.Message) -> bytes:
        return self._writer.encode(message)

    # ---- changes -------------------------------------------------------------------------

    def changes(
        self,
        frames: bytes,
        last_seqno: int,
        *,
        skip_deletions: bool = False,
        has_sync_writes: bool = False,
    ) -> StoredChanges:
        """Returns the packets for complete stored frames, the last of which has ``last_seqno``.

        ``has_sync_writes``: the frames may include prepares and aborts.
        """
        if has_sync_writes:
            return self._without_sync_writes(frames, skip_deletions=skip_deletions)
        if not self._dialect.has_columns:
            return self._written(frames, skip_deletions)
        if self._whole and not skip_deletions:
            packets = bytearray(frames)
            return StoredChanges(packets, patch_opaque(packets, self._opaque), last_seqno)
        view, size = memoryview(frames), len(frames)
        pieces: list[bytes | bytearray | memoryview] = []
        count = last = at = 0
        while at < size:
            selected = select(view[at:], self._selection(skip_deletions=skip_deletions))
            if selected.consumed == size and not selected.left:
                return StoredChanges(selected.packets, selected.count, selected.last_seqno)
            ready, copied = memoryview(selected.packets), 0
            count, last = count + selected.count, max(last, selected.last_seqno)
            for before, offset, length in selected.left:
                start = at + offset
                written = self._written(frames[start : start + length], skip_deletions)
                pieces += (ready[copied:before], written.packets)
                count, last, copied = count + written.count, max(last, written.last_seqno), before
            pieces.append(ready[copied:])
            at += selected.consumed
            if at < size:  # a system event, after which the selection may differ
                end = at + (packet_length(frames, at) or size)
                written = self._written(frames[at:end], skip_deletions)
                pieces.append(written.packets)
                count, last, at = count + written.count, max(last, written.last_seqno), end
                self._selections.clear()
        return StoredChanges(b"".join(pieces), count, last)

    def _without_sync_writes(self, frames: bytes, *, skip_deletions: bool) -> StoredChanges:
        """Like `changes`, but encodes or leaves out prepares, commits and aborts one by one."""
        pieces: list[bytes | bytearray] = []
        ordinary: list[bytes] = []
        count = last = 0

        def send(run: list[bytes]) -> None:
            nonlocal count, last
            joined = b"".join(run)
            sent = self.changes(joined, canonical.seqno_of(run[-1]), skip_deletions=skip_deletions)
            pieces.append(sent.packets)
            count, last = count + sent.count, max(last, sent.last_seqno)

        for frame in canonical.frames_in(frames):
            hidden = is_hidden(frame)
            special = None if self.sync_writes is None else self.sync_writes.packet(frame)
            if special is None:
                if not hidden:
                    ordinary.append(frame)
                continue
            if ordinary:
                send(ordinary)
                ordinary = []
            pieces.append(special)
            count, last = count + 1, max(last, canonical.seqno_of(frame))
        if ordinary:
            send(ordinary)
        return StoredChanges(b"".join(pieces), count, last)

    def _selection(self, *, skip_deletions: bool) -> Selection:
        found = self._selections.get(skip_deletions)
        if found is None:
            wanted: tuple[int, ...] | None = tuple(sorted(self._writer.collections))
            if not self._dialect.collections:
                wanted = (_DEFAULT,)
            elif self._writer.wants_everything:
                wanted = None
            found = self._selections[skip_deletions] = Selection(
                parts=self._parts & ~Part.DELETIONS if skip_deletions else self._parts,
                opaque=self._opaque,
                stream_id=self._writer.stream_id,
                collections=wanted,
            )
        return found

    def _written(self, frames: bytes, skip_deletions: bool) -> StoredChanges:
        """Encodes stored frames one by one."""
        packets: list[bytes] = []
        last = 0
        for frame in canonical.frames_in(frames):
            packet = self._writer.packet(frame, skip_deletions=skip_deletions)
            if packet is not None:
                packets.append(packet)
                last = canonical.seqno_of(frame)
        return StoredChanges(b"".join(packets), len(packets), last)


_EVERYTHING: Final = ~Part.DATATYPE & Part(sum(Part))


def _parts(shape: Shape, dialect: Dialect, *, events: bool) -> Part:
    """Returns the parts of stored changes that a shape includes."""
    chosen = {
        Part.PREFIX: dialect.collections,
        Part.VALUE: shape.value is ValueMode.ALL,
        Part.DATATYPE: shape.value is ValueMode.NONE_WITH_DATATYPE,
        Part.XATTRS: shape.xattrs,
        Part.DELETED_USER_XATTRS: shape.deleted_user_xattrs,
        Part.DELETE_TIMES: shape.delete_times,
        Part.EXPIRATIONS: shape.expirations,
        Part.DELETIONS: True,
        Part.SNAPPY_VALUES: shape.snappy,
        Part.PLAIN_VALUES: not shape.compress,
        Part.EVENTS: events,
    }
    return Part(sum(part for part, wanted in chosen.items() if wanted))
