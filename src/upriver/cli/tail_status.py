"""How a reading goes, on one line: while it runs, for those who watch, and when it is over.

The newest seqnos are asked for in a thread of their own, so that a node which takes its time to
answer holds nothing up.
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

from ..consumer.client import Consumer
from ..consumer.status import ReadingStatus
from ..errors import UpriverError

__all__ = ["StatusLine", "summary"]

#: Seconds between two looks at how it goes, and between two questions for the newest seqnos.
_EVERY: Final = 1.0
#: Seconds for an answer that is under way when the program ends.
_LAST_ANSWER: Final = 1.0
#: Of a screen that does not say how wide it is.
_COLUMNS: Final = 80
_ERASE: Final = "\r\x1b[K"


class StatusLine:
    """A line on stderr that is drawn over again; nothing at all if it is not ``live``."""

    def __init__(self, consumer: Consumer, *, live: bool) -> None:
        self._consumer = consumer
        self._newest = _Newest(consumer) if live else None
        #: Lines on the same screen would mix with it.
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
        """Takes the line away."""
        if self._newest is not None:
            self._newest.stop()
            self._newest = None
            _draw(_ERASE)

    def refresh(self, changes: int) -> None:
        """Draws it anew, if it is time to; ``changes`` is how many there were so far."""
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
        """Keeps the line below what is written meanwhile."""
        if self._shares_screen and self._text:
            _draw(_ERASE)
            yield
            _draw(self._text)
        else:
            yield


class _Newest(threading.Thread):
    """Asks for the newest seqnos, and has the last answer."""

    def __init__(self, consumer: Consumer) -> None:
        super().__init__(name="upriver newest seqnos", daemon=True)
        self._consumer = consumer
        self._stopped = threading.Event()
        #: None where nobody can tell.
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
    """What there is to say when it is over."""
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
        return "lag not told"
    behind = sum(max(0, newest.get(vb, 0) - seqno) for vb, seqno in status.seqnos.items())
    return f"{behind} behind"


def _draw(text: str) -> None:
    click.echo(text, nl=False, err=True)
