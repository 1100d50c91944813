"""Samples a server and pipelines once a second and keeps the latest sample, encoded as JSON.

It runs in its own thread, independent of the number of viewers. An error while sampling is reported
in the document and never ends the thread.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Self

from ..errors import UpriverError
from .event_detection import EventDetector
from .figure_types import FORMAT, PipelineFigures, ServerFigures, StatsDocument
from .history import History

logger = logging.getLogger("upriver.dashboard")

#: Seconds between two samples. Sampling 1024 vbuckets takes some milliseconds.
INTERVAL: Final = 1.0
#: Seconds for which the encoded history of an hour is used.
_HOUR_INTERVAL: Final = 5.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample: the document, and its JSON encoding."""

    document: StatsDocument
    encoded: bytes


class Collector:
    """Runs in a with block. ``sample_server`` and ``pipelines`` are called in its thread only."""

    def __init__(
        self,
        sample_server: Callable[[], ServerFigures] | None,
        pipelines: Sequence[Callable[[], PipelineFigures]] = (),
        *,
        interval: float = INTERVAL,
    ) -> None:
        self.interval = interval
        self._sample_server = sample_server
        self._pipelines = pipelines
        self._events = EventDetector()
        self._history = History()
        self._hour = self._encoded_hour()
        self._server: ServerFigures | None = None
        self._latest = self._assemble(time.time(), 0.0, "there is no sample yet", [])
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="upriver dashboard", daemon=True)

    @property
    def latest(self) -> Sample:
        return self._latest

    @property
    def hour(self) -> bytes:
        """The history of the last hour, encoded as JSON. It is renewed some times a minute."""
        return self._hour

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._latest = self._take_sample()
            if self._latest.document["time"] - self._hour_made >= _HOUR_INTERVAL:
                self._hour = self._encoded_hour()
            if self._stopped.wait(self.interval):
                return

    def _take_sample(self) -> Sample:
        """Takes one sample. If that fails, the server's last figures stay in the document."""
        began, now = time.thread_time(), time.time()
        problem = None
        pipelines: list[PipelineFigures] = []
        try:
            for pipeline in self._pipelines:
                pipelines.append(pipeline())
                self._events.see_pipeline(pipelines[-1])
            if self._sample_server is not None:
                self._server = self._sample_server()
                self._events.see_server(self._server, now)
            changes = sum(self._events.changes.values())
            self._history.add(now, self._server, changes, pipelines)
        except Exception as error:
            problem = _described(error)
            again = problem == self._latest.document["problem"]
            level = logging.DEBUG if again else logging.WARNING
            logger.log(level, "the dashboard cannot take a sample", exc_info=True)
        return self._assemble(now, time.thread_time() - began, problem, pipelines)

    def _encoded_hour(self) -> bytes:
        self._hour_made = time.time()
        return json.dumps(self._history.hour(), separators=(",", ":")).encode()

    def _assemble(
        self, now: float, cost: float, problem: str | None, pipelines: list[PipelineFigures]
    ) -> Sample:
        document = StatsDocument(
            format=FORMAT,
            time=now,
            interval=self.interval,
            cost=cost,
            problem=problem,
            server=self._server,
            changes=dict(self._events.changes),
            branches=dict(self._events.branches),
            pipelines=pipelines,
            history=self._history.recent(),
            events=list(self._events.events),
        )
        return Sample(document, json.dumps(document, separators=(",", ":")).encode())


def _described(error: Exception) -> str:
    """What viewers see of an error: its text if it was written for people."""
    if isinstance(error, TimeoutError):
        return "the server did not answer in time; it may be overloaded"
    if isinstance(error, OSError) and error.strerror:
        return f"the figures cannot be read: {error.strerror}"
    if isinstance(error, UpriverError):
        return str(error)
    return "the figures cannot be read; the log says why"
