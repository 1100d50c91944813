"""What a client waits for: in the log once that takes long, and for who shows how a reader goes."""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from ...errors import UpriverError
from ..transport.connection_string import Source

_log = logging.getLogger(__name__)

#: Seconds before the first line. Nodes that restart, or elect a new owner, answer within them.
_PATIENCE: Final = 3.0
#: Seconds between two lines of one source, however many ask its nodes.
_EVERY: Final = 60.0

_lock: Final = threading.Lock()
#: By bucket and hosts, when a line about them was written.
_told: Final[dict[tuple[object, ...], float]] = {}


class Interrupted(UpriverError):
    """Who asked does not want to wait for the answer any more."""


class Waiting:
    """Questions that are asked again because no node answers them."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._began = 0.0
        #: Since when, in seconds since 1970, and why; None while nodes answer.
        self.now: tuple[float, str] | None = None

    def in_vain(self, trouble: UpriverError) -> None:
        """A question was asked in vain, and is asked again."""
        now = time.monotonic()
        if self.now is None:
            self._began, since = now, time.time()
        else:
            since = self.now[0]
        self.now = since, str(trouble)
        if now - self._began >= _PATIENCE and self._is_due(now):
            _log.warning(
                "waiting for %s for %.0f s: %s", self._source.bucket, now - self._began, trouble
            )

    def _is_due(self, now: float) -> bool:
        with _lock:
            who = self._source.bucket, *self._source.hosts
            if now - _told.get(who, now - _EVERY) < _EVERY:
                return False
            _told[who] = now
            return True

    def over(self) -> None:
        """A node has answered."""
        self.now = None
