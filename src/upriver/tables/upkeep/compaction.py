"""Fewer and larger files, without rows that are gone. No row changes.

A file is rewritten when a fifth of its rows are gone. Small files are put together by size: when
there are several of about the same size that hold the same groups of vbuckets, they become one, so
every row is rewritten only a few times however large the table becomes. What has become large is
divided into a file for each group. Versions of a history that have ended lie in files of their own,
which lose rows only by a rollback, and are put together only with each other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ...files.storage import Storage
from ..format.data_files import (
    MOST_GATHERED,
    VALID_TO,
    Gathered,
    NewFile,
    RowFiles,
    cast_rows,
    read_rows,
)
from ..format.delta_log import DataFile

#: The part of a file's rows that are gone, from which on it is rewritten.
_DEAD: Final = 0.2
#: Files of about the same size, and by which factor sizes differ.
_MOST_ALIKE: Final = 8
_FACTOR: Final = 8
#: Bytes of a file that is not put together with others any more.
_LARGE: Final = 128 * 1024 * 1024
#: Bytes of a file that is put together with files of other groups.
_SMALL: Final = 8 * 1024 * 1024
#: Bytes that are rewritten before it is known how fast that goes.
FIRST_BYTES: Final = 32 * 1024 * 1024
#: Seconds that a round of compaction may take: the next batch waits for it. A round has at least
#: one task, which rewrites at most `_LARGE` bytes or one file.
_SECONDS: Final = 1.0


@dataclass(slots=True)
class CompactionPace:
    """How much a round of compaction may rewrite, by how long the last ones took."""

    bytes: int = FIRST_BYTES

    def took(self, size: int, seconds: float) -> None:
        """A round has rewritten so many bytes."""
        possible = int(size * _SECONDS / max(seconds, 0.01))
        self.bytes = max(1, (self.bytes + min(possible, 4 * self.bytes)) // 2)


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Files and what they have become."""

    before: Sequence[DataFile]
    after: Sequence[NewFile]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A task that copies the live rows of some files into new ones."""

    storage: Storage
    schema: pa.Schema
    #: Of a mirror's key index; None for tables without one.
    key: bytes | None
    files: Sequence[DataFile]
    #: Rows that go besides, by file.
    gone: dict[str, Any] = field(default_factory=dict)

    def run(self) -> Rewritten:
        size = sum(file.size for file in self.files)
        large = size >= _LARGE
        gathered = Gathered(min(MOST_GATHERED, max(1, size)) if large else MOST_GATHERED)

        def files(key: bytes | None) -> RowFiles:
            return RowFiles(
                self.storage,
                self.schema,
                key=key,
                grouped=large,
                gathered=gathered,
            )

        # of a history: what has ended lies apart from what is current
        with files(self.key) as out, files(None) as ended:
            for file in self.files:
                for rows in read_rows(
                    self.storage, file, self.schema.names, but=self.gone.get(file.name)
                ):
                    shaped = cast_rows(rows, self.schema)
                    if VALID_TO in self.schema.names:
                        has_ended = shaped.column(VALID_TO).is_valid()
                        ended.add(shaped.filter(has_ended))
                        shaped = shaped.filter(pc.invert(has_ended))
                    out.add(shaped)
            return Rewritten(self.files, [*out.finish(), *ended.finish()])


def chosen_for_compaction(
    files: Collection[DataFile], *, everything: bool = False, most_bytes: int = FIRST_BYTES
) -> tuple[list[list[DataFile]], bool]:
    """Which files become one another: lists of files, each the work of one task.

    Of what is due, ``most_bytes`` are chosen, or all; the second value says whether more is due.
    """
    chosen: list[list[DataFile]] = []
    alike: dict[tuple[Any, int, bool], list[DataFile]] = {}
    for file in sorted(files, key=lambda file: file.size):
        one_group = file.groups[0] if file.groups and file.groups[0] == file.groups[1] else None
        if file.size >= _LARGE:
            if _is_due(file, everything):
                chosen.append([file])
        elif everything:
            kind = one_group if file.size >= _SMALL else None
            alike.setdefault((kind, 0, file.closed), []).append(file)
        else:
            alike.setdefault((one_group, _size_class(file), file.closed), []).append(file)
    for some in alike.values():
        if len(some) >= (2 if everything else _MOST_ALIKE):
            chosen += _cut(some)
        else:
            chosen += [[file] for file in some if _is_due(file, everything)]
    if everything:
        return chosen, False
    bounded: list[list[DataFile]] = []
    size = 0
    for some in chosen:
        size += sum(file.size for file in some)
        if bounded and size > most_bytes:
            break
        bounded.append(some)
    return bounded, len(bounded) < len(chosen)


def _is_due(file: DataFile, everything: bool) -> bool:
    """Whether enough rows of a file are gone."""
    return bool(file.dead) and (everything or file.dead >= _DEAD * file.rows)


def _cut(files: list[DataFile]) -> list[list[DataFile]]:
    """Lists of a size that one task can do."""
    parts: list[list[DataFile]] = [[]]
    size = 0
    for file in files:
        if size + file.size > _LARGE and parts[-1]:
            parts.append([])
            size = 0
        parts[-1].append(file)
        size += file.size
    return [part for part in parts if len(part) > 1 or part[0].dead]


def _size_class(file: DataFile) -> int:
    size, number = max(1, file.live), 0
    while size >= _FACTOR:
        size //= _FACTOR
        number += 1
    return number
