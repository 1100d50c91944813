"""Watches a pipeline beside its work: how far its table is behind, and what the log says of it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from .lag import LagMeter
from .progress_log import PipelineStatus, ProgressBook

_log = logging.getLogger(__name__)

#: Seconds between two measurements, and between two lines of the log.
_EVERY: Final = 5.0
_LINE_EVERY: Final = 60.0


@contextmanager
def watched(what: str, book: ProgressBook, meter: LagMeter) -> Iterator[None]:
    """Measures and tells in a block, and tells how it ended."""
    ended = threading.Event()
    watch = threading.Thread(
        target=_watch, args=(what, book, meter, ended), name="upriver watch", daemon=True
    )
    _log.info("%s: started, run %s", what, book.run)
    watch.start()
    try:
        yield
    finally:
        ended.set()  # it may wait for a node, and is not waited for
        _log.info("%s: %s", what, line_of(book.status()))


def _watch(what: str, book: ProgressBook, meter: LagMeter, ended: threading.Event) -> None:
    told = time.monotonic()
    while not ended.wait(_EVERY):
        lag = meter.measure()
        if ended.is_set():
            return
        book.measured(lag)
        if time.monotonic() - told >= _LINE_EVERY:
            told = time.monotonic()
            _log.info("%s: %s", what, line_of(book.status()))


def line_of(status: PipelineStatus) -> str:
    """How a pipeline goes, in a line for people."""
    parts = [_doing(status)]
    if status.last is not None:
        parts.append(
            f"{status.rows} changes, {status.rate:.0f}/s, last batch {status.last.rows} in "
            f"{status.last.seconds:.2f} s"
        )
    if status.is_active:
        parts.append(f"{'?' if status.lag is None else status.lag} behind")
    if status.rollbacks:
        parts.append(f"{status.rollbacks} rollbacks")
    if status.dead_letters:
        parts.append(f"{status.dead_letters} dead letters")
    return ", ".join(parts)


def _doing(status: PipelineStatus) -> str:
    if status.state != "waiting":
        return f"{status.state} ({status.reason})" if status.reason else status.state
    return f"waiting for {max(0.0, time.time() - status.since):.0f} s ({status.reason})"
