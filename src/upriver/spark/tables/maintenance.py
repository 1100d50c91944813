"""Care for tables: many small files become few, and files that nobody needs go.

It only rearranges: no row changes. A pipeline may run meanwhile, in this process or another; who
comes second notices and begins again from what the table is then.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deltalake import CommitProperties
from deltalake.exceptions import DeltaError

from .delta import DeltaFolder, again_after_conflicts
from .places import TablePlace

__all__ = ["Cared", "care_for", "compact", "tables_of"]

_log = logging.getLogger(__name__)

#: Bytes of a file: a group of vbuckets is rewritten by files, and small ones cost readers.
_TARGET_SIZE: Final = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Cared:
    """What was done for a table."""

    path: Path
    files_before: int
    files_after: int
    vacuumed: int


def tables_of(place: TablePlace) -> list[DeltaFolder]:
    """Every Delta table that a pipeline keeps at a place."""
    paths = [place.root, place.history, place.dead_letters]
    if place.root.is_dir():
        paths += sorted(path for path in place.root.iterdir() if (path / "_delta_log").is_dir())
    return [folder for folder in map(DeltaFolder, paths) if folder.exists()]


def compact(place: TablePlace, *, hours: float) -> list[Cared]:
    """Compacts every table there, and removes files that went out of use so many hours ago."""
    return [_compacted(folder, hours) for folder in tables_of(place)]


def care_for(place: TablePlace, *, hours: float) -> None:
    """The same between two batches: what fails is only told, since nothing depends on it."""
    try:
        compact(place, hours=hours)
    except (DeltaError, OSError) as problem:
        _log.warning("the tables at %s were not compacted: %s", place.root, problem)


def _compacted(folder: DeltaFolder, hours: float) -> Cared:
    before = len(folder.open().file_uris())

    def once() -> None:
        folder.open().optimize.compact(
            target_size=_TARGET_SIZE, commit_properties=CommitProperties(max_commit_retries=0)
        )

    again_after_conflicts(once)
    table = folder.open()
    gone = table.vacuum(retention_hours=int(hours), dry_run=False, enforce_retention_duration=False)
    return Cared(folder.path, before, len(table.file_uris()), len(gone))
