"""What a client waits for: in the log once that takes long, and for who shows how a reader goes."""

from __future__ import annotations

import logging
import time
from typing import Final

from ..._line_limit import LineLimit
from ...errors import UpriverError
from ..transport.connection_string import Source

_log = logging.getLogger(__name__)

#: Seconds before the first line. Nodes that restart, or elect a new owner, answer within them.
_PATIENCE: Final = 3.0
#: About one bucket and its hosts, however many ask the nodes.
_lines: Final = LineLimit(60.0)


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
        who = self._source.bucket, *self._source.hosts
        if now - self._began >= _PATIENCE and _lines.is_due(who):
            _log.warning(
                "waiting for %s for %.0f s: %s", self._source.bucket, now - self._began, trouble
            )

    def over(self) -> None:
        """A node has answered."""
        self.now = None
