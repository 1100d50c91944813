"""One stream of a consumer: the options it is requested with, and how far its negotiation is."""

from __future__ import annotations

import json
from dataclasses import dataclass

from ..model import NO_END, FailoverLog, Snapshot
from ..wire import messages as m
from ..wire.dialects import Dialect, SnapshotStyle
from ..wire.names import StreamFlag
from .row_rules import Stream
from .stream_position import Position, PositionTracker
from .stream_states import CONSUMER, ConsumerEvent, next_state
from .stream_states import ConsumerState as State


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """The parameters of a stream request."""

    end: int = NO_END
    flags: StreamFlag = StreamFlag.NONE
    #: The collection filter, as a JSON object.
    filter: bytes = b""
    #: Accept only the branch that the position names, even if the producer has a later one.
    same_branch: bool = False
    #: Request the failover log before a stream that does not start at seqno 0. A consumer that can
    #: go back to any seqno by itself does not need this: it receives the rollback seqno in a
    #: `RolledBack` event that was not carried out (``refused``), and opens the stream again.
    asks_log: bool = True
    #: The consumer group's name, which drafts 002 and 000 send in a request.
    group: str = "upriver"


class RequestedStream(Stream):
    """One stream, and how far its negotiation is."""

    __slots__ = ("options", "served", "state")

    def __init__(self, vbucket: int, opaque: int, position: Position, options: StreamOptions):
        super().__init__(vbucket, opaque, PositionTracker(position))
        self.options = options
        self.state = State.NEW
        #: The last failover log that the producer sent for this vbucket.
        self.served = FailoverLog(())

    def move(self, event: ConsumerEvent) -> None:
        self.state = next_state(CONSUMER, self.state, event)

    def request(self, dialect: Dialect, *, names_purge_seqno: bool) -> m.StreamRequest:
        """Returns the request for the changes after the stream's position."""
        self.move(ConsumerEvent.REQUEST)
        names_snapshots = dialect.snapshot_style is SnapshotStyle.RANGE_MARKER
        position, options = self.tracker.position(), self.options
        offset = position.offset
        self.skip_until = 0
        start, snapshot = offset.seqno, offset.snapshot
        if not names_snapshots or snapshot.end == NO_END:
            # A request cannot name this snapshot. Read it again from its start, and skip the rows
            # that were emitted before.
            start = position.last_boundary
            snapshot = Snapshot(start, start)
            self.skip_until = offset.seqno if start != offset.seqno else 0
        return m.StreamRequest(
            vbucket=self.vbucket,
            opaque=self.opaque,
            start=start,
            end=max(options.end, start),
            vbuuid=offset.vbuuid if start else 0,
            snapshot_start=snapshot.start if names_snapshots else None,
            snapshot_end=snapshot.end if names_snapshots else None,
            high_seqno=None if names_snapshots else _branch_start(position),
            group="" if dialect.opens_connections else options.group,
            flags=options.flags,
            filter=_filter(options, position.purge_seqno if names_purge_seqno else 0, start),
        )


def _filter(options: StreamOptions, purge_seqno: int, start: int) -> bytes:
    """Returns the collection filter of a request, with the purge seqno if it is needed.

    A consumer below the producer's purge seqno may continue if it names that same purge seqno.
    """
    if not 0 < start < purge_seqno:
        return options.filter
    chosen = json.loads(options.filter or b"{}")
    return json.dumps({**chosen, "purge_seqno": str(purge_seqno)}).encode()


def _branch_start(position: Position) -> int:
    """Returns the seqno at which the consumer's branch began; the oldest drafts request it."""
    return next((e.seqno for e in position.log if e.vbuuid == position.offset.vbuuid), 0)
