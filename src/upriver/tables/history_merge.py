"""What a task of a history does: each version of a document is a row, and ends as the next begins.

    key  value  _valid_from_seqno  _valid_to_seqno  _ended_by
    a    1      10                 14               mutation
    a    2      14                 20               deletion
    a    3      25                 null             null

Changes are written as current versions, as for a mirror. Then what has ended is found: versions of
the table that have another one in this batch, by the key indexes of the files with current rows;
and versions of the batch itself. Their rows are marked as gone, and written again with their end,
into files that have ended versions only. So a batch costs what its changes and their predecessors
cost, and the files of ended versions are not looked at any more.

A vbucket that goes back needs no older version of the table: versions that began later go, those
that ended later are current again, and what the task reads then follows. It is read from a boundary
on, which may be lower than the seqno up to which its old and new branches are the same. Versions in
between stay, as far as the batch that read them was proved to be of one branch (`stays_up_to`);
those that are read again replace themselves.

The seqno at which a collection was dropped or emptied ends its versions. Collections that the table
is no longer of end at its position.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..batches.collection_events import CollectionEnd, CollectionLog, first_ends
from ..batches.offset_planning import shared
from ..batches.offset_ranges import ReadStep
from ..batches.offsets import Offset
from ..files.storage import Storage
from .format.data_files import (
    GATHERED_PART,
    VALID_TO,
    Gathered,
    NewFile,
    RowFiles,
    rows_of_collections,
)
from .format.deletion_vectors import read_vector, rows_of
from .format.delta_log import DataFile
from .format.row_lookup import rows_at
from .merge import FoundRows, Merge, TaskOutcome, add_rows
from .rows.row_shape import ENDED_BY, VERSION_COLUMNS

#: The end of a version whose collection was dropped or emptied, or left the table.
DROPPED: Final = "dropped"
#: Of a change, what becomes the end of the version before it.
_BEGIN: Final = ("_valid_from_seqno", "_valid_from", ENDED_BY)
_END: Final = (VALID_TO, "_valid_to", ENDED_BY)
_NEVER: Final = np.iinfo(np.int64).max

_Rows = npt.NDArray[np.uint32]
_Changes = npt.NDArray[np.int64]
#: By table and file, the rows that have ended, and the change that ended each, or -1.
_Ended = dict[str, tuple[DataFile, _Rows, _Changes]]


class VersionFiles(RowFiles):
    """The files of current versions of one task for one table."""

    def __init__(self, storage: Storage, schema: pa.Schema, key: bytes, gathered: Gathered) -> None:
        super().__init__(storage, schema, key=key, gathered=gathered)
        none = pa.schema([(name, VERSION_COLUMNS[name]) for name in _BEGIN])
        self._begins = [pa.RecordBatch.from_pylist([], none)]
        #: By file the changes that its rows were, after the end.
        self.changes: dict[str, _Changes] = {}

    def add(self, rows: pa.RecordBatch, is_row: npt.NDArray[np.bool_] | None = None) -> None:
        self._begins.append(rows.select(list(_BEGIN)))
        super().add(_with(rows, {ENDED_BY: pa.nulls(rows.num_rows, pa.string())}), is_row)

    @property
    def begins(self) -> pa.Table:
        """For each change, how it ends the version before it."""
        return pa.Table.from_batches(self._begins)

    def _index(self, file: Any, new: NewFile, live: npt.NDArray[np.bool_]) -> None:
        super()._index(file, new, live)
        self.changes[new.file.name] = np.concatenate(file.numbers)


@dataclass(frozen=True, slots=True)
class MergeVersions(Merge):
    """A task of a history."""

    #: By vbucket that goes back, up to which seqno its versions stay: its start, or more.
    kept: Mapping[int, int] = field(default_factory=dict)

    def _files(self, table: str, gathered: Gathered) -> RowFiles:
        schema = self.shape.of(table).arrow_schema
        return VersionFiles(self._place(table), schema, self.key, gathered)

    # ---- rollbacks -----------------------------------------------------------------------

    def _restored_rows(self, gone: FoundRows) -> Iterator[tuple[str, pa.RecordBatch]]:
        points = {
            step.vbucket: self.kept.get(step.vbucket, step.start)
            for step in self.steps
            if step.rolls_back
        }
        for table, file in self._held_of(points):
            if not _may_be_later(file, points):
                continue
            place = self._place(table)
            begun, ended = _later_rows(place, file, points)
            add_rows(gone, table, file, np.union1d(begun, ended).astype(np.uint32))
            for rows, _ in rows_at(place, file, ended, self.shape.of(table).arrow_schema):
                none = {name: pa.nulls(rows.num_rows, VERSION_COLUMNS[name]) for name in _END}
                yield table, _with(rows, none)

    # ---- versions that end ---------------------------------------------------------------

    def _settle(
        self, done: TaskOutcome, log: CollectionLog, tables: Mapping[str, RowFiles]
    ) -> None:
        for table in sorted({*tables, *self.held}):
            place, schema = self._place(table), self.shape.of(table).arrow_schema
            files = tables.get(table) or self._files(table, Gathered(self.memory // GATHERED_PART))
            assert isinstance(files, VersionFiles)
            ended_rows = Gathered(self.memory // GATHERED_PART)
            with files, RowFiles(place, schema, gathered=ended_rows) as closed:
                written = files.finish()
                ended = self._ended_before(table, files, log, done.gone)
                ended |= self._ended_within(place, files, written, log)
                begins = files.begins
                for file, rows, changes in ended.values():
                    for versions, which in rows_at(place, file, rows, schema):
                        closed.add(self._closed(versions, begins, changes[which], log.ends))
                done.files[table] = [*written, *closed.finish()]

    def _ended_before(
        self, table: str, files: VersionFiles, log: CollectionLog, gone: FoundRows
    ) -> _Ended:
        """Versions of the table that this batch ends; they are gone where they are."""
        place = self._place(table)
        wanted, groups = files.wanted
        _, is_first = wanted.followers()
        first = np.flatnonzero(is_first)
        found: _Ended = {
            file.name: (file, rows, first[which])
            for file, rows, which in self._found(table, wanted.take(first), groups[first])
        }
        concerned = {end.vbucket for end in log.ends_of_known}
        if self.leaving:
            concerned = {step.vbucket for step in self.steps}
        for one, file in self._held_of(concerned):
            if one == table and not file.closed:
                rows = rows_of_collections(place, file, log.ends_of_known, self.leaving)
                _, known, changes = found.get(file.name, (file, rows[:0], np.empty(0, np.int64)))
                more = np.setdiff1d(rows, known)
                nobody = np.full(len(more), -1, np.int64)
                found[file.name] = (
                    file,
                    np.concatenate([known, more]).astype(np.uint32),
                    np.concatenate([changes, nobody]),
                )
        live: _Ended = {}
        for name, (file, rows, changes) in found.items():
            order = np.argsort(rows)
            rows, changes = rows[order], changes[order]
            undone = gone.get(table, {}).get(name, rows[:0])
            lives = _alive(place, file, rows) & np.isin(rows, undone, invert=True)
            if lives.any():
                live[name] = file, rows[lives], changes[lives]
        for file, rows, _ in live.values():
            add_rows(gone, table, file, rows)
        return live

    def _ended_within(
        self, place: Storage, files: VersionFiles, written: list[NewFile], log: CollectionLog
    ) -> _Ended:
        """Versions of this batch that have ended in it already."""
        following, _ = files.wanted[0].followers()
        found: _Ended = {}
        for new in written:
            if log.ends:
                dropped = rows_of_collections(place, new.file, log.ends)
                new.dead = np.union1d(new.dead, dropped).astype(np.uint32)
            if len(new.dead):
                after = following[files.changes[new.file.name][new.dead]]
                found[new.file.name] = new.file, new.dead, after
        return found

    def _closed(
        self,
        versions: pa.RecordBatch,
        begins: pa.Table,
        changes: _Changes,
        ends: list[CollectionEnd],
    ) -> pa.RecordBatch:
        """Versions with their ends: the next version, or what became of their collection."""
        after: Any = begins.take(pa.array(changes, pa.int64(), mask=changes < 0))
        next_seqno, next_time, op = (after.column(name).combine_chunks() for name in _BEGIN)
        seqnos = np.asarray(pc.fill_null(next_seqno, _NEVER))
        dropped = first_ends(versions, ends)
        seqnos = np.where((dropped > 0) & (dropped < seqnos), dropped, seqnos)
        # of what left the table nothing is known but the position
        positions = np.zeros(1 + max((step.vbucket for step in self.steps), default=0), np.int64)
        for step in self.steps:
            positions[step.vbucket] = step.end
        left = positions[np.asarray(versions.column("vbucket"))]
        seqnos = np.where(seqnos == _NEVER, left, seqnos)
        is_next = pc.fill_null(pc.equal(next_seqno, pa.array(seqnos)), False)
        began: Any = versions.column("_valid_from")
        now = pa.scalar(datetime.now(UTC), began.type)
        now = pc.if_else(pc.greater(began, now), began, now)
        end = {
            VALID_TO: pa.array(seqnos),
            "_valid_to": pc.if_else(is_next, next_time, now),
            ENDED_BY: pc.if_else(is_next, op, pa.scalar(DROPPED)),
        }
        is_same = pc.and_(is_next, pc.equal(versions.column("seqno"), end[VALID_TO]))  # read again
        return _with(versions, end).filter(pc.invert(is_same))


def stays_up_to(before: Offset, end: Offset, steps: Sequence[ReadStep]) -> dict[int, int]:
    """By vbucket that goes back, and not to its beginning, up to which seqno its versions stay.

    That is as far as both branches have the same history, but not within the newest step of the
    old one: nobody has seen yet whether all of it was read of that branch. At the beginning
    nothing stays, since deletions that the server has purged are not sent again.
    """
    found = {}
    for step in steps:
        if step.rolls_back and step.start:
            old, new = before.at(step.vbucket), end.at(step.vbucket)
            same = min(shared(old.log, new.log, new.seqno), old.start)
            found[step.vbucket] = max(step.start, same)
    return found


def _with(rows: pa.RecordBatch, columns: Mapping[str, Any]) -> pa.RecordBatch:
    """The same rows with other values in some columns."""
    made = [columns.get(name, rows.column(name)) for name in rows.schema.names]
    return pa.RecordBatch.from_arrays(made, schema=rows.schema)


def _alive(storage: Storage, file: DataFile, rows: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which of some rows the file's vector does not mark as gone."""
    return np.isin(rows, rows_of(read_vector(storage, file.vector)), invert=True)


def _may_be_later(file: DataFile, points: Mapping[int, int]) -> bool:
    """Whether a file can have versions that began or ended after the points."""
    highs = file.statistics.get("maxValues") or {}
    if "seqno" not in highs:
        return True
    newest: int = max(highs["seqno"], highs.get(VALID_TO, 0))
    return newest > min(points.values())


def _later_rows(storage: Storage, file: DataFile, points: Mapping[int, int]) -> tuple[_Rows, _Rows]:
    """By vbucket there are seqnos: the live rows that began after, and those that ended after."""
    with storage.source(file.path) as source:
        rows = pq.ParquetFile(source).read(columns=["vbucket", "seqno", VALID_TO])
    vbuckets = np.asarray(rows.column("vbucket"))
    limits = np.full(1 + max(int(vbuckets.max(initial=0)), *points), _NEVER)
    limits[list(points)] = list(points.values())
    limit = limits[vbuckets]
    begun = np.asarray(rows.column("seqno")) > limit
    ends: Any = rows.column(VALID_TO)
    ended = (np.asarray(pc.fill_null(ends, 0)) > limit) & ~begun
    alive = _alive(storage, file, np.arange(len(limit)))
    return (
        np.flatnonzero(begun & alive).astype(np.uint32),
        np.flatnonzero(ended & alive).astype(np.uint32),
    )
