"""Requests that an object store is slow to answer: in the log, and for who shows a pipeline."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from .._line_limit import LineLimit

_log = logging.getLogger(__name__)

#: Seconds before a request is called slow, and before a line: a large file takes a while.
_PATIENCE: Final = 2.0
_LINE_AFTER: Final = 5.0
#: About one store, however many requests it is slow to answer.
_lines: Final = LineLimit(60.0)
#: Since when, in seconds since 1970, and to which store, each request is under way.
_under_way: Final[dict[object, tuple[float, str]]] = {}


@contextmanager
def watched_request(store: str) -> Iterator[None]:
    """A block that asks a store and waits for its answer."""
    request = object()
    _under_way[request] = time.time(), store
    line = threading.Timer(_LINE_AFTER, _tell, (request, store))
    line.daemon = True
    line.start()
    try:
        yield
    finally:
        line.cancel()
        del _under_way[request]


def slow_request() -> tuple[float, str] | None:
    """Since when, and for which store, this process waits; None while stores answer."""
    oldest = min(list(_under_way.values()), default=None)
    return oldest if oldest is not None and time.time() - oldest[0] >= _PATIENCE else None


def _tell(request: object, store: str) -> None:
    if request in _under_way and _lines.is_due(store):
        _log.warning("waiting for %s, which has not answered for %.0f s", store, _LINE_AFTER)
