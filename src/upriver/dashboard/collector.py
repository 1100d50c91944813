"""Looks once a second, however many people watch, and keeps what it saw as ready bytes.

It runs in a thread of its own and is told how to look by its owner. What goes wrong there is part
of the document and never ends it.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from .events import Watch
from .figures import FORMAT, Document, PipelineFigures, ServerFigures
from .history import History

__all__ = ["INTERVAL", "Collector", "Seen"]

logger = logging.getLogger("upriver.dashboard")

#: Seconds from one look to the next. A look at 1024 vbuckets takes some milliseconds.
INTERVAL: Final = 1.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One look: the document, and the same as JSON."""

    document: Document
    encoded: bytes


class Collector:
    """Use it in a with block. ``look`` and ``pipelines`` are called in its thread only."""

    def __init__(
        self,
        look: Callable[[], ServerFigures] | None,
        pipelines: Sequence[Callable[[], PipelineFigures]] = (),
        *,
        interval: float = INTERVAL,
    ) -> None:
        self.interval = interval
        self._look = look
        self._pipelines = pipelines
        self._watch = Watch()
        self._history = History()
        self._server: ServerFigures | None = None
        self._latest = self._seen(time.time(), 0.0, "nothing was seen yet", [])
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="upriver dashboard", daemon=True)

    @property
    def latest(self) -> Seen:
        return self._latest

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._latest = self._round()
            if self._stopped.wait(self.interval):
                return

    def _round(self) -> Seen:
        """Looks once. What was seen last stays in sight while looking fails."""
        began, now = time.thread_time(), time.time()
        problem = None
        pipelines: list[PipelineFigures] = []
        try:
            for pipeline in self._pipelines:
                pipelines.append(pipeline())
                self._watch.see_pipeline(pipelines[-1])
            if self._look is not None:
                self._server = self._look()
                self._watch.see_server(self._server, now)
                self._history.add(now, self._server, sum(self._watch.changes.values()))
        except Exception as error:
            problem = str(error) or type(error).__name__
            logger.debug("a look failed", exc_info=True)
        return self._seen(now, time.thread_time() - began, problem, pipelines)

    def _seen(
        self, now: float, cost: float, problem: str | None, pipelines: list[PipelineFigures]
    ) -> Seen:
        document = Document(
            format=FORMAT,
            time=now,
            interval=self.interval,
            cost=cost,
            problem=problem,
            server=self._server,
            changes=dict(self._watch.changes),
            branches=dict(self._watch.branches),
            pipelines=pipelines,
            history=self._history.figures(),
            events=list(self._watch.events),
        )
        return Seen(document, json.dumps(document, separators=(",", ":")).encode())
