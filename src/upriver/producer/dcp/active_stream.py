"""Active stream of one vbucket: sends its stored changes snapshot by snapshot, then new changes.

Its states are those of the table `PRODUCER` in `session.stream_states`. A stream holds one chunk of
packets and at most one frozen view of the store, however slowly its consumer reads. It ends by
itself when its vbucket changes: to another state, or to another vbuuid, for example by a flush,
after which the vbucket shares no history with the stream. It knows no socket: the connection takes
as many packets as the flow-control window allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from ...errors import DecodeError, EncodeError, StoreDamaged, StoreError
from ...model import StreamEndReason, VBucketState
from ...session.collection_filter import FilterKind
from ...session.flow_control import SendWindow
from ...session.producer_options import OutOfOrder
from ...session.stream_output import StoredChanges, StreamOutput
from ...session.stream_request_checks import Acceptance
from ...session.stream_states import PRODUCER, next_state
from ...session.stream_states import ProducerEvent as Event
from ...session.stream_states import ProducerState as State
from ...store import Backfill, Bucket, FrameChunk
from ...wire import canonical
from ...wire.header import cas_of
from ...wire.protocol_enums import Command, MarkerFlag, OsoFlag
from .completed_prepares import commits_until
from .default_collection_end import VisibleEnd
from .dropped_documents import without_dropped

#: Bytes of changes that a stream reads in one step: large enough that the cost per packet is low,
#: small enough that a thousand streams fit in memory.
CHUNK: Final = 256 * 1024


class ActiveStream:
    """A stream of one vbucket. The connection calls `take` to get its packets."""

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
        notifies: bool = False,
        hand_over: Callable[[ActiveStream], None],
    ) -> None:
        """``purge_seqno`` is that of the vbucket when the stream was accepted.

        * ``acknowledged``: whether the consumer responds to snapshot markers and state messages.
        * ``notifies``: no change is sent; the stream ends as soon as there is one.
        * ``hand_over``: a callback that runs `become_dead` in a thread, because it waits for the
          disk, and then calls `handed_over` on the event loop.
        """
        self.vbucket = vbucket
        self.opaque = opaque
        self.stream_id = accepted.filter.stream_id
        self.end = accepted.end
        #: The last seqno that was sent, or skipped because the consumer's filter excludes it.
        self.position = accepted.start
        self.state = State.BACKFILLING
        self.is_takeover = accepted.takeover
        #: Whether `DcpProducer` has the stream in its queue of streams with something to send.
        self.queued = False
        #: The seqno up to which the consumer acknowledged that everything is on its disk, and the
        #: last seqno of the changes that were sent.
        self.copied_until = 0
        self._handed_over = 0
        self.messages_sent = 0
        self.bytes_sent = 0
        #: The CAS of the oldest change of the chunk that is sent next; 0 once it is sent, and for
        #: changes from before the stream caught up.
        self.oldest_cas = 0
        #: Bytes of stored changes that were read, sent or not.
        self.bytes_scanned = 0
        #: Whether the last `take` did work but returned nothing: later changes may have to be sent.
        self.unfinished = False
        self._bucket = bucket
        #: The vbuuids of the failover log when the stream was opened, newest first.
        self._branches = tuple(entry.vbuuid for entry in bucket.failover_log(vbucket))
        self._state_served = bucket.state(vbucket)
        self._on_disk_until = bucket.opened_with(vbucket)
        self._accepted = accepted
        self._output = output
        self._skip_deletions = skip_deletions and accepted.start == 0
        self._ignore_purged = ignore_purged
        #: Purges up to this seqno do not force this consumer to roll back.
        self._excused_until = purge_seqno
        self._marker_2_2 = marker_2_2
        #: Only the first snapshot of a stream from seqno 0 may be sent out of order.
        self._out_of_order = out_of_order if accepted.start == 0 else OutOfOrder.NO
        if output.sync_writes is not None:
            # Prepares that this consumer has already. If they were completed since, the commits and
            # aborts are read from disk.
            output.sync_writes.pending = {
                key: pending.seqno
                for key, pending in bucket.prepares(vbucket)
                if pending.seqno <= accepted.start
            }
        self._pending = memoryview(output.opening())
        self._backfill: Backfill | None = None
        self._ahead: VisibleEnd | None = None
        self._chunk = CHUNK
        #: The seqno before the packets that are pending, and how many bytes these were at first.
        self._pending_after = accepted.start
        self._pending_bytes = 0
        self._first_snapshot = True
        self._first_in_memory = True
        self._last_visible = 0
        #: By collection the seqno at which it was dropped; its older documents are not sent.
        self._dropped: dict[int, int] = {}
        #: Prepares up to this seqno were completed before the snapshot that is being sent was
        #: opened.
        self._completed_until = 0
        self._unacknowledged = 0
        self._are_acknowledged = acknowledged
        self._notifies = notifies
        self._hand_over = hand_over
        #: When a takeover first had nothing left to send, whether the vbucket is being handed over,
        #: and whether writes to it are held back.
        self._caught_up_at: float | None = None
        self._handing_over = False
        self._holds_writers = False
        self._takeover_states = (
            [VBucketState.PENDING, VBucketState.ACTIVE] if accepted.takeover else []
        )

    def _move(self, event: Event) -> None:
        self.state = next_state(PRODUCER, self.state, event)

    # ---- called by the connection --------------------------------------------------------

    @property
    def dead(self) -> bool:
        return self.state is State.DEAD and not self._pending

    @property
    def sent_until(self) -> int:
        """The seqno up to which the consumer can have received the vbucket from this stream."""
        return max(self.position, self._handed_over)

    @property
    def last_sent(self) -> int:
        """The last seqno that was sent; an estimate while a chunk is partly sent."""
        left = len(self._pending)
        if not left or not self._pending_bytes:
            return self.sent_until
        unsent = (self.sent_until - self._pending_after) * left / self._pending_bytes
        return self.sent_until - math.ceil(unsent)

    def take(self, window: SendWindow) -> memoryview:
        """Returns the next packets that the window allows, after one bounded step of work.

        Returns nothing if there is nothing to send, or if the step found nothing yet. In the second
        case `unfinished` is set.
        """
        self.unfinished = False
        if not self._pending:
            if self.state is State.DEAD or not window.is_open:
                return self._pending
            # Every stream of the connection keeps the packets that do not fit into the window, so a
            # chunk is not larger than the window.
            self._chunk = min(CHUNK, window.size or CHUNK)
            self._pending_after = self.sent_until
            packets = self._step()
            if self._output.sync_writes is not None:
                window.sent(self._output.sync_writes.take_surplus())
            self.unfinished = packets is not None
            self._pending = memoryview(packets or b"")
            self._pending_bytes = len(self._pending)
        cut = window.whole_packets(self._pending)
        taken, self._pending = self._pending[:cut], self._pending[cut:]
        window.sent(cut)
        self.bytes_sent += cut
        return taken

    def acknowledged(self, command: Command) -> None:
        """Called when the consumer acknowledged a snapshot marker or a state message."""
        if command is Command.SNAPSHOT_MARKER:
            self._unacknowledged = max(0, self._unacknowledged - 1)
        elif command is Command.SET_STREAM_STATE and self.state is State.TAKEOVER_WAIT:
            if not self._takeover_states:
                self.finish(StreamEndReason.OK)
            elif not self._handing_over:
                self._handing_over = True
                self._hand_over(self)

    def finish(self, reason: StreamEndReason) -> None:
        """Ends the stream: drops the packets that are not sent yet and sends the reason."""
        if self.state is not State.DEAD:
            self.abandon()
            self._pending = memoryview(self._output.ending(reason))

    def fail(self) -> None:
        """Ends the stream because the store failed, and sends that."""
        if self.state is not State.DEAD:
            with suppress(StoreError):  # what it has open may fail again
                self.abandon()
            self._pending = memoryview(self._output.ending(StreamEndReason.BACKFILL_FAILED))

    def abandon(self) -> None:
        """Ends the stream without sending a stream end."""
        self._move(Event.ENDED)
        self._hold_writers(held=False)
        self._pending = memoryview(b"")
        if self._backfill is not None:
            self._backfill.close()
            self._backfill = None
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    # ---- takeover ------------------------------------------------------------------------

    def hurry(self, now: float, patience: float) -> None:
        """Holds writes back if they have delayed a takeover by ``patience`` seconds."""
        if self.state is not State.TAKEOVER_SEND or self._holds_writers:
            return
        if self._caught_up_at is None:
            self._caught_up_at = now
        elif now - self._caught_up_at >= patience:
            self._hold_writers(held=True)

    def _hold_writers(self, *, held: bool) -> None:
        if held is not self._holds_writers:
            self._holds_writers = held
            self._bucket.hold_writes(self.vbucket, held=held)

    def become_dead(self) -> None:
        """Sets the vbucket dead. No node accepts writes until the consumer is active.

        The consumer is pending when this is called. Waits for the disk, so it must run in a thread.
        """
        self._bucket.set_state(self.vbucket, VBucketState.DEAD)

    def handed_over(self) -> None:
        """Called when the dead state is committed: the consumer can now be made active."""
        if self.state is State.TAKEOVER_WAIT:
            self._move(Event.HANDED_OVER)
            self._hold_writers(held=False)

    # ---- choosing what to send next ------------------------------------------------------

    def _step(self) -> bytes | bytearray | None:
        """Does one step of work and returns packets for the consumer.

        The packets are empty if all changes of the step were filtered out. None means that there is
        nothing left to do.
        """
        stats = self._bucket.vbucket_stats(self.vbucket)
        same_history = stats.vbuuid == self._branches[0]
        # A takeover changes the state itself, and the failover log does not change meanwhile.
        same_state = stats.state is self._state_served or self.is_takeover
        if not (same_history and same_state) and self.state is not State.DEAD:
            flushed = b"" if same_history else self._flush_message()
            return flushed + self._end(StreamEndReason.STATE_CHANGED)
        if self._backfill is not None:
            return self._go_on(self._backfill)
        if self._ahead is not None:
            return self._look_ahead(self._ahead, stats.purge_seqno)
        if self.state in (State.TAKEOVER_WAIT, State.DEAD):
            return None
        if self.position >= self.end:
            return self._end(StreamEndReason.OK)
        if self._notifies:
            moved = stats.high_seqno > self.position
            return self._end(StreamEndReason.OK) if moved else None
        if 0 < self.position < stats.purge_seqno and not self._is_excused(stats.purge_seqno):
            return self._end(StreamEndReason.ROLLBACK)
        if stats.high_seqno > self.position:
            self._completed_until = stats.high_completed_seqno
            return self._begin(stats.purge_seqno)
        return self._caught_up()

    def _flush_message(self) -> bytes:
        """Returns a flush message if the vbucket shares no vbuuid with this stream any more."""
        left = {entry.vbuuid for entry in self._bucket.failover_log(self.vbucket)}
        return b"" if left.intersection(self._branches) else self._output.flushed()

    def _is_excused(self, purge_seqno: int) -> bool:
        """Whether the consumer may continue from a position before the purge seqno.

        It may if it ignores purges, if that purge seqno was already there when its request was
        accepted, or if none of the collections in its filter has changed since its position. The
        collections of a scope can change meanwhile, so a consumer of a scope has to request the
        stream again.
        """
        if self._ignore_purged or purge_seqno <= self._excused_until:
            return True
        wanted = self._accepted.filter
        highs = self._bucket.collection_seqnos(self.vbucket)
        quiet = all(highs.get(one, 0) <= self.position for one in wanted.collections)
        if wanted.kind in (FilterKind.LEGACY, FilterKind.COLLECTIONS) and quiet:
            self._excused_until = purge_seqno
        return purge_seqno <= self._excused_until

    def _begin(self, purge_seqno: int) -> bytes | bytearray | None:
        """Starts the next snapshot."""
        legacy = self._accepted.filter.kind is FilterKind.LEGACY
        backfill = self._bucket.open_reader(self.vbucket, self.position)
        if legacy and (
            self._bucket.manifest.uid != 0 or self._skip_deletions or self._has_sync_writes
        ):
            backfill.close()
            self._ahead = VisibleEnd(self._bucket, self.vbucket, self.position, self._last_seen)
            return self._look_ahead(self._ahead, purge_seqno)
        self._dropped = self._drops_until(backfill.snapshot.end)
        return self._announce(backfill, backfill.snapshot.end, purge_seqno)

    def _drops_until(self, end: int) -> dict[int, int]:
        """Returns the drops of collections in a backfill whose documents are not erased yet.

        Changes that follow a backfill are sent as they were written. A consumer of durable writes
        gets all documents: what it has prepared must be completed.
        """
        first = self._first_snapshot and self._output.sync_writes is None
        if not first or self._bucket.manifest.uid == 0:
            return {}
        drops = self._bucket.drops_to_erase(self.vbucket)
        return {collection: seqno for collection, seqno in drops.items() if seqno <= end}

    @property
    def _has_sync_writes(self) -> bool:
        """Whether a snapshot opened before this call may have prepares, commits or aborts."""
        sync_writes = self._output.sync_writes
        waits_for_commits = sync_writes is not None and bool(sync_writes.pending)
        return waits_for_commits or self._bucket.last_sync_write(self.vbucket) > self.position

    def _look_ahead(self, ahead: VisibleEnd, purge_seqno: int) -> bytes | bytearray | None:
        """Starts the next snapshot once the last seqno in it that this consumer gets is known."""
        if ahead.end is None:
            self.bytes_scanned += ahead.step(CHUNK)
        if ahead.end is None:
            return b""
        self._ahead = None
        if ahead.end:
            return self._announce(ahead.backfill, ahead.end, purge_seqno)
        # The snapshot has nothing for this consumer, and no message can say so.
        end, moved = ahead.backfill.snapshot.end, ahead.backfill.snapshot.end > self.position
        ahead.close()
        self.position = end
        if self._output.emptied:
            return self._end(StreamEndReason.FILTER_EMPTY)
        return b"" if moved else None

    def _announce(self, backfill: Backfill, end: int, purge_seqno: int) -> bytes | None:
        """Returns the snapshot marker and the first changes of a snapshot."""
        chunk = backfill.read(self._chunk)
        if chunk is None:
            backfill.close()
            return None
        self._backfill = backfill
        if not self._first_snapshot and self.state is State.BACKFILLING:
            self._move(Event.CAUGHT_UP)  # changes written since the backfill are the tail
        start = canonical.seqno_of(chunk.frames)
        if self._first_snapshot:
            start = min(self._accepted.snapshot.start, start)
        if self._out_of_order is not OutOfOrder.NO:
            marker = self._output.out_of_order(OsoFlag.START)
        else:
            marker = self._marker(start, end, purge_seqno)
        self._first_snapshot = False
        return marker + self._changes(chunk).packets

    def _marker(self, start: int, end: int, purge_seqno: int) -> bytes:
        """Returns a snapshot marker, with the prepare seqnos for a replica with sync writes."""
        purged = purge_seqno if self._marker_2_2 else None
        sync_writes = self._output.sync_writes
        if sync_writes is None:
            flags = self._marker_flags(end)
            return self._output.snapshot_start(start, end, flags, purge_seqno=purged)
        commits = None
        if self.state is not State.BACKFILLING:
            commits = commits_until(self._bucket, self.vbucket, sync_writes.pending, end)
        sync_writes.commits = commits or {}
        flags = self._marker_flags(end, from_disk=commits is None)
        stats = self._bucket.vbucket_stats(self.vbucket)
        return self._output.snapshot_start(
            start,
            end,
            flags,
            purge_seqno=purged,
            visible_seqno=self._bucket.visible_until(self.vbucket, end),
            completed_seqno=min(self._completed_until, end) if commits is None else None,
            prepared_seqno=min(stats.high_prepared_seqno, end),
        )

    def _go_on(self, backfill: Backfill) -> bytes | bytearray:
        chunk = backfill.read(self._chunk)
        if chunk is not None:
            return self._changes(chunk).packets
        self.position = backfill.snapshot.end
        backfill.close()
        self._backfill = None
        self._skip_deletions = False
        if self._out_of_order is OutOfOrder.NO:
            closing = self._output.snapshot_end(self.position, self._last_visible)
            if self._output.emptied:
                closing += self._end(StreamEndReason.FILTER_EMPTY)
            return closing
        sends_advanced = self._out_of_order is OutOfOrder.YES_WITH_SEQNO_ADVANCED
        self._out_of_order = OutOfOrder.NO
        advanced = self._output.seqno_advanced(self.position) if sends_advanced else b""
        return advanced + self._output.out_of_order(OsoFlag.END)

    def _changes(self, chunk: FrameChunk) -> StoredChanges:
        changes = self._shaped(chunk)
        if changes.count and self.state is State.IN_MEMORY:
            self.oldest_cas = cas_of(chunk.frames)
        self.bytes_scanned += len(chunk.frames)
        self.messages_sent += changes.count
        self._handed_over = chunk.last_seqno
        self._last_visible = max(self._last_visible, changes.last_seqno)
        return changes

    def _last_seen(self, chunk: FrameChunk) -> int:
        """Returns the last seqno in a chunk that this consumer gets."""
        sync_writes = self._output.sync_writes
        before = {} if sync_writes is None else dict(sync_writes.pending)
        last = self._shaped(chunk).last_seqno
        if sync_writes is not None:  # undo: nothing was sent
            sync_writes.pending = before
            sync_writes.take_surplus()
        return last

    def _shaped(self, chunk: FrameChunk) -> StoredChanges:
        chunk = without_dropped(chunk, self._dropped)
        if not chunk.frames:
            return StoredChanges(b"", 0, 0)
        try:
            return self._output.changes(
                chunk.frames,
                chunk.last_seqno,
                skip_deletions=self._skip_deletions,
                has_sync_writes=self._has_sync_writes,
            )
        except (ValueError, DecodeError, EncodeError) as problem:
            raise StoreDamaged(
                path=self._bucket.name,
                problem=f"vbucket {self.vbucket} has a change up to seqno {chunk.last_seqno} that "
                f"cannot be sent: {problem}",
            ) from problem

    def _marker_flags(self, end: int, *, from_disk: bool = False) -> MarkerFlag:
        """Returns the flags of the marker of a snapshot that ends at ``end``.

        Changes written since the bucket was opened count as in memory. A first snapshot with
        changes from both disk and memory is marked as one from memory, as on Couchbase Server.
        """
        is_old = self.state is State.BACKFILLING and end <= self._on_disk_until
        if from_disk or is_old:
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

    def _caught_up(self) -> bytes | None:
        if self.state in (State.BACKFILLING, State.IN_MEMORY):
            takeover = bool(self._takeover_states)
            self._move(Event.CAUGHT_UP_FOR_TAKEOVER if takeover else Event.CAUGHT_UP)
        if not self._takeover_states or self._unacknowledged:
            return None
        packets = self._output.state(self._takeover_states.pop(0))
        if self._are_acknowledged:
            self._move(Event.STATE_SENT)
        elif self._takeover_states:  # drafts do not respond: sent counts as done
            self._move(Event.STATE_SENT)
            self._hand_over(self)
        else:
            packets += self._end(StreamEndReason.OK)
        return packets

    def _end(self, reason: StreamEndReason) -> bytes:
        self.abandon()
        return self._output.ending(reason)
