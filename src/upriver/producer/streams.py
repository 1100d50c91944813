"""One stream of a vbucket's changes: snapshot after snapshot out of the store, then its tail.

    BACKFILLING ──caught up──> IN_MEMORY <──> more snapshots     (until the end, or for ever)
         └── takeover: ──caught up──> TAKEOVER_SEND ──state sent──> TAKEOVER_WAIT ──┐
                                            ^─────────────acknowledged──────────────┘
    any ──end, close, state change, fault──> DEAD

A stream holds one chunk of packets and at most one frozen view of the store, however slow its
reader is. It ends by itself when its vbucket is no longer what it was: another state, or another
branch of history, which after a flush has nothing in common with the one before. It knows no
socket: a connection takes what the flow-control window lets through.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from ..model import Snapshot, StreamEndReason, VBucketState
from ..session.filters import FilterKind
from ..session.flow import SendWindow
from ..session.options import OutOfOrder
from ..session.output import Changes, StreamOutput
from ..session.stream_request import Acceptance
from ..store import Backfill, Bucket
from ..wire.framing import packet_length
from ..wire.header import HEADER_SIZE
from ..wire.names import Command, MarkerFlag, OsoFlag

__all__ = ["ActiveStream", "StreamState"]

#: Large enough that a packet costs little, small enough that a thousand streams fit in memory.
CHUNK: Final = 256 * 1024


class StreamState(Enum):
    BACKFILLING = auto()
    IN_MEMORY = auto()
    TAKEOVER_SEND = auto()
    TAKEOVER_WAIT = auto()
    DEAD = auto()


class ActiveStream:
    """A stream that a connection pumps with `take`."""

    def __init__(
        self,
        bucket: Bucket,
        accepted: Acceptance,
        output: StreamOutput,
        *,
        vbucket: int,
        opaque: int,
        purge_seqno: int = 0,
        skip_deletions: bool = False,
        ignore_purged: bool = False,
        marker_2_2: bool = False,
        out_of_order: OutOfOrder = OutOfOrder.NO,
        acknowledged: bool = True,
    ) -> None:
        """``purge_seqno`` is the vbucket's when the stream was accepted.

        ``acknowledged``: consumers of the draft answer markers and states, as today's do.
        """
        self.vbucket = vbucket
        self.opaque = opaque
        self.stream_id = accepted.filter.stream_id
        self.end = accepted.end
        #: The last seqno that was handed over, or skipped for this reader.
        self.position = accepted.start
        self.state = StreamState.BACKFILLING
        self.is_takeover = accepted.takeover
        #: Whether its desk has it in the round of those with something to send.
        self.queued = False
        #: Up to where a copy says that it has everything on its disk.
        self.copied_until = 0
        self.messages_sent = 0
        self.bytes_sent = 0
        self._bucket = bucket
        #: The history that the stream was opened under, newest branch first.
        self._branches = tuple(entry.vbuuid for entry in bucket.failover_log(vbucket))
        self._state_served = bucket.state(vbucket)
        self._accepted = accepted
        self._output = output
        self._skip_deletions = skip_deletions and accepted.start == 0
        self._ignore_purged = ignore_purged
        #: What was purged up to here does not concern this reader.
        self._excused_until = purge_seqno
        self._marker_2_2 = marker_2_2
        #: Only the first snapshot of a stream from the beginning may be announced this way.
        self._out_of_order = out_of_order if accepted.start == 0 else OutOfOrder.NO
        self._pending = memoryview(output.opening())
        self._backfill: Backfill | None = None
        self._first_snapshot = True
        self._first_in_memory = True
        self._last_visible = 0
        self._unacknowledged = 0
        self._are_acknowledged = acknowledged
        #: When a takeover first had nothing left to send, and whether writers wait for it.
        self._caught_up_at: float | None = None
        self._holds_writers = False
        self._takeover_states = (
            [VBucketState.PENDING, VBucketState.ACTIVE] if accepted.takeover else []
        )

    # ---- what a connection does with it --------------------------------------------------

    @property
    def dead(self) -> bool:
        return self.state is StreamState.DEAD and not self._pending

    def take(self, window: SendWindow) -> memoryview:
        """The next packets that the window lets through; empty if there is nothing to send now."""
        if not self._pending:
            if self.state is StreamState.DEAD or not window.is_open:
                return self._pending
            self._pending = memoryview(self._next_packets())
        cut = _within(self._pending, window)
        taken, self._pending = self._pending[:cut], self._pending[cut:]
        window.sent(cut)
        self.bytes_sent += cut
        return taken

    def acknowledged(self, command: Command) -> None:
        """The consumer answered a marker or a state."""
        if command is Command.SNAPSHOT_MARKER:
            self._unacknowledged = max(0, self._unacknowledged - 1)
        elif command is Command.SET_STREAM_STATE and self.state is StreamState.TAKEOVER_WAIT:
            self.state = StreamState.TAKEOVER_SEND
            if self._takeover_states:
                self._give_up_vbucket()
            else:
                self.finish(StreamEndReason.OK)

    def finish(self, reason: StreamEndReason) -> None:
        """Ends the stream: what was announced and not sent is dropped, the reason is told."""
        if self.state is not StreamState.DEAD:
            self.abandon()
            self._pending = memoryview(self._output.ending(reason))

    def abandon(self) -> None:
        """Ends the stream without a word."""
        self.state = StreamState.DEAD
        self._hold_writers(held=False)
        self._pending = memoryview(b"")
        if self._backfill is not None:
            self._backfill.close()
            self._backfill = None

    # ---- takeover ------------------------------------------------------------------------

    def hurry(self, now: float, patience: float) -> None:
        """Has writers wait if they keep a takeover from its end for too long."""
        if self.state is not StreamState.TAKEOVER_SEND or self._holds_writers:
            return
        if self._caught_up_at is None:
            self._caught_up_at = now
        elif now - self._caught_up_at >= patience:
            self._hold_writers(held=True)

    def _hold_writers(self, *, held: bool) -> None:
        if held is not self._holds_writers:
            self._holds_writers = held
            self._bucket.hold_writes(self.vbucket, held=held)

    def _give_up_vbucket(self) -> None:
        """The consumer is pending: from here on nobody writes, until it is active."""
        self._bucket.set_state(self.vbucket, VBucketState.DEAD)
        self._hold_writers(held=False)

    # ---- what to send next ---------------------------------------------------------------

    def _next_packets(self) -> bytes:
        """Works until there is something to send; nothing if there is nothing to do."""
        while (packets := self._step()) is not None:
            if packets:
                return packets
        return b""

    def _step(self) -> bytes | None:
        """Some packets, none if there were only changes for others, None if all is done."""
        stats = self._bucket.vbucket_stats(self.vbucket)
        same_history = stats.vbuuid == self._branches[0]
        # a takeover changes the state by itself, and nobody changes the history meanwhile
        same_state = stats.state is self._state_served or self.is_takeover
        if not (same_history and same_state) and self.state is not StreamState.DEAD:
            flushed = b"" if same_history else self._told_of_flush()
            return flushed + self._end(StreamEndReason.STATE_CHANGED)
        if self._backfill is not None:
            return self._go_on(self._backfill)
        if self.state in (StreamState.TAKEOVER_WAIT, StreamState.DEAD):
            return None
        if self.position >= self.end:
            return self._end(StreamEndReason.OK)
        if 0 < self.position < stats.purge_seqno and not self._is_excused(stats.purge_seqno):
            return self._end(StreamEndReason.ROLLBACK)
        if stats.high_seqno > self.position:
            return self._begin(stats.purge_seqno)
        return self._caught_up()

    def _told_of_flush(self) -> bytes:
        """The message for readers who share no history with the vbucket any more."""
        left = {entry.vbuuid for entry in self._bucket.failover_log(self.vbucket)}
        return b"" if left.intersection(self._branches) else self._output.flushed()

    def _is_excused(self, purge_seqno: int) -> bool:
        """Whether a reader may go on from before the purge seqno.

        It may if it ignores what is purged, or if that was so when its request was accepted, or
        if the collections that it reads have had no change since. Those of a scope may be
        others by now, so its readers have to ask again.
        """
        if self._ignore_purged or purge_seqno <= self._excused_until:
            return True
        wanted = self._accepted.filter
        highs = self._bucket.collection_seqnos(self.vbucket)
        quiet = all(highs.get(one, 0) <= self.position for one in wanted.collections)
        if wanted.kind in (FilterKind.LEGACY, FilterKind.COLLECTIONS) and quiet:
            self._excused_until = purge_seqno
        return purge_seqno <= self._excused_until

    def _begin(self, purge_seqno: int) -> bytes | None:
        """Announces the next snapshot and sends its first changes."""
        backfill = self._bucket.open_reader(self.vbucket, self.position)
        chunk = backfill.read(CHUNK)
        if chunk is None:
            backfill.close()
            return None
        end = self._visible_end(backfill.snapshot)
        if end == 0:  # nothing in it is for this reader, who cannot be told so
            self.position = backfill.snapshot.end
            backfill.close()
            return self._end(StreamEndReason.FILTER_EMPTY) if self._output.emptied else b""
        self._backfill = backfill
        if not self._first_snapshot and self.state is StreamState.BACKFILLING:
            self.state = StreamState.IN_MEMORY  # what was written meanwhile is the tail already
        start = int.from_bytes(chunk.frames[HEADER_SIZE : HEADER_SIZE + 8], "big")
        if self._first_snapshot:
            start = min(self._accepted.snapshot.start, start)
        if self._out_of_order is not OutOfOrder.NO:
            marker = self._output.out_of_order(OsoFlag.START)
        else:
            marker = self._output.snapshot_start(
                start,
                end,
                self._marker_flags(),
                purge_seqno=purge_seqno if self._marker_2_2 else None,
            )
        self._first_snapshot = False
        return marker + self._changes(chunk.frames, chunk.last_seqno).packets

    def _go_on(self, backfill: Backfill) -> bytes:
        chunk = backfill.read(CHUNK)
        if chunk is not None:
            return self._changes(chunk.frames, chunk.last_seqno).packets
        self.position = backfill.snapshot.end
        backfill.close()
        self._backfill = None
        self._skip_deletions = False
        if self._out_of_order is OutOfOrder.NO:
            closing = self._output.snapshot_end(self.position, self._last_visible)
            if self._output.emptied:
                closing += self._end(StreamEndReason.FILTER_EMPTY)
            return closing
        told = self._out_of_order is OutOfOrder.YES_WITH_SEQNO_ADVANCED
        self._out_of_order = OutOfOrder.NO
        advanced = self._output.seqno_advanced(self.position) if told else b""
        return advanced + self._output.out_of_order(OsoFlag.END)

    def _changes(self, frames: bytes, last_seqno: int) -> Changes:
        changes = self._output.changes(frames, last_seqno, skip_deletions=self._skip_deletions)
        self.messages_sent += changes.count
        self._last_visible = max(self._last_visible, changes.last_seqno)
        return changes

    def _marker_flags(self) -> MarkerFlag:
        if self.state is StreamState.BACKFILLING:
            flags = MarkerFlag.DISK | MarkerFlag.CHECKPOINT
        else:
            flags = MarkerFlag.MEMORY
            if self._first_in_memory:
                flags |= MarkerFlag.CHECKPOINT
            self._first_in_memory = False
        if self._takeover_states and self._are_acknowledged:
            flags |= MarkerFlag.ACK
            self._unacknowledged += 1
        return flags

    def _visible_end(self, whole: Snapshot) -> int:
        """Where the snapshot ends for this reader; 0 if nothing of it is for them.

        Readers without collections cannot be told that seqnos were skipped, so their snapshots
        end at the last change they get. That takes a look ahead, where there is more to skip
        than what such readers never see anyway.
        """
        legacy = self._accepted.filter.kind is FilterKind.LEGACY
        all_visible = self._bucket.manifest.uid == 0 and not self._skip_deletions
        if not legacy or all_visible:
            return whole.end
        last = 0
        with self._bucket.open_reader(self.vbucket, self.position) as ahead:
            if ahead.snapshot != whole:
                return whole.end  # it moved on meanwhile; a marker that says too much is harmless
            for chunk in ahead:
                seen = self._output.changes(
                    chunk.frames, chunk.last_seqno, skip_deletions=self._skip_deletions
                )
                last = max(last, seen.last_seqno)
        return last

    def _caught_up(self) -> bytes | None:
        if self.state in (StreamState.BACKFILLING, StreamState.IN_MEMORY):
            takeover = bool(self._takeover_states)
            self.state = StreamState.TAKEOVER_SEND if takeover else StreamState.IN_MEMORY
        if not self._takeover_states or self._unacknowledged:
            return None
        packets = self._output.state(self._takeover_states.pop(0))
        if self._are_acknowledged:
            self.state = StreamState.TAKEOVER_WAIT
        elif self._takeover_states:  # the drafts want no answer: what is sent counts as done
            self._give_up_vbucket()
        else:
            packets += self._end(StreamEndReason.OK)
        return packets

    def _end(self, reason: StreamEndReason) -> bytes:
        self.abandon()
        return self._output.ending(reason)


def _within(packets: memoryview, window: SendWindow) -> int:
    """How many bytes of whole packets may be sent: each while the window is still open."""
    if not window.size:
        return len(packets)
    room = window.size - window.outstanding
    if room >= len(packets):
        return len(packets)
    at = 0
    while at < room and at < len(packets):
        at += packet_length(packets, at) or len(packets)
    return at
