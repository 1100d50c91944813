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

from .event_detection import EventDetector
from .figures import FORMAT, Document, PipelineFigures, ServerFigures
from .rate_history import RateHistory

__all__ = ["INTERVAL", "Collector", "Sample"]

logger = logging.getLogger("upriver.dashboard")

#: Seconds between two samples. Sampling 1024 vbuckets takes some milliseconds.
INTERVAL: Final = 1.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample: the document, and its JSON encoding."""

    document: Document
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
        self._history = RateHistory()
        self._server: ServerFigures | None = None
        self._latest = self._assemble(time.time(), 0.0, "there is no sample yet", [])
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="upriver dashboard", daemon=True)

    @property
    def latest(self) -> Sample:
        return self._latest

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._latest = self._take_sample()
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
                self._history.add(now, self._server, sum(self._events.changes.values()))
        except Exception as error:
            problem = str(error) or type(error).__name__
            logger.debug("taking a sample failed", exc_info=True)
        return self._assemble(now, time.thread_time() - began, problem, pipelines)

    def _assemble(
        self, now: float, cost: float, problem: str | None, pipelines: list[PipelineFigures]
    ) -> Sample:
        document = Document(
            format=FORMAT,
            time=now,
            interval=self.interval,
            cost=cost,
            problem=problem,
            server=self._server,
            changes=dict(self._events.changes),
            branches=dict(self._events.branches),
            pipelines=pipelines,
            history=self._history.figures(),
            events=list(self._events.events),
        )
        return Sample(document, json.dumps(document, separators=(",", ":")).encode())
