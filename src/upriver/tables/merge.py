"""What a task of a batch does: it reads its vbuckets, writes their rows, and finds the old rows.

All changes of a group of vbuckets are read by one task. It writes the new rows into files of its
own, and looks the changed documents up in the key indexes of the table's files; what it finds are
the rows that the batch replaces or deletes. It returns descriptions and row numbers, never rows.

A vbucket that goes back takes its rows of an older version into the new files first, and all its
rows of the present are found. What the step then reads is newer than either.

Where a collection was dropped, emptied or made anew, the rows that it had before are found too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..batches.collection_events import CollectionEnd, CollectionLog, Name
from ..batches.offset_ranges import ReadStep
from ..batches.options import ReadOptions
from ..batches.row_schema import ROLLBACK, arrow_schema
from ..batches.task_reader import StepsRead, read_steps
from ..errors import UpriverError
from ..files.storage import FileGone, Storage
from .commit_state import DEAD_LETTERS
from .format.data_files import (
    GATHERED_PART,
    Gathered,
    NewFile,
    RowFiles,
    cast_rows,
    load_index,
    read_rows,
    rows_of_collections,
    rows_of_vbuckets,
)
from .format.delta_log import DataFile
from .format.key_index import Hashes
from .format.row_pieces import PIECE_PART, TASK_BYTES, joined
from .letter_files import LetterFiles
from .rows.json_types import Type
from .rows.row_shape import MirrorShape

BATCH_COLUMN = "batch"
#: By table (empty for the only one) and file, the numbers of rows.
FoundRows = dict[str, dict[str, npt.NDArray[np.uint32]]]


class VersionGone(UpriverError):
    """Files are gone of the version that a vbucket goes back to."""


@dataclass(slots=True)
class TaskOutcome:
    """What a task has done."""

    #: By table.
    files: dict[str, list[NewFile]] = field(default_factory=dict)
    #: Rows that the batch replaces or deletes.
    gone: FoundRows = field(default_factory=dict)
    letters: list[NewFile] = field(default_factory=list)
    #: Changes that were read.
    changes: int = 0
    read: StepsRead = field(default_factory=StepsRead)
    #: By id the names of collections that were read.
    collections: dict[int, Name] = field(default_factory=dict)
    #: By table and name the types of members that its schema lacks.
    seen: dict[str, dict[str, Type]] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(new.file.size for files in self.files.values() for new in files)

    @property
    def newest(self) -> float | None:
        """Seconds since 1970 of the newest change, if that is known."""
        moments = [n.newest for files in self.files.values() for n in files if n.newest is not None]
        return max(moments) / 1_000_000 if moments else None


@dataclass(frozen=True, slots=True)
class AppendTask:
    """A task of a change log: every row as it is read, with the number of the batch."""

    storage: Storage
    options: ReadOptions
    steps: Sequence[ReadStep]
    batch: int
    #: Bytes.
    memory: int = TASK_BYTES

    def run(self) -> TaskOutcome:
        done = TaskOutcome()
        gathered = Gathered(self.memory // GATHERED_PART)
        with RowFiles(self.storage, change_schema(self.options), gathered=gathered) as files:
            read = read_steps(self.options, self.steps, done.read)
            for rows in joined(read, self.memory // PIECE_PART):
                number = pa.repeat(pa.scalar(self.batch, pa.int64()), rows.num_rows)
                files.add(rows.append_column(BATCH_COLUMN, number))
                done.changes += rows.num_rows
            done.files[""] = files.finish()
        return done


def change_schema(options: ReadOptions) -> pa.Schema:
    """The columns of a change log."""
    return arrow_schema(options.rows).append(pa.field(BATCH_COLUMN, pa.int64()))


@dataclass(frozen=True, slots=True)
class Merge:
    """A task of a mirror."""

    storage: Storage
    options: ReadOptions
    shape: MirrorShape
    #: Of the hashes of document names.
    key: bytes
    steps: Sequence[ReadStep]
    #: By table the files that may have rows of the steps' vbuckets.
    held: Mapping[str, Sequence[DataFile]]
    #: The vbuckets that go back, and what they go back to: by table, files of an older version.
    restored: Sequence[tuple[Collection[int], Mapping[str, Sequence[DataFile]]]] = ()
    per_collection: bool = False
    #: By id the names of collections that the table may have rows of.
    collections: Mapping[int, Name] = field(default_factory=dict)
    #: Collections that leave the table.
    leaving: frozenset[Name] = frozenset()
    #: The files of the dead letters of earlier batches.
    letters: Sequence[DataFile] = ()
    #: Its number.
    batch: int = 0
    #: Bytes.
    memory: int = TASK_BYTES

    def run(self) -> TaskOutcome:
        done = TaskOutcome()
        log = CollectionLog(self.collections)
        gathered = Gathered(self.memory // GATHERED_PART)
        with ExitStack() as stack:
            tables: dict[str, RowFiles] = {}

            def files_of(table: str) -> RowFiles:
                if table not in tables:
                    tables[table] = stack.enter_context(self._files(table, gathered))
                return tables[table]

            try:
                for table, rows in self._restored_rows(done.gone):
                    files_of(table).add(rows)
            except FileGone as problem:
                raise VersionGone(f"TABLE-VERSION-GONE: {problem}") from problem
            again = {step.vbucket for step in self.steps if step.rolls_back}
            place = self.storage.under(DEAD_LETTERS)
            letters = stack.enter_context(
                LetterFiles(place, self.batch, self.letters, again, gathered)
            )
            options = self.shape.read_options(self.options)
            read = read_steps(options, self.steps, done.read, log)
            for changes in joined(read, self.memory // PIECE_PART):
                is_change = pc.not_equal(changes.column("op"), pa.scalar(ROLLBACK))
                if not pc.all(is_change).as_py():
                    changes = changes.filter(is_change)
                done.changes += changes.num_rows
                if not changes.num_rows:
                    continue
                for table, chosen in self.by_table(changes):
                    part = changes if chosen.all() else changes.filter(pa.array(chosen))
                    made = self.shape.of(table).rows(part, done.seen.setdefault(table, {}))
                    if made.letters is not None:
                        letters.add_new(made.letters)
                    files_of(table).add(made.rows, made.is_row)
            done.letters = letters.finish()
            self._settle(done, log, tables)
        done.collections = log.met
        return done

    def _files(self, table: str, gathered: Gathered) -> RowFiles:
        schema = self.shape.of(table).arrow_schema
        return RowFiles(self._place(table), schema, key=self.key, gathered=gathered)

    def _settle(
        self, done: TaskOutcome, log: CollectionLog, tables: Mapping[str, RowFiles]
    ) -> None:
        """Finds what the batch replaces, and finishes its files."""
        for table, files in tables.items():
            done.gone[table] = self.replaced(table, files)
            if written := files.finish():
                done.files[table] = written
        self._add_rolled_back(done.gone)
        self._add_ended(done, log)

    def by_table(self, rows: pa.RecordBatch) -> Iterator[tuple[str, npt.NDArray[np.bool_]]]:
        """Each table that rows belong to, and which rows these are."""
        if not self.per_collection:
            yield "", np.ones(rows.num_rows, bool)
            return
        scopes, collections = rows.column("scope"), rows.column("collection")
        names: Any = np.array(
            [
                collection_table(scope, collection)
                for scope, collection in zip(
                    scopes.to_pylist(), collections.to_pylist(), strict=True
                )
            ],
            object,
        )
        for table in sorted(set(names.tolist())):
            yield table, names == table

    def replaced(self, table: str, files: RowFiles) -> dict[str, npt.NDArray[np.uint32]]:
        """The rows of the table that are of documents of this batch."""
        return {file.name: rows for file, rows, _ in self._found(table, *files.wanted)}

    def _found(
        self, table: str, wanted: Hashes, groups: npt.NDArray[np.int32]
    ) -> Iterator[tuple[DataFile, npt.NDArray[np.uint32], npt.NDArray[np.int64]]]:
        """By file the rows of wanted documents, and which of these each row is of."""
        order = np.argsort(groups, kind="stable")
        wanted, groups = wanted.take(order), groups[order]
        place = self._place(table)
        for file in self.held.get(table, ()):
            first, last = 0, len(wanted)
            if file.groups is not None:
                first, last = np.searchsorted(groups, [file.groups[0], file.groups[1] + 1])
            if first < last and not file.closed:
                mine = wanted.take(slice(first, last))
                rows, which = load_index(place, file, self.key).find_pairs(mine)
                if len(rows):
                    yield file, rows, order[first:last][which]

    # ---- rollbacks -----------------------------------------------------------------------

    def _restored_rows(self, gone: FoundRows) -> Iterator[tuple[str, pa.RecordBatch]]:
        """What vbuckets that go back have again; what goes for it is added to ``gone``."""
        for vbuckets, tables in self.restored:
            wanted = pa.array(sorted(vbuckets), pa.int32())
            for table, files in tables.items():
                schema = self.shape.of(table).arrow_schema
                for file in files:
                    for rows in read_rows(self._place(table), file, schema.names):
                        chosen = rows.filter(pc.is_in(rows.column("vbucket"), wanted))
                        if chosen.num_rows:
                            yield table, cast_rows(chosen, schema)

    def _add_rolled_back(self, gone: FoundRows) -> None:
        back = {step.vbucket for step in self.steps if step.rolls_back}
        for table, file in self._held_of(back):
            add_rows(gone, table, file, rows_of_vbuckets(self._place(table), file, back))

    # ---- collections that were dropped, emptied or made anew -----------------------------

    def _add_ended(self, done: TaskOutcome, log: CollectionLog) -> None:
        before: list[CollectionEnd] = log.ends_of_known
        concerned = {end.vbucket for end in before}
        if self.leaving:
            concerned = {step.vbucket for step in self.steps}
        for table, file in self._held_of(concerned):
            rows = rows_of_collections(self._place(table), file, before, self.leaving)
            add_rows(done.gone, table, file, rows)
        for table, files in done.files.items() if log.dropped else ():
            for new in files:
                rows = rows_of_collections(self._place(table), new.file, log.ends)
                new.dead = np.union1d(new.dead, rows).astype(np.uint32)

    def _held_of(self, vbuckets: Collection[int]) -> Iterator[tuple[str, DataFile]]:
        """The files of each table that may have rows of some vbuckets."""
        groups = {vbucket % self.shape.groups for vbucket in vbuckets}
        for table, files in self.held.items():
            for file in files_of_groups(files, groups):
                yield table, file

    def _place(self, table: str) -> Storage:
        return self.storage.under(table) if table else self.storage


def add_rows(gone: FoundRows, table: str, file: DataFile, rows: npt.NDArray[np.uint32]) -> None:
    """Adds some rows of a file."""
    if len(rows):
        known = gone.setdefault(table, {})
        before = known.get(file.name, np.empty(0, np.uint32))
        known[file.name] = np.union1d(before, rows)


def collection_table(scope: str | None, collection: str | None) -> str:
    """The name of a collection's own table, relative to the place of all of them."""
    return f"{scope}.{collection}" if scope is not None else str(collection)


def files_of_groups(files: Collection[DataFile], groups: Collection[int]) -> list[DataFile]:
    """The files that may have rows of some groups of vbuckets."""
    return [file for file in files if any(file.may_have(group) for group in groups)]
