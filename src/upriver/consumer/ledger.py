"""How far an application has read: the positions after everything that was handed to it.

A session is ahead of its reader by what lies in between, so the reader has its own account. It is
kept in terms of events; of an event that is being read row by row, the rows that were read count.
Any thread may ask how far it is, while one reads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from ..session.events import RolledBack, Rows, Step, StreamOpened, SystemHappened
from ..session.position import Position, PositionTracker

__all__ = ["Ledger"]


class Ledger:
    """The positions of one reader."""

    def __init__(self, positions: Mapping[int, Position]) -> None:
        self._trackers = {vb: PositionTracker(position) for vb, position in positions.items()}
        self._lock = threading.Lock()
        self._rows: Rows | None = None
        self._steps: list[Step] = []
        #: Rows of the current event that the reader has.
        self.read = 0
        #: Those of them that are in the account.
        self._entered = 0

    def positions(self) -> dict[int, Position]:
        """Where the reader is in each vbucket."""
        with self._lock:
            self._enter()
            return {vb: tracker.position() for vb, tracker in self._trackers.items()}

    def seqnos(self) -> dict[int, int]:
        """Only how far, for those who want to know often."""
        with self._lock:
            self._enter()
            return {vb: tracker.seqno for vb, tracker in self._trackers.items()}

    def take(self, rows: Rows, *, read: int = 0) -> None:
        """Begins with an event; `read` then says how many of its rows the reader has."""
        self.done()
        with self._lock:
            self._rows, self._steps = rows, list(reversed(rows.steps))
            self.read, self._entered = read, 0

    def done(self) -> None:
        """The reader has the whole current event."""
        with self._lock:
            if self._rows is not None:
                self._apply(reversed(self._steps))
                self._rows = None

    def note(self, event: StreamOpened | RolledBack | SystemHappened) -> None:
        """Something happened to a stream."""
        self.done()
        with self._lock:
            tracker = self._trackers[event.vbucket]
            if isinstance(event, StreamOpened):
                tracker.follow(event.log)
            elif isinstance(event, RolledBack):
                if not event.refused:
                    self._trackers[event.vbucket] = PositionTracker(event.to)
            else:
                uid = getattr(event.event, "manifest_uid", 0)
                tracker.manifest_uid = max(tracker.manifest_uid, uid)

    def _enter(self) -> None:
        """Enters the rows that were read of the current event."""
        if self._rows is None:
            return
        while self._steps and self._steps[-1].stop <= self.read:
            step = self._steps.pop()
            self._apply([step])
            self._entered = step.stop
        if self._entered < self.read:  # in the middle of the rows of a step
            seqno = self._rows.batch.column("seqno")[self.read - 1].as_py()
            self._apply([self._steps[-1]._replace(seqno=seqno, closes=False)])
            self._entered = self.read

    def _apply(self, steps: Iterable[Step]) -> None:
        for step in steps:
            tracker = self._trackers[step.vbucket]
            if step.closes:
                tracker.snapshot_ended()
                continue
            if tracker.snapshot != step.snapshot:
                tracker.snapshot_began(step.snapshot)
            tracker.advanced(step.seqno)
