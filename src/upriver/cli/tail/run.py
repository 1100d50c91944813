"""The main loop of ``upriver tail``: prints events, saves positions, handles signals.

A saved position is never ahead of the printed lines. A run ends at its end, at a limit, by a
signal, or when its output is closed.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from types import FrameType
from typing import Final

import click

from ...consumer.changes import Change, changes_of
from ...consumer.checkpoints.checkpoint import Checkpoint
from ...consumer.checkpoints.checkpoint_file import FileCheckpoint
from ...consumer.client import Consumer
from ...errors import UpriverError
from ...model import StreamEndReason
from ...session.consumer_events import Event, Flushed, RolledBack, Rows, StreamFinished
from ..common_options import INTERRUPTED, is_quiet
from .change_text import Lines
from .filters import ChangeFilter
from .status_line import StatusLine, summary

#: Without events, signals, a closed pipe and the time to save are checked every so many seconds.
_TICK: Final = 0.2
#: Seconds between two saves.
_SAVE_EVERY: Final = 1.0


class Stop:
    """Handles the signals that end the program: in order the first time, at once the second."""

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
    """The unbuffered standard output: written lines are with the operating system."""

    def __init__(self) -> None:
        self._file = sys.stdout.buffer
        self._hangups = select.poll()
        self._hangups.register(self._file.fileno(), 0)

    def write(self, text: str) -> None:
        try:
            self._file.write(text.encode(errors="surrogateescape"))
            self._file.flush()
        except BaseException as problem:
            self._forget()
            if isinstance(problem, OSError) and not isinstance(problem, BrokenPipeError):
                why = problem.strerror
                raise UpriverError(f"the output cannot be written: {why}") from None
            raise

    def check(self) -> None:
        """Detects that the reading end of a pipe was closed, without writing to it."""
        if any(event & select.POLLERR for _, event in self._hangups.poll(0)):
            self._forget()
            raise BrokenPipeError

    def _forget(self) -> None:
        """Redirects stdout to /dev/null: at exit Python would flush it and report an error."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._file.fileno())
        os.close(nowhere)


# ---- positions ---------------------------------------------------------------------------


class InterruptibleConsumer(Consumer):
    """A consumer that may stop in the middle of an event."""

    def count_as_read(self, rows: int) -> None:
        """Counts only this many rows of the last `poll` as read, until the next one."""
        self._inbox.read = rows


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


class GroupSaver:
    """Keeps the positions of a group's member up to date."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._saved: Checkpoint | None = None
        self._next = time.monotonic() + _SAVE_EVERY

    def is_due(self) -> bool:
        return time.monotonic() >= self._next

    def save(self, position: Checkpoint) -> None:
        if position != self._saved:
            self._consumer.save()
            self._saved = position
        self._next = time.monotonic() + _SAVE_EVERY


class Run:
    """One run of ``upriver tail``."""

    def __init__(
        self,
        consumer: InterruptibleConsumer,
        lines: Lines,
        status: StatusLine,
        saver: Saver | GroupSaver | None,
        stop: Stop,
        limit: int | None,
        wanted: ChangeFilter | None = None,
    ) -> None:
        self._consumer = consumer
        self._lines = lines
        self._status = status
        self._saver = saver
        self._stop = stop
        self._left = limit
        self._wanted = wanted
        self._output = _Output()
        self._changes = 0
        #: Whether all changes up to the position were written.
        self._settled = True

    def print_first(self, changes: list[Change]) -> None:
        """Prints changes that were read before this run, such as those of --last."""
        self._write(self._lines.changes(changes))
        self._changes += len(changes)

    def run(self) -> int:
        """Returns the exit status of the program."""
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
        if not is_quiet():
            click.echo(summary(self._consumer.status(), self._changes, seconds), err=True)
        return self._stop.status if reason == "stopped" else 0

    def _read(self) -> str:
        """Reads and prints until the end; returns its reason."""
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
        """The next event, which the position includes from now on although it is not written."""
        self._settled = False
        try:
            event = self._consumer.poll(_TICK)
        except UpriverError:
            self._settled = True
            raise
        self._settled = event is None
        return event

    def _take(self, event: Rows) -> bool:
        """Writes the wanted rows; whether they were as many as --limit allows."""
        rows, changes = event.batch.num_rows, changes_of(event.batch)
        chosen: Iterable[Change]
        if self._wanted is not None:
            chosen = self._chosen(changes, self._wanted)
            count = len(chosen)
        else:
            count = rows if self._left is None else min(rows, self._left)
            chosen = islice(changes, count)
            self._consumer.count_as_read(count)
        if self._left is not None:
            self._left -= count
        self._write(self._lines.changes(chosen))
        self._changes += count
        self._settled = True
        return self._left == 0

    def _chosen(self, changes: Iterable[Change], wanted: ChangeFilter) -> list[Change]:
        """Those that pass the filter, up to the limit; what comes after it is not read yet."""
        chosen: list[Change] = []
        for read, change in enumerate(changes, 1):
            if wanted(change):
                chosen.append(change)
                if len(chosen) == self._left:
                    self._consumer.count_as_read(read)
                    break
        return chosen

    def _write(self, text: str) -> None:
        if text:
            with self._status.hidden():
                self._output.write(text)

    def _save(self) -> None:
        """Saves the position, unless it is ahead of the written lines."""
        if self._saver is not None and self._settled:
            self._saver.save(self._consumer.position())
