"""One run of ``upriver tail``: events in, lines out, and a position that is never ahead of them.

How the run ends is decided here: at its end, at a limit, by a signal, by a pipe that nobody reads.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from types import FrameType
from typing import Final

import click

from ..consumer.changes import changes_of
from ..consumer.checkpoint import Checkpoint
from ..consumer.checkpoint_files import FileCheckpoint
from ..consumer.client import Consumer
from ..errors import UpriverError
from ..model import StreamEndReason
from ..session.events import Event, Flushed, RolledBack, Rows, StreamFinished
from .tail_status import StatusLine, summary
from .tail_text import Lines
from .trouble import INTERRUPTED

__all__ = ["Reader", "Run", "Saver", "stopping"]

#: Seconds after which signals, a closed pipe and the time to save are noticed if nothing comes.
_TICK: Final = 0.2
#: Seconds between two saves.
_SAVE_EVERY: Final = 1.0


class Stop:
    """The signals that end the program: gently the first time, if there is something to save."""

    def __init__(self) -> None:
        self.gentle = False
        self.status = INTERRUPTED
        self.asked = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        again = self.asked
        self.asked, self.status = True, 128 + number
        if again or not self.gentle:
            raise KeyboardInterrupt


@contextmanager
def stopping() -> Iterator[Stop]:
    stop = Stop()
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Output:
    """The standard output. What was written is with the operating system, not in a buffer."""

    def __init__(self) -> None:
        self._file = sys.stdout.buffer
        self._hangups = select.poll()
        self._hangups.register(self._file.fileno(), 0)

    def write(self, text: str) -> None:
        try:
            self._file.write(text.encode())
            self._file.flush()
        except BaseException as problem:
            self._forget()
            if isinstance(problem, OSError) and not isinstance(problem, BrokenPipeError):
                why = problem.strerror
                raise UpriverError(f"the output cannot be written: {why}") from None
            raise

    def check(self) -> None:
        """Notices that nobody reads a pipe any more, without having anything to write."""
        if any(event & select.POLLERR for _, event in self._hangups.poll(0)):
            self._forget()
            raise BrokenPipeError

    def _forget(self) -> None:
        """Python would try to write what is left when it ends, and complain."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._file.fileno())
        os.close(nowhere)


# ---- positions ---------------------------------------------------------------------------


class Reader(Consumer):
    """A consumer that may stop in the middle of an event."""

    def count_as_read(self, rows: int) -> None:
        """Of what `poll` returned last, only so many rows, until it is called again."""
        self._desk.ledger.read = rows


class Saver:
    """Keeps a checkpoint file up to date."""

    def __init__(self, store: FileCheckpoint) -> None:
        self._store = store
        self.saved = store.load()
        self._next = time.monotonic() + _SAVE_EVERY

    def is_due(self) -> bool:
        return time.monotonic() >= self._next

    def save(self, position: Checkpoint) -> None:
        if position != self.saved:
            self._store.save(position)
            self.saved = position
        self._next = time.monotonic() + _SAVE_EVERY


class Run:
    """One run: events in, lines out, and the position of what was written."""

    def __init__(
        self,
        consumer: Reader,
        lines: Lines,
        status: StatusLine,
        saver: Saver | None,
        stop: Stop,
        limit: int | None,
    ) -> None:
        self._consumer = consumer
        self._lines = lines
        self._status = status
        self._saver = saver
        self._stop = stop
        self._left = limit
        self._output = _Output()
        self._changes = 0
        #: Whether everything that the position counts was written.
        self._settled = True

    def run(self) -> int:
        """Returns the status with which the program ends."""
        began = time.monotonic()
        try:
            try:
                reason = self._read()
                self._write(self._lines.end(reason, self._changes))
            finally:
                self._save()
        except BrokenPipeError:
            return 0
        finally:
            self._status.close()
        seconds = time.monotonic() - began
        click.echo(summary(self._consumer.status(), self._changes, seconds), err=True)
        return self._stop.status if reason == "stopped" else 0

    def _read(self) -> str:
        """Reads until there is a reason not to."""
        while not self._stop.asked:
            if self._saver is not None and self._saver.is_due():
                self._save()
            self._status.refresh(self._changes)
            event = self._next()
            if isinstance(event, Rows):
                if self._take(event):
                    return "limit"
            elif isinstance(event, RolledBack | Flushed) or (
                isinstance(event, StreamFinished) and event.reason is not StreamEndReason.OK
            ):
                self._write(self._lines.incident(event))
            elif event is None:
                if self._consumer.finished:
                    return "reached"
                self._output.check()
            self._settled = True
        return "stopped"

    def _next(self) -> Event | None:
        """What comes next: the position counts it from now on, and it is not written yet."""
        self._settled = False
        try:
            event = self._consumer.poll(_TICK)
        except UpriverError:
            self._settled = True
            raise
        self._settled = event is None
        return event

    def _take(self, event: Rows) -> bool:
        """Writes rows; whether they were as many as were wanted."""
        rows = event.batch.num_rows
        if self._left is not None:
            rows = min(rows, self._left)
            self._left -= rows
            self._consumer.count_as_read(rows)
        self._write(self._lines.changes(islice(changes_of(event.batch), rows)))
        self._changes += rows
        self._settled = True
        return self._left == 0

    def _write(self, text: str) -> None:
        if text:
            with self._status.hidden():
                self._output.write(text)

    def _save(self) -> None:
        """Saves where the reading is, unless that is ahead of what was written."""
        if self._saver is not None and self._settled:
            self._saver.save(self._consumer.position())
