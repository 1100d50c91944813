"""The status line of ``upriver tail`` (rate, lag, reconnects), and its summary at the end.

The high seqnos are requested in a separate thread, so that a slow node does not delay the output.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Self

import click

from ...consumer.client import Consumer
from ...consumer.streaming.consumer_base import ReadingStatus
from ...errors import UpriverError

#: Seconds between two updates of the line, and between two requests for the high seqnos.
_EVERY: Final = 1.0
#: Seconds to wait for an outstanding response when the program ends.
_LAST_ANSWER: Final = 1.0
#: The width of a terminal that does not report it.
_COLUMNS: Final = 80
_ERASE: Final = "\r\x1b[K"


class StatusLine:
    """A line on stderr that is redrawn; without ``live`` nothing is printed."""

    def __init__(self, consumer: Consumer, *, live: bool) -> None:
        self._consumer = consumer
        self._newest = _Newest(consumer) if live else None
        #: Whether stdout is the same terminal, so that its lines would mix with the status line.
        self._shares_screen = live and sys.stdout.isatty()
        self._text = ""
        self._looked = time.monotonic()
        self._changes = 0

    def __enter__(self) -> Self:
        if self._newest is not None:
            self._newest.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Erases the line."""
        if self._newest is not None:
            self._newest.stop()
            self._newest = None
            _draw(_ERASE)

    def refresh(self, changes: int) -> None:
        """Redraws the line when it is due; ``changes`` is the number of changes so far."""
        if self._newest is None:
            return
        now = time.monotonic()
        passed = now - self._looked
        if passed < _EVERY:
            return
        rate = (changes - self._changes) / passed
        self._looked, self._changes = now, changes
        status = self._consumer.status()
        flowing = sum(status.vbuckets.values())
        done = len(status.seqnos) - len(status.vbuckets)
        text = (
            f"{changes} changes, {rate:.0f}/s, {_lag(status, self._newest.seqnos)}, "
            f"{flowing + done} of {len(status.seqnos)} vbuckets, {_reconnects(status)} reconnects"
        )
        columns = os.get_terminal_size(sys.stderr.fileno()).columns or _COLUMNS
        self._text = text[: columns - 1]
        _draw(_ERASE + self._text)

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Hides the line while other lines are written, so that it stays below them."""
        if self._shares_screen and self._text:
            _draw(_ERASE)
            yield
            _draw(self._text)
        else:
            yield


class _Newest(threading.Thread):
    """Requests the high seqnos in the background and keeps the last response."""

    def __init__(self, consumer: Consumer) -> None:
        super().__init__(name="upriver newest seqnos", daemon=True)
        self._consumer = consumer
        self._stopped = threading.Event()
        #: None while they are not known.
        self.seqnos: Mapping[int, int] | None = None

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                self.seqnos = self._consumer.high_seqnos()
            except UpriverError:
                self.seqnos = None
            self._stopped.wait(_EVERY)

    def stop(self) -> None:
        self._stopped.set()
        self.join(_LAST_ANSWER)


def summary(status: ReadingStatus, changes: int, seconds: float) -> str:
    """The summary line at the end."""
    rate = changes / seconds if seconds else 0.0
    rollbacks = sum(count for name, count in status.counts.items() if name.startswith("rollback"))
    return (
        f"{changes} changes in {seconds:.2f} s, {rate:.0f} a second; "
        f"rollbacks: {rollbacks}; reconnects: {_reconnects(status)}"
    )


def _reconnects(status: ReadingStatus) -> int:
    return status.counts.get("connections lost", 0)


def _lag(status: ReadingStatus, newest: Mapping[int, int] | None) -> str:
    if newest is None:
        return "lag unknown"
    behind = sum(max(0, newest.get(vb, 0) - seqno) for vb, seqno in status.seqnos.items())
    return f"{behind} behind"


def _draw(text: str) -> None:
    click.echo(text, nl=False, err=True)
