"""Reading ahead: streams that the driver keeps open, so that small batches open none.

A stream costs its producer more than the few changes of a small batch do. While little happens,
the driver of a query keeps the streams of all vbuckets open. It plans from what has arrived, and
hands the changes to the task together with their steps.

Why that keeps to the rules of `offset_planning`. A stream is granted on the branch that was planned
last, and whatever happens to it but changes ends reading ahead: the next look asks the nodes again.
A plan goes no further than complete snapshots that have arrived, which are the vbucket's high seqno
for it. As the bound of a boundary that is enough if the last step was read ahead too: its rows came
in snapshots that were complete before. After any other step, tasks may have seen more than has
arrived here, so the bound must not be lower than the high seqno that is sampled after it, on the
same branch: the ``floor``. It never falls, since a sample may be of a branch that is not heard of
here yet; that the step's own branch lived when it was sampled is known from a look after it, which
the driver makes before it plans from what has arrived, and for any plan of its own. Offsets are the
same as without: a batch that is replayed is read from the producer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ..consumer.client import Consumer
from ..consumer.consumer_settings import ConsumerSettings
from ..errors import RemoteProtocolError, UpriverError
from ..model import FailoverLog, StreamOffset
from ..session.consumer_events import Event, Rows, Step, StreamOpened
from ..session.stream_position import Position
from .collection_events import Name
from .offset_planning import ObservedVBucket
from .offsets import Offset
from .options import ReadOptions

_log = logging.getLogger(__name__)

#: Bytes that may wait for a plan; a node may send as many again before it is held up.
_MOST_BYTES: Final = 1024 * 1024
#: Seconds between changes that were written together, and in which all of them arrive: a producer
#: needs 0.2 ms for each vbucket, and a batch of their own for the rest costs more than waiting.
_TOGETHER: Final = 0.003
_LONGEST_TOGETHER: Final = 0.02
#: Seconds before streams are opened again after too much has arrived, at first and at most.
_FIRST_PAUSE: Final = 2.0
_LONGEST_PAUSE: Final = 300.0


@dataclass(frozen=True, slots=True)
class ArrivedChanges:
    """The changes of a batch's steps, as the driver has received them, for a task."""

    #: A stream of Arrow batches.
    data: bytes
    #: By id the names of their collections.
    names: Mapping[int, Name]

    def batches(self) -> Iterator[pa.RecordBatch]:
        yield from pa.ipc.open_stream(self.data)


class ArrivedSeqnos:
    """Up to where streams have brought all changes, by vbucket. It knows no connections."""

    def __init__(
        self, at: Mapping[int, tuple[int, FailoverLog]], floor: Mapping[int, int] | None = None
    ) -> None:
        self._logs = {vbucket: log for vbucket, (_, log) in at.items()}
        self._first = {vbucket: seqno for vbucket, (seqno, _) in at.items()}
        self._complete = dict(self._first)
        self._unopened = set(at)
        #: Vbuckets of which something has arrived that may not be planned yet.
        self._touched: set[int] = set()
        self._floor = dict(floor or {})
        #: Whether the floor was sampled before the last step that was not read ahead.
        self.is_stale = True

    @property
    def is_whole(self) -> bool:
        return not self._unopened

    @property
    def is_late(self) -> bool:
        """Whether something has not arrived that was there when the floor was sampled."""
        return any(seqno < self._floor.get(vb, 0) for vb, seqno in self._complete.items())

    def sampled(self, highs: Mapping[int, int]) -> None:
        """Takes in the high seqnos of a moment after the last batch was read."""
        for vbucket, high in highs.items():
            self._floor[vbucket] = max(high, self._floor.get(vbucket, 0))
        self.is_stale = False

    def opened(self, vbucket: int, log: FailoverLog) -> bool:
        """Whether a stream that was granted may be used: once, on the branch that is expected."""
        if vbucket not in self._unopened:
            return False
        self._unopened.discard(vbucket)
        return len(log) > 0 and log.newest.vbuuid == self._logs[vbucket].newest.vbuuid

    def arrived(self, step: Step) -> None:
        if (step.closes or step.seqno == step.snapshot.end) and not step.holds:
            self._complete[step.vbucket] = step.seqno
            self._touched.add(step.vbucket)

    def facts(self, previous: Offset) -> dict[int, ObservedVBucket] | None:
        """What a plan may go by; None if this cannot continue from ``previous``."""
        found: dict[int, ObservedVBucket] = {}
        if self.is_stale or self._unopened:
            return None
        for vbucket in sorted(self._touched):
            at, high, log = previous.at(vbucket), self._complete[vbucket], self._logs[vbucket]
            if at.seqno < self._first[vbucket]:
                return None
            if len(at.log) and at.vbuuid != log.newest.vbuuid:
                return None
            if high <= at.seqno:
                self._touched.discard(vbucket)
            elif high >= self._floor.get(vbucket, 0):
                found[vbucket] = ObservedVBucket(high, at.log if len(at.log) else log)
        return found


class ReadAhead:
    """The streams of one driver, which are open while little happens."""

    def __init__(self, settings: ConsumerSettings, most_rows: int) -> None:
        self._settings = replace(settings, buffer=min(settings.buffer, _MOST_BYTES))
        self._most_rows = most_rows
        self._consumer: Consumer | None = None
        self._seqnos = ArrivedSeqnos({})
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0
        self._pause = _FIRST_PAUSE
        self._not_before = 0.0

    @property
    def is_open(self) -> bool:
        return self._consumer is not None

    def open(
        self,
        options: ReadOptions,
        previous: Offset,
        vbuckets: Iterable[int],
        highs: Mapping[int, int],
        logs_of: Callable[[list[int]], Mapping[int, FailoverLog]],
    ) -> None:
        """Opens streams where ``previous`` ends, unless there was too much a short time ago.

        ``highs`` are the seqnos of the last look, to which vbuckets may have been read.
        """
        if time.monotonic() < self._not_before:
            return
        wanted = list(vbuckets)
        unread = [vbucket for vbucket in wanted if not len(previous.at(vbucket).log)]
        logs = logs_of(unread) if unread else {}
        at = {vb: (p.seqno, p.log) for vb in wanted if len((p := previous.at(vb)).log)}
        at |= {vb: (0, log) for vb, log in logs.items() if len(log)}
        if len(at) < len(wanted):
            return  # a vbucket has no server now
        positions = {
            vb: Position(StreamOffset.at(log.newest.vbuuid, seqno), log)
            for vb, (seqno, log) in at.items()
        }
        self._seqnos = ArrivedSeqnos(at, highs)
        # tasks can read too, so it is not worth waiting for a node
        settings = replace(
            self._settings, start=positions, vbuckets=frozenset(at), wait_at_start=0.0
        )
        consumer = Consumer(options.source, access=options.access, settings=settings)
        try:
            self._consumer = consumer.start()
        except UpriverError as problem:
            self._end(f"{problem}")

    def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        self._waiting, self._bytes = [], 0
        if consumer is not None:
            consumer.close()

    def _end(self, reason: str) -> None:
        """Leaves it to tasks to read, for a while that is longer each time."""
        _log.debug("reading ahead ends: %s", reason)
        self.close()
        self._not_before = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def not_read_ahead(self) -> None:
        """Tasks read the batch that was planned: how far they see is known only after it."""
        self._seqnos.is_stale = True

    @property
    def wants_sample(self) -> bool:
        return self._seqnos.is_stale

    def sampled(self, highs: Mapping[int, int]) -> None:
        """Takes the high seqnos of now."""
        self._seqnos.sampled(highs)

    def require_arrived(self) -> None:
        """Ends if the high seqnos of the last sample, some seconds ago, have not arrived yet."""
        if self.is_open and self._seqnos.is_late:
            self._end("changes do not arrive")

    def facts(self, previous: Offset, timeout: float) -> dict[int, ObservedVBucket] | None:
        """What has arrived and is not planned yet, waiting for something; None: ask the nodes."""
        self._forget(previous)
        self._receive(0.0 if self._seqnos.facts(previous) else timeout)
        return self._seqnos.facts(previous) if self.is_open else None

    def _receive(self, timeout: float) -> None:
        """Takes what has arrived; waits for the first of it, and for what was written with it."""
        deadline = time.monotonic() + timeout
        last: float | None = None
        try:
            while self._consumer is not None:
                event = self._consumer.poll(max(0.0, deadline - time.monotonic()))
                if event is None:
                    return
                if isinstance(event, Rows):
                    now = time.monotonic()
                    last = last or now + _LONGEST_TOGETHER
                    deadline = min(now + _TOGETHER, last)
                self._take(event)
        except UpriverError as problem:
            self._end(f"{problem}")

    def _take(self, event: Event) -> None:
        if isinstance(event, Rows):
            self._waiting.append(event.batch)
            self._bytes += event.counted
            for step in event.steps:
                self._seqnos.arrived(step)
            if self._bytes > _MOST_BYTES or self._rows() > self._most_rows:
                self._end("more arrives than a small batch has")
        elif not isinstance(event, StreamOpened) or not self._seqnos.opened(
            event.vbucket, event.log
        ):
            self._end(f"{type(event).__name__} of vbucket {getattr(event, 'vbucket', '')}")

    def _rows(self) -> int:
        return sum(batch.num_rows for batch in self._waiting)

    def _forget(self, previous: Offset) -> None:
        """Drops what was planned before."""
        if not self._waiting:
            return
        whole = _joined(self._waiting)
        left = whole.filter(_after(whole, previous))
        self._waiting = [left] if left.num_rows else []
        self._bytes = left.nbytes if left.num_rows else 0

    def planned(self, previous: Offset, offset: Offset) -> ArrivedChanges | None:
        """The changes between two offsets."""
        if self._consumer is None or not self._waiting:
            return None
        whole = _joined(self._waiting)
        # what tasks have read may have arrived here after them
        rows = whole.filter(_after(whole, previous, offset))
        if not rows.num_rows:
            return None
        self._pause = max(_FIRST_PAUSE, self._pause / 2)
        names: dict[int, Name] = {}
        for number in np.unique(rows.column("collection").to_numpy()).tolist():
            with suppress(RemoteProtocolError):  # it was dropped before the consumer came
                names[number] = self._consumer.collections.names(number)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as stream:
            stream.write_batch(rows)
        return ArrivedChanges(sink.getvalue().to_pybytes(), names)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _after(rows: pa.RecordBatch, start: Offset, end: Offset | None = None) -> Any:
    """Which rows are above an offset, and not above another."""
    seqnos = rows.column("seqno").to_numpy()
    touched, places = np.unique(rows.column("vbucket").to_numpy(), return_inverse=True)

    def limits(offset: Offset) -> Any:
        of_each = [offset.at(vbucket).seqno for vbucket in touched.tolist()]
        return np.array(of_each, np.uint64)[places]

    above = seqnos > limits(start)
    return above if end is None else above & (seqnos <= limits(end))
