"""Where a table is, and where beside it lies what its pipeline needs.

Readers of Delta tables ignore directories whose names begin with ``_``, so all of it can be inside
the table: moved, copied and deleted with it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from ..errors import ConfigError
from ..files.storage import Storage
from .progress_log import LocalProgress, ProgressLog, RemoteProgress

_PRIVATE: Final = "_upriver"


@dataclass(frozen=True, slots=True)
class TablePlace:
    """The place of a table, which the driver and all executors reach by the same address."""

    storage: Storage

    @classmethod
    def parse(cls, text: str | os.PathLike[str], options: Mapping[str, str] | None = None) -> Self:
        """A directory or an address of an object store; ConfigError for anything else."""
        return cls(Storage.parse(text, options))

    def __str__(self) -> str:
        return self.storage.url

    @property
    def root(self) -> Path:
        """The directory of the table, if it is in one."""
        return self.storage.path

    @property
    def private(self) -> Path:
        return self.root / _PRIVATE

    @property
    def progress(self) -> Path:
        return self.private / "progress.jsonl"

    def progress_log(self, run: str) -> ProgressLog:
        """Where a run of the pipeline records its batches."""
        if self.storage.is_local:
            return LocalProgress(self.progress, run)
        return RemoteProgress(self.storage, run)

    def prepare(self) -> None:
        """Makes the directory of the pipeline's state, which is for its user alone."""
        if not self.storage.is_local:
            return
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self.private.mkdir(mode=0o700, exist_ok=True)
        except OSError as problem:
            raise ConfigError(
                f"table: {self.root} cannot be a directory: {problem.strerror}; give another path"
            ) from None
