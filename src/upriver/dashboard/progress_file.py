"""Tails a pipeline's progress file, which has a line of JSON for every batch.

Only appended lines are read. A file that was replaced by a shorter one is read from its start, and
batches are not counted twice. Invalid lines are skipped.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from .figure_types import BatchFigures, HeartbeatFigures, PipelineFigures
from .figure_validation import checked

#: The most bytes that one call reads (some thousand batches); older ones are skipped.
_MOST: Final = 4 * 1024 * 1024
#: Batches that are shown.
_RECENT: Final = 60


class ProgressFile:
    """One pipeline's file, which need not exist yet."""

    def __init__(
        self,
        path: Path,
        name: str,
        heartbeat: Callable[[], HeartbeatFigures | None] = lambda: None,
    ) -> None:
        self._path = path
        self._heartbeat = heartbeat
        self._name = name
        self._file: tuple[int, int] | None = None
        self._at = 0
        self._newest = 0.0
        self._recent: deque[BatchFigures] = deque(maxlen=_RECENT)
        self._batches = self._rows = self._rollbacks = self._dead_letters = 0

    def sample(self) -> PipelineFigures:
        for line in self._new_lines():
            try:
                # older lines do not have the lag in seconds
                batch = checked(BatchFigures, {"lag_seconds": None} | json.loads(line))
            except (ValueError, TypeError, RecursionError):
                continue
            if batch["time"] > self._newest:
                self._count(batch)
        return PipelineFigures(
            name=self._name,
            now=self._heartbeat(),
            batches=self._batches,
            rows=self._rows,
            rollbacks=self._rollbacks,
            dead_letters=self._dead_letters,
            recent=list(self._recent),
        )

    def _count(self, batch: BatchFigures) -> None:
        self._newest = batch["time"]
        self._recent.append(batch)
        self._batches += 1
        self._rows += batch["rows"]
        self._rollbacks += batch["rollbacks"]
        self._dead_letters += batch["dead_letters"]

    def _new_lines(self) -> list[bytes]:
        try:
            file = open(self._path, "rb")  # noqa: SIM115 (it may not be there, which is no error)
        except FileNotFoundError:
            return []
        with file:
            status = os.fstat(file.fileno())
            identity = status.st_dev, status.st_ino
            if identity != self._file or status.st_size < self._at:
                self._file, self._at = identity, 0
            self._at = max(self._at, status.st_size - _MOST)
            file.seek(self._at)
            raw = file.read(_MOST)
        whole = raw.rfind(b"\n") + 1  # the last line is still being written
        self._at += whole
        return raw[:whole].splitlines()
