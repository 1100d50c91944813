"""Checks the rows of streams against the protocol rules, many rows at a time.

Consecutive rows of one stream form a run. The first row of a run must follow the last row of the
run before, seqnos must increase within it, and its last row must lie within the announced
snapshot. These checks are arithmetic on columns; the Python code runs once per run. Valid rows are
collected into `Rows` events with the position of each vbucket.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from ..errors import StreamRuleBroken
from ..model import NO_END, Snapshot
from ..wire.columns.result import NOTHING
from .consumer_events import Event, Rows, Step
from .stream_position import PositionTracker

_NO_ROWS: Final = NOTHING.batch


def broken_rule(rule: str, vbucket: int | None, detail: str) -> StreamRuleBroken:
    return StreamRuleBroken(rule=rule, vbucket=vbucket, detail=detail)


class Stream:
    """The state of one stream against which its rows are checked."""

    __slots__ = (
        "announced",
        "flowing",
        "heard",
        "implied",
        "opaque",
        "out_of_order",
        "owes_ack",
        "seen",
        "skip_until",
        "tracker",
        "vbucket",
    )

    def __init__(self, vbucket: int, opaque: int, tracker: PositionTracker) -> None:
        self.vbucket = vbucket
        self.opaque = opaque
        self.tracker = tracker
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
        #: The highest seqno of the current out-of-order snapshot; None outside of one.
        self.out_of_order: int | None = None
        #: Whether the marker requested an acknowledgement when its snapshot is complete.
        self.owes_ack = False

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
        self.tracker.snapshot_began(snapshot, purge_seqno)
        self.announced = True

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


class RowCheck:
    """Checks one chunk after the other, and collects the valid rows.

    ``is_late`` returns whether an opaque without a stream belonged to one before. Rows of such a
    stream were still in transit when it was closed, and are dropped.
    """

    def __init__(self, streams: Mapping[int, Stream], is_late: Callable[[int], bool]) -> None:
        self._streams = streams
        self._is_late = is_late
        self._batch = _NO_ROWS
        self._seqnos = self._opaques = self._vbuckets = np.empty(0, np.uint64)
        #: Row indexes at which a run ends at the latest, and the index of the next one to reach.
        self._edges: list[int] = []
        self._edge = 0
        #: The next row to check, and the first row that was neither emitted nor dropped.
        self._at = self._kept_from = 0
        self._counted_left = 0
        self._pieces: list[Rows] = []
        self._steps: list[Step] = []
        #: Streams whose snapshot became complete and whose marker requested an acknowledgement.
        self.owed: list[Stream] = []

    def begin(self, batch: pa.RecordBatch, counted: int) -> None:
        """Begins a chunk. ``counted`` is the part of the window that its rows occupy."""
        self._batch, self._counted_left = batch, counted
        self._at = self._kept_from = self._edge = 0
        rows = batch.num_rows
        if not rows:
            return
        seqnos, opaques, vbuckets = (
            batch.column(name).to_numpy() for name in ("seqno", "opaque", "vbucket")
        )
        # A lower seqno is correct where another stream begins. Within one stream it breaks a
        # rule: the run that begins there fails its check like any other.
        turns = (
            (opaques[1:] != opaques[:-1])
            | (vbuckets[1:] != vbuckets[:-1])
            | (seqnos[1:] <= seqnos[:-1])
        )
        self._seqnos, self._opaques, self._vbuckets = seqnos, opaques, vbuckets
        self._edges = [*(np.flatnonzero(turns) + 1).tolist(), rows]

    def rows_until(self, stop: int) -> None:
        """Checks the rows before ``stop``, the index at which another message follows."""
        while self._at < stop:
            while self._edges[self._edge] <= self._at:
                self._edge += 1
            self._run(self._at, min(stop, self._edges[self._edge]))

    def advanced(self, stream: Stream, seqno: int) -> None:
        """Advances a stream to ``seqno``: the producer has no rows to send up to there."""
        stream.heard += 1
        if stream.out_of_order is not None:
            stream.out_of_order = max(stream.out_of_order, seqno)
            return
        if seqno <= stream.skip_until:
            stream.seen = seqno
            return
        stream.check_next(seqno)
        self._step(stream, seqno)

    def out_of_order_ended(self, stream: Stream) -> None:
        """Completes an out-of-order snapshot and advances the stream to its highest seqno."""
        high, stream.out_of_order = stream.out_of_order, None
        if high is None:
            raise broken_rule("out of order", stream.vbucket, "one ended that had not begun")
        if high:
            stream.tracker.snapshot_began(Snapshot(high, high))
            self._step(stream, high)

    def closed(self, stream: Stream) -> None:
        """Completes a snapshot whose marker did not give its end."""
        tracker = stream.tracker
        if stream.seen < stream.skip_until:
            return  # only a first part of what was read before was sent again
        tracker.snapshot_ended()
        step = Step(stream.vbucket, self._at, tracker.seqno, tracker.snapshot, closes=True)
        self._steps.append(step)

    def flush(self, events: list[Event]) -> None:
        """Emits the rows that were checked so far."""
        self._cut(self._at)
        events += self._pieces
        self._pieces = []

    def finish(self, events: list[Event]) -> int:
        """Emits the rest of the chunk. Returns the counted bytes that no event carries."""
        left = self._counted_left
        if self._kept_from < self._at:
            self._cut(self._at, left)
            left = 0
        self.flush(events)
        self._batch = _NO_ROWS
        return left

    def _run(self, start: int, stop: int) -> None:
        opaque = int(self._opaques[start])
        stream = self._streams.get(opaque)
        if stream is None:
            if not self._is_late(opaque):
                raise broken_rule("opaque", None, f"a row has the opaque {opaque}")
            self._drop(start, stop)
            return
        if self._vbuckets[start] != stream.vbucket:
            detail = f"a row is of vbucket {self._vbuckets[start]}"
            raise broken_rule("vbucket", stream.vbucket, detail)
        stream.seen = int(self._seqnos[stop - 1])
        stream.heard += 1
        if stream.out_of_order is not None:
            self._hold(stream, start, stop)
            return
        if self._seqnos[start] <= stream.skip_until:
            again = self._up_to(stream.skip_until, start, stop)
            self._drop(start, again)
            start = again
        if start < stop:
            stream.check_next(int(self._seqnos[start]))
            # `_at` may pass only rows that were checked, because `_cut` emits the rows before it.
            self._at = self._up_to(stream.tracker.snapshot.end, start, stop)
            self._step(stream, int(self._seqnos[self._at - 1]))
            if self._at < stop:
                stream.check_next(int(self._seqnos[self._at]))

    def _hold(self, stream: Stream, start: int, stop: int) -> None:
        """Emits rows of an out-of-order snapshot. The stream's position does not move."""
        if not stream.flowing:
            raise broken_rule("message", stream.vbucket, "rows came before the stream did")
        stream.out_of_order = max(stream.out_of_order or 0, int(self._seqnos[start:stop].max()))
        self._at = stop
        tracker = stream.tracker
        step = Step(stream.vbucket, stop, tracker.seqno, tracker.snapshot, holds=True)
        self._steps.append(step)

    def _up_to(self, seqno: int, start: int, stop: int) -> int:
        """Returns the first row of a run above a seqno, or the end of the run."""
        if self._seqnos[stop - 1] <= seqno:
            return stop
        return start + int(np.searchsorted(self._seqnos[start:stop], np.uint64(seqno), "right"))

    def _step(self, stream: Stream, seqno: int) -> None:
        tracker = stream.tracker
        tracker.advanced(seqno)
        purge_seqno = tracker.purge_seqno
        step = Step(stream.vbucket, self._at, seqno, tracker.snapshot, purge_seqno=purge_seqno)
        self._steps.append(step)
        if stream.owes_ack and tracker.is_consistent:
            stream.owes_ack = False
            self.owed.append(stream)

    def _drop(self, start: int, stop: int) -> None:
        self._cut(start)
        self._at = self._kept_from = stop

    def _cut(self, stop: int, counted: int | None = None) -> None:
        """Makes an event of the rows before ``stop``, with their share of the counted bytes."""
        start, rows = self._kept_from, self._batch.num_rows
        self._kept_from = stop
        if start == stop and not self._steps:
            return
        if counted is None:
            counted = self._counted_left * (stop - start) // max(1, rows - start)
        self._counted_left -= counted
        piece = self._batch if stop - start == rows else self._batch.slice(start, stop - start)
        steps = tuple(step._replace(stop=step.stop - start) for step in self._steps)
        self._steps = []
        self._pieces.append(Rows(piece, steps, counted))
