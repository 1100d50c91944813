"""Writes documents through the consumer's writer, optionally at a limited rate."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from ...consumer.writing.write_operations import Overwrite
from ...consumer.writing.writer import Writer, WriterSettings
from .document_sources import BadLine, KeyAndBody

#: Throughput matters more than latency here: large groups, and long timeouts for slow disks and for
#: nodes that change their roles.
SETTINGS: Final = WriterSettings(batch_size=3 * 4096, request_timeout=60.0, retry_timeout=30.0)


def load(
    documents: Iterable[KeyAndBody],
    writer: Writer,
    pace: Pace | None = None,
    *,
    collection: str = "",
) -> None:
    """Writes documents and returns when the server has accepted all of them."""
    number = writer.collections.id_of(collection) if collection else 0
    try:
        for key, value in documents:
            if pace is not None:
                pace.wait(writer.flush)
            writer.put(Overwrite(key, value, collection=number, json=True))
    except BadLine:
        writer.flush()  # the documents before the bad line are written
        raise
    writer.flush()


class Pace:
    """Limits the number of documents per second."""

    #: The shortest sleep; shorter ones are mostly overhead. Several documents follow one sleep.
    TICK: Final = 0.01
    #: The most seconds of delay that are caught up, so that a server is not flooded after a stall.
    CATCH_UP: Final = 1.0

    def __init__(
        self,
        rate: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._step = 1 / rate
        self._clock = clock
        self._sleep = sleep
        self._due = clock()

    def wait(self, before: Callable[[], None]) -> None:
        """Waits until the next document may be written; calls ``before`` if it has to wait."""
        if self._due > self._clock():
            before()
            early = self._due - self._clock()
            if early > 0:
                self._sleep(max(early, self.TICK))
        self._due = max(self._due, self._clock() - self.CATCH_UP) + self._step
