"""Checks the rows of streams against the protocol rules, many rows at a time.

Consecutive rows of one stream form a run. The first row of a run must follow the last row of the
run before, seqnos must increase within it, and its last row must lie within the announced
snapshot. These checks are arithmetic on columns; the Python code runs once per run. Valid rows are
collected into `Rows` events with the position of each vbucket.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..model import Snapshot
from ..wire.columns.result import numbers
from .consumer_events import Event, Rows, Step
from .inbound_rows import RowChunk
from .requested_stream import RequestedStream, broken_rule


class RowCheck:
    """Checks the rows of one chunk, and appends those that keep the rules to ``events``.

    The caller alternates `check_until` with the messages between the rows, and calls `finish` at
    the end, also after a broken rule. ``refuse`` is called with the opaque and the operations of
    rows that belong to no stream: they are dropped.
    """

    __slots__ = (
        "_at",
        "_batch",
        "_counted_left",
        "_edge",
        "_edges",
        "_kept_from",
        "_opaques",
        "_refuse",
        "_seqnos",
        "_steps",
        "_streams",
        "_vbuckets",
        "events",
        "owed",
    )

    def __init__(
        self,
        chunk: RowChunk,
        streams: Mapping[int, RequestedStream],
        refuse: Callable[[int, npt.NDArray[Any]], None],
        events: list[Event],
    ) -> None:
        self._streams = streams
        self._refuse = refuse
        #: Events of the whole read: those of earlier chunks come first.
        self.events = events
        #: Streams whose snapshot became complete and whose marker requested an acknowledgement.
        self.owed: list[RequestedStream] = []
        self._batch = batch = chunk.batch
        #: The part of the flow-control window that the rows occupy which were not emitted yet.
        self._counted_left = chunk.rows_counted
        #: The next row to check, and the first row that was neither emitted nor dropped.
        self._at = self._kept_from = 0
        #: Positions of the rows from `_kept_from` on; they count rows from there.
        self._steps: list[Step] = []
        if not batch.num_rows:
            return
        seqnos, opaques, vbuckets = (
            numbers(batch.column(name)) for name in ("seqno", "opaque", "vbucket")
        )
        # A lower seqno is correct where another stream begins. Within one stream it breaks a
        # rule: the run that begins there fails its check like any other.
        turns = (
            (opaques[1:] != opaques[:-1])
            | (vbuckets[1:] != vbuckets[:-1])
            | (seqnos[1:] <= seqnos[:-1])
        )
        self._seqnos, self._opaques, self._vbuckets = seqnos, opaques, vbuckets
        #: Row indexes at which a run ends at the latest, and the index of the next one to reach.
        self._edges = [*(np.flatnonzero(turns) + 1).tolist(), batch.num_rows]
        self._edge = 0

    # ---- rows ----------------------------------------------------------------------------

    def check_until(self, stop: int) -> None:
        """Checks the rows before ``stop``, the index at which another message follows."""
        while (start := self._at) < stop:
            while self._edges[self._edge] <= start:
                self._edge += 1
            end = min(stop, self._edges[self._edge])  # of the run that begins here
            opaque = int(self._opaques[start])
            stream = self._streams.get(opaque)
            if stream is None:
                ops = self._batch.column("op")
                assert isinstance(ops, pa.DictionaryArray)
                self._refuse(opaque, numbers(ops.indices)[start:end])
                self._drop(start, end)
                continue
            if self._vbuckets[start] != stream.vbucket:
                detail = f"a row is of vbucket {self._vbuckets[start]}"
                raise broken_rule("vbucket", stream.vbucket, detail)
            stream.seen = int(self._seqnos[end - 1])
            stream.heard += 1
            if stream.out_of_order is not None:
                self._hold(stream, start, end)
                continue
            if self._seqnos[start] <= stream.skip_until:
                again = self._up_to(stream.skip_until, start, end)
                self._drop(start, again)
                start = again
            if start < end:
                stream.check_next(int(self._seqnos[start]))
                # `_at` may pass only rows that were checked: `_cut` emits the rows before it.
                self._at = self._up_to(stream.tracker.snapshot.end, start, end)
                self._advance(stream, int(self._seqnos[self._at - 1]))
                if self._at < end:
                    stream.check_next(int(self._seqnos[self._at]))

    def _hold(self, stream: RequestedStream, start: int, stop: int) -> None:
        """Emits rows of an out-of-order snapshot. The stream's position does not move."""
        if not stream.flowing:
            raise broken_rule("message", stream.vbucket, "rows came before the stream did")
        stream.out_of_order = max(stream.out_of_order or 0, int(self._seqnos[start:stop].max()))
        self._at = stop
        tracker, rows = stream.tracker, stop - self._kept_from
        self._steps.append(Step(stream.vbucket, rows, tracker.seqno, tracker.snapshot, holds=True))

    def _up_to(self, seqno: int, start: int, stop: int) -> int:
        """Returns the first row of a run above a seqno, or the end of the run."""
        if self._seqnos[stop - 1] <= seqno:
            return stop
        return start + int(np.searchsorted(self._seqnos[start:stop], np.uint64(seqno), "right"))

    def _advance(self, stream: RequestedStream, seqno: int) -> None:
        """Moves a stream's position to ``seqno``, and notes it as a step of the rows so far."""
        tracker = stream.tracker
        tracker.advanced(seqno)
        rows, snapshot = self._at - self._kept_from, tracker.snapshot
        step = Step(stream.vbucket, rows, seqno, snapshot, purge_seqno=tracker.purge_seqno)
        self._steps.append(step)
        if stream.owes_ack and tracker.is_consistent:
            stream.owes_ack = False
            self.owed.append(stream)

    # ---- messages between rows -----------------------------------------------------------

    def advanced(self, stream: RequestedStream, seqno: int) -> None:
        """Advances a stream to ``seqno``: the producer has no rows to send up to there."""
        stream.heard += 1
        if stream.out_of_order is not None:
            stream.out_of_order = max(stream.out_of_order, seqno)
            return
        if seqno <= stream.skip_until:
            stream.seen = seqno
            return
        stream.check_next(seqno)
        self._advance(stream, seqno)

    def out_of_order_ended(self, stream: RequestedStream) -> None:
        """Completes an out-of-order snapshot and advances the stream to its highest seqno."""
        high, stream.out_of_order = stream.out_of_order, None
        if high is None:
            raise broken_rule("out of order", stream.vbucket, "one ended that had not begun")
        if high:
            stream.tracker.snapshot_began(Snapshot(high, high))
            self._advance(stream, high)

    def closed(self, stream: RequestedStream) -> None:
        """Completes a snapshot whose marker did not give its end."""
        tracker = stream.tracker
        if stream.seen < stream.skip_until:
            return  # only a first part of what was read before was sent again
        tracker.snapshot_ended()
        rows = self._at - self._kept_from
        self._steps.append(Step(stream.vbucket, rows, tracker.seqno, tracker.snapshot, closes=True))

    # ---- events --------------------------------------------------------------------------

    def flush(self) -> None:
        """Emits the rows that were checked so far, before an event that must follow them."""
        self._cut(self._at)

    def finish(self) -> int:
        """Emits the rest of the checked rows. Returns the counted bytes that no event carries."""
        if self._kept_from == self._at:
            self._cut(self._at)
            return self._counted_left
        self._cut(self._at, self._counted_left)
        return 0

    def _drop(self, start: int, stop: int) -> None:
        self._cut(start)
        self._at = self._kept_from = stop

    def _cut(self, stop: int, counted: int | None = None) -> None:
        """Emits the rows before ``stop``, with their share of the counted bytes."""
        start, rows = self._kept_from, self._batch.num_rows
        self._kept_from = stop
        if start == stop and not self._steps:
            return
        if counted is None:
            counted = self._counted_left * (stop - start) // max(1, rows - start)
        self._counted_left -= counted
        batch = self._batch if stop - start == rows else self._batch.slice(start, stop - start)
        self.events.append(Rows(batch, tuple(self._steps), counted))
        self._steps = []
