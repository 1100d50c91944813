"""What Spark's checkpoint says about a batch: from where to where it reads.

Spark writes the end of a batch to ``offsets/N`` before the batch runs, so whoever runs batch N can
look it up, and finds the same when the batch runs again after a crash.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ...errors import ConfigError
from ..offsets import Offset, SourceIdentity

__all__ = ["OffsetLog", "positions_of"]

#: 65,536 vbuckets with long lines; more is no offset of ours.
_MAX_SIZE: Final = 64 * 1024 * 1024


class OffsetLog:
    """The offsets of one checkpoint, which has one source."""

    def __init__(self, checkpoint: Path) -> None:
        self._directory = checkpoint / "offsets"

    def newest_batch(self) -> int:
        """The last batch that was planned; -1 if there is none."""
        try:
            names = [path.name for path in self._directory.iterdir()]
        except FileNotFoundError:
            return -1
        return max((int(name) for name in names if name.isdecimal()), default=-1)

    def end_of(self, batch: int) -> Offset | None:
        """Where a batch ends; None if nothing is decided there yet."""
        path = self._directory / str(batch)
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read(_MAX_SIZE + 1)
        except FileNotFoundError:
            return None
        if len(text) > _MAX_SIZE:
            raise ConfigError(f"the checkpoint's {path} is no offset: it is too large")
        try:
            stored = json.loads(text.rpartition("\n")[2])
            source = _source_of(stored)
        except (ValueError, TypeError, KeyError):
            raise ConfigError(f"the checkpoint's {path} is no offset of this source") from None
        return Offset.of_dict(stored, source)


def _source_of(stored: Mapping[str, Any]) -> SourceIdentity:
    if not stored:
        return SourceIdentity("", "", 1)
    return SourceIdentity(stored["bucket"], stored["bucket_uuid"], int(stored["vbuckets"]))


def positions_of(offset: Offset) -> dict[str, str]:
    """For people and for `verify`: by vbucket its seqno and the name of its branch."""
    return {
        str(vbucket): f"{progress.seqno} {progress.vbuuid:x}"
        for vbucket, progress in sorted(offset.progress.items())
    }
