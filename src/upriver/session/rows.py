"""The rules that the rows of a stream must keep, checked for many at a time.

Rows of one stream that follow each other are a run: its first row must come after the last one of
the run before, its rows must rise, its last must lie within the snapshot that was announced. All
that is arithmetic on columns; Python sees one run at a time. What it lets through is gathered
into `Rows` events that say how far each vbucket is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from ..errors import StreamRuleBroken
from ..model import NO_END, Snapshot
from ..wire.columns import SCHEMA
from .events import Event, Rows, Step
from .position import PositionTracker

__all__ = ["RowCheck", "Stream", "broken_rule"]

_NO_ROWS: Final = pa.RecordBatch.from_pylist([], schema=SCHEMA)


def broken_rule(rule: str, vbucket: int | None, detail: str) -> StreamRuleBroken:
    return StreamRuleBroken(rule=rule, vbucket=vbucket, detail=detail)


class Stream:
    """What the rows of one stream are held against."""

    __slots__ = (
        "announced",
        "flowing",
        "opaque",
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
        #: Whether the producer has accepted it, so that rows may come.
        self.flowing = False
        #: Whether it has begun a snapshot; the one of an earlier connection does not count.
        self.announced = False
        #: Rows up to here were handed out before, and come again.
        self.skip_until = 0
        #: The last seqno that came, handed out or not.
        self.seen = 0
        #: A marker asked to be answered once its snapshot is complete.
        self.owes_ack = False

    def begin_snapshot(self, snapshot: Snapshot) -> None:
        seqno = self.tracker.seqno
        if snapshot.start > snapshot.end:
            detail = f"a marker has start {snapshot.start} above end {snapshot.end}"
            raise broken_rule("marker range", self.vbucket, detail)
        if not self.skip_until and snapshot.start < seqno and snapshot.end <= seqno:
            detail = f"a marker {snapshot.start}..{snapshot.end} came after seqno {seqno}"
            raise broken_rule("marker order", self.vbucket, detail)
        self._announce(snapshot)

    def open_snapshot(self) -> None:
        """A snapshot begins whose end nobody says."""
        self._announce(Snapshot(self.tracker.last_boundary, NO_END))

    def _announce(self, snapshot: Snapshot) -> None:
        self.tracker.snapshot_began(snapshot)
        self.announced = True

    def check_next(self, seqno: int) -> None:
        """Whether a row may come now."""
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
    """Checks chunk after chunk, and gathers what may be handed out.

    ``is_late`` says of an opaque without a stream whether it was one's once: its rows were still
    under way when it was closed, and are dropped.
    """

    def __init__(self, streams: Mapping[int, Stream], is_late: Callable[[int], bool]) -> None:
        self._streams = streams
        self._is_late = is_late
        self._batch = _NO_ROWS
        self._seqnos = self._opaques = self._vbuckets = np.empty(0, np.uint64)
        #: Where runs end at the latest, and the first of these that is not behind us.
        self._edges: list[int] = []
        self._edge = 0
        #: The next row to check, and the first one that was neither handed out nor dropped.
        self._at = self._kept_from = 0
        self._counted_left = 0
        self._pieces: list[Rows] = []
        self._steps: list[Step] = []
        #: Streams whose snapshot became complete and whose producer waits to hear so.
        self.owed: list[Stream] = []

    def begin(self, batch: pa.RecordBatch, counted: int) -> None:
        """Takes the rows of a chunk, and what their packets take of the window."""
        self._batch, self._counted_left = batch, counted
        self._at = self._kept_from = self._edge = 0
        rows = batch.num_rows
        if not rows:
            return
        seqnos, opaques, vbuckets = (
            batch.column(name).to_numpy() for name in ("seqno", "opaque", "vbucket")
        )
        # A seqno may fall where one stream follows another. Where it falls inside a stream that is
        # a fault, and a run that begins there is found out like any other.
        turns = (
            (opaques[1:] != opaques[:-1])
            | (vbuckets[1:] != vbuckets[:-1])
            | (seqnos[1:] <= seqnos[:-1])
        )
        self._seqnos, self._opaques, self._vbuckets = seqnos, opaques, vbuckets
        self._edges = [*(np.flatnonzero(turns) + 1).tolist(), rows]

    def rows_until(self, stop: int) -> None:
        """Checks the rows before ``stop``, where a message of another kind stands."""
        while self._at < stop:
            while self._edges[self._edge] <= self._at:
                self._edge += 1
            self._run(self._at, min(stop, self._edges[self._edge]))

    def advanced(self, stream: Stream, seqno: int) -> None:
        """The producer says that nothing up to ``seqno`` is for this reader."""
        if seqno <= stream.skip_until:
            stream.seen = seqno
            return
        stream.check_next(seqno)
        self._step(stream, seqno)

    def closed(self, stream: Stream) -> None:
        """A snapshot is complete that did not say where it ends."""
        tracker = stream.tracker
        if stream.seen < stream.skip_until:
            return  # it was the first part of one that was read further before
        tracker.snapshot_ended()
        step = Step(stream.vbucket, self._at, tracker.seqno, tracker.snapshot, closes=True)
        self._steps.append(step)

    def flush(self, events: list[Event]) -> None:
        """Hands out what was let through so far."""
        self._cut(self._at)
        events += self._pieces
        self._pieces = []

    def finish(self, events: list[Event]) -> int:
        """Hands out the rest of the chunk; returns the counted bytes that nobody gets."""
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
        if self._seqnos[start] <= stream.skip_until:
            again = self._up_to(stream.skip_until, start, stop)
            self._drop(start, again)
            start = again
        if start < stop:
            stream.check_next(int(self._seqnos[start]))
            # only what is known to be good is behind us: a cut would hand it out
            self._at = self._up_to(stream.tracker.snapshot.end, start, stop)
            self._step(stream, int(self._seqnos[self._at - 1]))
            if self._at < stop:
                stream.check_next(int(self._seqnos[self._at]))

    def _up_to(self, seqno: int, start: int, stop: int) -> int:
        """The first row of a run that is above a seqno, or its end."""
        if self._seqnos[stop - 1] <= seqno:
            return stop
        return start + int(np.searchsorted(self._seqnos[start:stop], np.uint64(seqno), "right"))

    def _step(self, stream: Stream, seqno: int) -> None:
        tracker = stream.tracker
        tracker.advanced(seqno)
        self._steps.append(Step(stream.vbucket, self._at, seqno, tracker.snapshot))
        if stream.owes_ack and tracker.is_consistent:
            stream.owes_ack = False
            self.owed.append(stream)

    def _drop(self, start: int, stop: int) -> None:
        self._cut(start)
        self._at = self._kept_from = stop

    def _cut(self, stop: int, counted: int | None = None) -> None:
        """Makes a piece of the rows before ``stop``; it gets its share of the counted bytes."""
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
