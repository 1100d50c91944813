"""Loads documents through the consumer's writer, as fast as it goes or at a pace.

It knows nothing of files and of how progress is shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from ..consumer.edits import Overwrite
from ..consumer.writer import Writer, WriterSettings
from .documents import BadLine, Document

__all__ = ["SETTINGS", "Pace", "load"]

#: A load is not a database client that somebody waits for: large groups, and patience with a slow
#: disk's worst minute and with nodes that change their roles.
SETTINGS: Final = WriterSettings(batch_size=3 * 4096, request_timeout=60.0, retry_timeout=30.0)


def load(documents: Iterable[Document], writer: Writer, pace: Pace | None = None) -> None:
    """Writes documents, and returns when the server has accepted the last of them."""
    try:
        for key, value in documents:
            if pace is not None:
                pace.wait(writer.flush)
            writer.put(Overwrite(key, value, json=True))
    except BadLine:
        writer.flush()  # the lines before it are as good as ever
        raise
    writer.flush()


class Pace:
    """Keeps writing below a number of documents a second."""

    #: Sleeping for less is mostly waking up; a sleep this long is made up for by several
    #: documents at once.
    TICK: Final = 0.01
    #: Seconds of delay that are made up for; a server that stood still longer is not flooded.
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
        """Waits until the next document may be written; calls ``before`` if that is not now."""
        if self._due > self._clock():
            before()
            early = self._due - self._clock()
            if early > 0:
                self._sleep(max(early, self.TICK))
        self._due = max(self._due, self._clock() - self.CATCH_UP) + self._step
