"""Where a table is, and where beside it lies what its pipeline needs.

Readers of Delta tables ignore directories whose names begin with ``_``, so all of it can be inside
the table: moved, copied and deleted with it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self
from urllib.parse import unquote, urlsplit

from ...errors import ConfigError

__all__ = ["TablePlace"]

_PRIVATE: Final = "_upriver"


@dataclass(frozen=True, slots=True)
class TablePlace:
    """The directory of a table, which the driver and all executors see under one path."""

    root: Path

    @classmethod
    def parse(cls, text: str | os.PathLike[str]) -> Self:
        """A path, or a ``file:`` address of one; ConfigError for anything else."""
        text = os.fspath(text)
        scheme, separator, _ = text.partition("://")
        if text.startswith("file:"):
            text = unquote(urlsplit(text).path)
        elif separator:
            raise ConfigError(
                f"table: {scheme}:// is not supported; give a directory that the driver and the "
                "executors see under the same path"
            )
        if not text:
            raise ConfigError("table: a directory must be given")
        return cls(Path(text).absolute())

    @property
    def private(self) -> Path:
        return self.root / _PRIVATE

    @property
    def checkpoint(self) -> Path:
        """Where Spark keeps its own books, unless the user says otherwise."""
        return self.private / "checkpoint"

    @property
    def history(self) -> Path:
        """The change log that a mirror is made from."""
        return self.private / "history"

    @property
    def dead_letters(self) -> Path:
        return self.private / "dead_letters"

    @property
    def progress(self) -> Path:
        return self.private / "progress.jsonl"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps a second pipeline off this table; the lock goes with the process."""
        self.private.mkdir(parents=True, exist_ok=True)
        with open(self.private / "lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ConfigError(f"another pipeline is running on {self.root}") from None
            yield
