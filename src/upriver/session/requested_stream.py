"""One stream of a consumer: its request, its negotiation, and the rules of its seqnos."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from ..errors import StreamRuleBroken
from ..model import NO_END, FailoverLog, Snapshot
from ..wire import messages as m
from ..wire.dialects import Dialect, SnapshotStyle
from ..wire.protocol_enums import StreamFlag
from .stream_position import Position, PositionTracker
from .stream_states import CONSUMER, ConsumerEvent, next_state
from .stream_states import ConsumerState as State

#: A filter may leave nothing of some snapshots in a row; a server that sends only markers would
#: otherwise be listened to for ever.
MOST_EMPTY_SNAPSHOTS: Final = 10_000


def broken_rule(rule: str, vbucket: int | None, detail: str) -> StreamRuleBroken:
    return StreamRuleBroken(rule=rule, vbucket=vbucket, detail=detail)


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
    #: The group id, which drafts 002 and 000 send in a request: there a connection has no name.
    group: str = "upriver"


class RequestedStream:
    """One stream: how far its negotiation is, and the state against which its rows are checked."""

    __slots__ = (
        "announced",
        "emptied_at",
        "empty_snapshots",
        "flowing",
        "heard",
        "implied",
        "opaque",
        "options",
        "out_of_order",
        "owes_ack",
        "seen",
        "served",
        "skip_until",
        "state",
        "tracker",
        "vbucket",
    )

    def __init__(self, vbucket: int, opaque: int, position: Position, options: StreamOptions):
        self.vbucket = vbucket
        self.opaque = opaque
        self.options = options
        self.state = State.NEW
        #: The last failover log that the producer sent for this vbucket.
        self.served = FailoverLog(())
        self.tracker = PositionTracker(position)
        #: Whether the producer has accepted the stream, so that rows may come.
        self.flowing = False
        #: Whether a snapshot began on this connection. One of an earlier connection does not count.
        self.announced = False
        #: Whether the current snapshot is assumed: no marker began it, and it may not exist.
        self.implied = False
        #: Rows up to this seqno were emitted before, and are sent again.
        self.skip_until = 0
        #: The last seqno that arrived, emitted or not.
        self.seen = 0
        #: Increases with every message of the stream, so that a silent stream can be detected.
        self.heard = 0
        #: Snapshots that began since something arrived, and what `heard` was then.
        self.empty_snapshots = 0
        self.emptied_at = 0
        #: The highest seqno of the current out-of-order snapshot; None outside of one.
        self.out_of_order: int | None = None
        #: Whether the marker requested an acknowledgement when its snapshot is complete.
        self.owes_ack = False

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
            filter=_filter(
                options.filter,
                start,
                purge_seqno=position.purge_seqno if names_purge_seqno else 0,
                manifest_uid=position.manifest_uid if dialect.collections else 0,
            ),
        )

    # ---- rules of snapshots and seqnos -----------------------------------------------------

    def begin_snapshot(self, snapshot: Snapshot, purge_seqno: int | None = None) -> None:
        if self.out_of_order is not None:
            detail = "a marker came within a snapshot that is out of order"
            raise broken_rule("out of order", self.vbucket, detail)
        seqno = self.tracker.seqno
        if snapshot.start > snapshot.end:
            detail = f"a marker has start {snapshot.start} above end {snapshot.end}"
            raise broken_rule("marker range", self.vbucket, detail)
        if not self.skip_until and snapshot.start < seqno and snapshot.end <= seqno:
            detail = f"a marker {snapshot.start}..{snapshot.end} came after seqno {seqno}"
            raise broken_rule("marker order", self.vbucket, detail)
        self._announce(snapshot, purge_seqno)

    def open_snapshot(self) -> None:
        """Begins a snapshot without a known end."""
        self._announce(Snapshot(self.tracker.last_boundary, NO_END))

    def begin_out_of_order(self) -> None:
        """Begins an out-of-order snapshot. Only a stream from seqno 0 may have one."""
        if self.tracker.seqno or self.out_of_order is not None:
            detail = f"a snapshot out of order began at seqno {self.tracker.seqno}"
            raise broken_rule("out of order", self.vbucket, detail)
        self.out_of_order = 0

    def _announce(self, snapshot: Snapshot, purge_seqno: int | None = None) -> None:
        if self.heard != self.emptied_at:
            self.empty_snapshots, self.emptied_at = 0, self.heard
        self.empty_snapshots += 1
        if self.empty_snapshots > MOST_EMPTY_SNAPSHOTS:
            detail = f"{MOST_EMPTY_SNAPSHOTS} snapshots in a row have nothing"
            raise broken_rule("empty snapshots", self.vbucket, detail)
        self.tracker.snapshot_began(snapshot, purge_seqno)
        self.announced = True

    def flushed(self) -> None:
        """Everything up to here was deleted; what follows belongs to an empty vbucket."""
        self.tracker.emptied()
        self.skip_until = self.seen = 0

    def check_next(self, seqno: int) -> None:
        """Raises if a row with this seqno breaks a rule."""
        snapshot = self.tracker.snapshot
        if not self.announced:
            raise broken_rule("snapshot", self.vbucket, f"seqno {seqno} came before any marker")
        if seqno <= self.tracker.seqno:
            detail = f"seqno {seqno} came after {self.tracker.seqno}"
            raise broken_rule("seqno order", self.vbucket, detail)
        if not snapshot.start <= seqno <= snapshot.end:
            detail = f"seqno {seqno} is not in {snapshot.start}..{snapshot.end}"
            raise broken_rule("snapshot", self.vbucket, detail)


def _filter(chosen: bytes, start: int, *, purge_seqno: int, manifest_uid: int) -> bytes:
    """Returns the collection filter of a request, with what a consumer that resumes has seen.

    That is the newest collections manifest, and the purge seqno if it is needed: a consumer below
    the producer's purge seqno may continue if it names that same purge seqno.
    """
    seen: dict[str, str] = {}
    if start and manifest_uid:
        seen["uid"] = f"{manifest_uid:x}"
    if 0 < start < purge_seqno:
        seen["purge_seqno"] = str(purge_seqno)
    return json.dumps({**json.loads(chosen or b"{}"), **seen}).encode() if seen else chosen


def _branch_start(position: Position) -> int:
    """Returns the seqno at which the consumer's branch began; the oldest drafts request it."""
    return next((e.seqno for e in position.log if e.vbuuid == position.offset.vbuuid), 0)
