"""The log lines of Upriver's programs: one format for people, one for programs (JSON).

    2026-01-31T12:00:00.123Z WARNING upriver.consumer.streaming.engine: 127.0.0.1:11210 is gone
    {"time": "...", "level": "warning", "logger": "...", "message": "...", "exception": "..."}

The library itself never configures logging: only programs call `configure_logging`. Levels:

    debug      what a developer of Upriver looks for
    info       what happens in normal operation: connections, hand-over, compaction
    warning    something failed and is tried again, or is not as it should be
    error      something failed for good; most of it is raised as an error as well
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Final

#: The variable of the environment that asks for JSON, also of the processes that a program starts.
JSON_VARIABLE: Final = "UPRIVER_LOG_JSON"
#: Loggers of others that are quieter than ours: they log each request.
_QUIETER: Final = ("py4j", "asyncio", "urllib3")
#: What the last call has set up.
_handler: logging.Handler | None = None


def configure_logging(
    level: int = logging.WARNING,
    *,
    as_json: bool = False,
    before: str = "",
) -> None:
    """Writes the log lines of this process to stderr; a second call replaces the first.

    ``before`` is written before each line for people, for example to erase a line of status.
    """
    global _handler
    root = logging.getLogger()
    if _handler is not None:
        root.removeHandler(_handler)
    _handler = logging.StreamHandler(sys.stderr)
    _handler.setFormatter(_JsonLines() if as_json else _Lines(before))
    root.addHandler(_handler)
    root.setLevel(level)
    for name in _QUIETER:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))


def _moment(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03}Z"


class _Lines(logging.Formatter):
    """A line for people; an exception has lines of its own below."""

    def __init__(self, before: str) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._before = before

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        return _moment(record)

    def format(self, record: logging.LogRecord) -> str:
        return self._before + super().format(record)


class _JsonLines(logging.Formatter):
    """One JSON object on one line, whatever the message is."""

    def format(self, record: logging.LogRecord) -> str:
        members = {
            "time": _moment(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            members["exception"] = self.formatException(record.exc_info)
        return json.dumps(members)
