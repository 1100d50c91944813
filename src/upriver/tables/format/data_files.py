"""Data files as tasks write and read them: Parquet, with a key index beside each file of a mirror.

Few rows become one file. Many become one file for each group of vbuckets, so that a later change
of a document is looked for in few files. Nothing here knows what the rows mean.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ... import _entropy
from ...batches.collection_events import CollectionEnd, Name, ended_rows, named_rows
from ...files.storage import Storage
from .deletion_vectors import read_vector, rows_of
from .delta_log import DataFile
from .key_index import NAME_COLUMNS, Hashes, KeyIndex, binding_of, hashes_of, index_path
from .row_pieces import TASK_BYTES, parquet_pieces

#: The part of a task's memory in which it gathers rows before it writes them.
GATHERED_PART: Final = 4
#: Bytes that a task gathers so; a task with more has a file for each group.
MOST_GATHERED: Final = TASK_BYTES // GATHERED_PART
#: Bytes of one of several tables that are worth a file for each group.
_WORTH_DIVIDING: Final = MOST_GATHERED // 4
#: Bytes of a file that gets no more rows: one task rewrites it when many of them are gone.
_MOST_FILE_BYTES: Final = 128 * 1024 * 1024
#: Bytes of a page of a column, as Arrow has them.
_PAGE_BYTES: Final = 1024 * 1024
#: Bytes of the least and the greatest value of a column that Parquet keeps.
_MOST_LIMIT_BYTES: Final = 4096
#: Columns whose values hardly repeat: a dictionary of them is work for nothing.
_UNIQUE_COLUMNS: Final = frozenset({"key", "value", "seqno", "cas", "event_time"})
#: Bytes of indexes of object stores that a worker keeps; those of directories are only mapped.
_MOST_INDEX_BYTES: Final = 256 * 1024 * 1024

GROUP: Final = "vbucket_group"
#: Stands for all groups where a file is not of one of them.
_UNDIVIDED: Final = -1
#: In a history, null in rows that are current: only these are looked up by a document's name.
VALID_TO: Final = "_valid_to_seqno"


@dataclass(slots=True)
class NewFile:
    """A file that was written and is not part of a table yet."""

    file: DataFile
    #: The largest ``event_time`` in it, in microseconds since 1970, if that is known.
    newest: int | None = None
    #: Rows in it that are gone already, because a later row is of the same document.
    dead: npt.NDArray[np.uint32] = field(default_factory=lambda: np.empty(0, np.uint32))


def _is_long(column: pa.ChunkedArray[Any]) -> bool:
    """Whether Parquet leaves out the limits of such values, but makes four copies of them first."""
    return column.nbytes > _MOST_LIMIT_BYTES * len(column)


class _OpenFile:
    """One file that is being written, with the hashes of its rows."""

    def __init__(self, storage: Storage, first: pa.Table, stack: ExitStack) -> None:
        """``first`` are rows like those that it gets."""
        schema = first.schema
        self.path = f"part-{_entropy.uuid4().hex}.parquet"
        self._storage = storage
        self._stack = stack
        self._place: Path = stack.enter_context(storage.writing(self.path))
        repeating = [name for name in schema.names if name not in _UNIQUE_COLUMNS]
        self._writer = pq.ParquetWriter(
            self._place,
            schema,
            use_dictionary=repeating,  # type: ignore[arg-type]  # names will do
            compression="snappy",
            write_statistics=[name for name in schema.names if not _is_long(first.column(name))],
            store_schema=False,
            # how large a page is, is looked at only after so many rows
            write_batch_size=max(1, min(1024, _PAGE_BYTES * first.num_rows // first.nbytes)),
        )
        self.rows = 0
        self.numbers: list[npt.NDArray[np.int64]] = []

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows)
        self.rows += rows.num_rows

    @property
    def is_full(self) -> bool:
        return self._place.stat().st_size >= _MOST_FILE_BYTES

    def close(self) -> NewFile:
        self._writer.close()
        footer = pq.read_metadata(self._place)
        lows, highs = _limits(footer)
        newest = highs.pop("event_time", None)
        lows.pop("event_time", None)
        current = _nulls(footer, VALID_TO)
        stats = {
            "numRecords": self.rows,
            "minValues": lows,
            "maxValues": highs,
            "nullCount": {VALID_TO: current} if current is not None else {},
            "tightBounds": True,
        }
        groups = (lows[GROUP], highs[GROUP]) if GROUP in lows else None
        described = DataFile(
            name=self.path,
            size=self._place.stat().st_size,
            rows=self.rows,
            stats=json.dumps(stats, separators=(",", ":")),
            modified=int(time.time() * 1000),
            groups=groups,
            closed=current == 0,
        )
        return NewFile(described, newest)


class Gathered:
    """What the files of one task have gathered; those with most of it write theirs at the limit."""

    def __init__(self, most: int = MOST_GATHERED) -> None:
        self.most = most
        self._size = 0
        self._files: list[RowFiles] = []

    def add(self, files: RowFiles) -> None:
        self._files.append(files)

    def make_room(self, size: int) -> None:
        """Some bytes are to be gathered."""
        while self._size and self._size + size > self.most:
            max(self._files, key=lambda files: files.size).flush()
        self._size += size

    def wrote(self, size: int) -> None:
        self._size -= size


class RowFiles:
    """The files of one task for one table.

    With a ``key``, rows have document names and the last row of a document counts: those before
    it are reported as dead, and indexes are written. ``names_only`` rows are no rows: they only
    end what was there before.
    """

    def __init__(
        self,
        storage: Storage,
        schema: pa.Schema,
        *,
        key: bytes | None = None,
        grouped: bool = True,
        gathered: Gathered | None = None,
    ) -> None:
        """Those that share ``gathered`` share its limit."""
        self._storage = storage
        self._schema = schema
        self._key = key
        self._grouped = grouped and GROUP in schema.names
        self._share = gathered or Gathered()
        self._share.add(self)
        self._stack = ExitStack()
        self._gathered: list[pa.RecordBatch] = []
        #: For each gathered batch, the numbers of its rows in the order in which they came.
        self._numbers: list[npt.NDArray[np.int64]] = []
        #: Bytes that are gathered.
        self.size = 0
        self._files: dict[int, _OpenFile] = {}
        self._full: list[_OpenFile] = []
        self._hashes: list[Hashes] = []
        self._groups: list[npt.NDArray[np.int32]] = []
        self._is_row: list[npt.NDArray[np.bool_]] = []
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self._stack.__exit__(*problem)  # type: ignore[arg-type]

    @property
    def wanted(self) -> tuple[Hashes, npt.NDArray[np.int32]]:
        """The documents that were added, and their groups."""
        groups = np.concatenate(self._groups) if self._groups else np.empty(0, np.int32)
        return Hashes.joined(self._hashes), groups

    def add(self, rows: pa.RecordBatch, is_row: npt.NDArray[np.bool_] | None = None) -> None:
        """Takes rows in; where ``is_row`` is false, only the name counts."""
        if not rows.num_rows:
            return
        if self._key is not None:
            self._hashes.append(hashes_of(rows, self._key))
            self._groups.append(np.asarray(rows.column(GROUP)).astype(np.int32))
            chosen = np.ones(rows.num_rows, bool) if is_row is None else is_row
            self._is_row.append(chosen)
        numbers = np.arange(self._count, self._count + rows.num_rows)
        self._count += rows.num_rows
        if is_row is not None and not is_row.all():
            rows, numbers = rows.filter(pa.array(is_row)), numbers[is_row]
        if rows.num_rows:
            self._share.make_room(rows.nbytes)
            self._gathered.append(rows)
            self._numbers.append(numbers)
            self.size += rows.nbytes

    def flush(self) -> None:
        """Writes what is gathered, for each group apart if it is much."""
        much = self.size >= min(_WORTH_DIVIDING, self._share.most // 2)
        self._flush(by_group=self._grouped and (much or self._is_divided))

    @property
    def _is_divided(self) -> bool:
        return any(group != _UNDIVIDED for group in self._files)

    def finish(self) -> list[NewFile]:
        """Writes what is left, the indexes too, and describes the files."""
        self._flush(by_group=self._grouped and self._is_divided)
        live = self._live()
        done = []
        with self._stack:
            for file in (*self._full, *self._files.values()):
                new = file.close()
                if self._key is not None:
                    self._index(file, new, live)
                done.append(new)
        return done

    def _live(self) -> npt.NDArray[np.bool_]:
        if self._key is None:
            return np.empty(0, bool)
        self._hashes = [Hashes.joined(self._hashes)]
        found = self._hashes[0].newest()
        if self._is_row:
            found &= np.concatenate(self._is_row)
        return found

    def _index(self, file: _OpenFile, new: NewFile, live: npt.NDArray[np.bool_]) -> None:
        assert self._key is not None
        numbers = np.concatenate(file.numbers)
        alive = live[numbers]
        new.dead = np.flatnonzero(~alive).astype(np.uint32)
        index = KeyIndex.build(self._hashes[0].take(numbers[alive]), np.flatnonzero(alive))
        _store_index(self._storage, new.file, index, self._key)

    def _flush(self, *, by_group: bool) -> None:
        if not self._gathered:
            return
        gathered, self._gathered = deque(self._gathered), []
        numbers, self._numbers = deque(self._numbers), []
        parts: dict[int, list[pa.RecordBatch]] = {}
        numbered: dict[int, list[npt.NDArray[np.int64]]] = {}
        while gathered:  # each batch is let go when its rows were copied
            some = gathered.popleft(), numbers.popleft()
            for group, rows, mine in _by_group(*some) if by_group else [(_UNDIVIDED, *some)]:
                parts.setdefault(group, []).append(rows)
                numbered.setdefault(group, []).append(mine)
        for group in list(parts):
            rows_of_group = pa.Table.from_batches(parts.pop(group), self._schema)
            self._write(group, rows_of_group, np.concatenate(numbered.pop(group)))
        self._share.wrote(self.size)
        self.size = 0
        pa.default_memory_pool().release_unused()  # what was freed would stay with the process

    def _write(self, group: int, rows: pa.Table, numbers: npt.NDArray[np.int64]) -> None:
        if group in self._files and self._files[group].is_full:
            self._full.append(self._files.pop(group))
        if group not in self._files:
            self._files[group] = _OpenFile(self._storage, rows, self._stack)
        self._files[group].write(rows)
        self._files[group].numbers.append(numbers)


def _by_group(
    rows: pa.RecordBatch, numbers: npt.NDArray[np.int64]
) -> Iterator[tuple[int, pa.RecordBatch, npt.NDArray[np.int64]]]:
    """The rows of each group: batch by batch, since taking rows of a large table is slow."""
    groups = rows.column(GROUP).to_numpy()
    if (groups[1:] < groups[:-1]).any():
        order = np.argsort(groups, kind="stable")
        rows = rows.take(pa.array(order, pa.int64()))
        groups, numbers = groups[order], numbers[order]
    starts = np.flatnonzero(np.diff(groups, prepend=groups[:1] - 1)).tolist()
    for start, stop in zip(starts, [*starts[1:], len(groups)], strict=True):
        yield int(groups[start]), rows.slice(start, stop - start), numbers[start:stop]


# ---- reading -----------------------------------------------------------------------------


def read_rows(
    storage: Storage,
    file: DataFile,
    columns: Collection[str] | None = None,
    *,
    but: npt.NDArray[Any] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The live rows of a file, without those at the numbers ``but`` either."""
    gone = rows_of(read_vector(storage, file.vector)).astype(np.int64)
    if but is not None and len(but):
        gone = np.union1d(gone, but.astype(np.int64))
    with storage.source(file.path) as source:
        parquet = pq.ParquetFile(source)
        first = 0
        for batch in parquet_pieces(parquet, columns):
            low, high = np.searchsorted(gone, [first, first + batch.num_rows])
            kept = _without_views(batch)
            if high > low:
                mask = np.ones(batch.num_rows, bool)
                mask[gone[low:high] - first] = False
                kept = kept.filter(pa.array(mask))
            first += batch.num_rows
            if kept.num_rows:
                yield kept


def _without_views(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Views as plain columns: other writers have them, and Arrow can neither filter nor compare."""
    schema = pa.schema([cell.with_type(_without_view(cell.type)) for cell in rows.schema])
    return rows if schema.types == rows.schema.types else cast_rows(rows, schema)


def _without_view(kind: Any) -> Any:
    if isinstance(kind, pa.StructType):
        return pa.struct([cell.with_type(_without_view(cell.type)) for cell in kind])
    if isinstance(kind, pa.ListType):
        return pa.list_(kind.value_field.with_type(_without_view(kind.value_type)))
    if isinstance(kind, pa.MapType):
        return pa.map_(_without_view(kind.key_type), _without_view(kind.item_type))
    return {pa.binary_view(): pa.binary(), pa.string_view(): pa.string()}.get(kind, kind)


def cast_rows(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of a schema, in its types: other writers have others for the same.

    A column that came to the table later than the file is null.
    """
    there = set(rows.schema.names)
    columns: list[Any] = []
    for cell in schema:
        held: Any = rows.column(cell.name) if cell.name in there else None
        if held is None:
            held = pa.nulls(rows.num_rows, cell.type)
        columns.append(held if held.type == cell.type else held.cast(cell.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def rows_of_vbuckets(
    storage: Storage, file: DataFile, vbuckets: Collection[int]
) -> npt.NDArray[np.uint32]:
    """The numbers of all rows of some vbuckets, dead ones too."""
    with storage.source(file.path) as source:
        column = pq.ParquetFile(source).read(columns=["vbucket"]).column("vbucket")
        chosen = np.isin(column.to_numpy(), np.array(list(vbuckets), np.int32))
    return np.flatnonzero(chosen).astype(np.uint32)


def rows_of_collections(
    storage: Storage, file: DataFile, ends: list[CollectionEnd], gone: Collection[Name] = ()
) -> npt.NDArray[np.uint32]:
    """The numbers of rows that collections have lost, or that are of collections ``gone``."""
    columns = ["vbucket", "seqno", "scope", "collection", VALID_TO]
    with storage.source(file.path) as source:
        table = pq.ParquetFile(source).read(columns=columns)  # those that the file has
    if not table.num_rows:
        return np.empty(0, np.uint32)
    (batch,) = table.combine_chunks().to_batches()
    rows = _without_views(batch)
    chosen = ended_rows(rows, ends) | named_rows(rows, set(gone))
    if VALID_TO in rows.column_names:  # what has ended stays as it is
        chosen &= np.asarray(rows.column(VALID_TO).is_null())
    return np.flatnonzero(chosen).astype(np.uint32)


_indexes: dict[tuple[str, str], tuple[KeyIndex, int]] = {}


def load_index(storage: Storage, file: DataFile, key: bytes) -> KeyIndex:
    """The index of a file: as it is stored, or made anew if that is not the file's own."""
    name = (storage.url, file.path)
    if name in _indexes:
        _indexes[name] = found = _indexes.pop(name)  # the newest used is the last
        return found[0]
    index = _stored_index(storage, file, key)
    if index is None:
        index = _built_index(storage, file, key)
        _store_index(storage, file, index, key)
    size = 64 if storage.is_local else 20 * len(index.rows)
    _indexes[name] = index, size
    while sum(one[1] for one in _indexes.values()) > _MOST_INDEX_BYTES or len(_indexes) > 4096:
        del _indexes[next(iter(_indexes))]
    return index


def _binding(file: DataFile, key: bytes) -> bytes:
    return binding_of(file.path, file.size, file.rows, key)


def _store_index(storage: Storage, file: DataFile, index: KeyIndex, key: bytes) -> None:
    storage.put(index_path(file.path), index.to_bytes(_binding(file, key)))


def _stored_index(storage: Storage, file: DataFile, key: bytes) -> KeyIndex | None:
    path, binding = index_path(file.path), _binding(file, key)
    try:
        if storage.is_local:
            # what is mapped stays so when the file is closed, so that indexes hold no descriptors
            with pa.memory_map(str(storage.path / path)) as mapped:
                return KeyIndex.of_bytes(memoryview(mapped.read_buffer()), binding, file.rows)
        return KeyIndex.of_bytes(storage.read(path), binding, file.rows)
    except (FileNotFoundError, ValueError):  # an empty file cannot be mapped
        return None


def _built_index(storage: Storage, file: DataFile, key: bytes) -> KeyIndex:
    with storage.source(file.path) as source:
        # a column that the file lacks is left out
        names = pq.ParquetFile(source).read(columns=[*NAME_COLUMNS, VALID_TO])
    rows = np.arange(names.num_rows)
    if VALID_TO in names.column_names:
        current = names.column(VALID_TO).is_null()
        names, rows = names.filter(current), rows[np.asarray(current)]
    return KeyIndex.build(hashes_of(names, key), rows)


def _nulls(footer: Any, column: str) -> int | None:
    """How many nulls a column has, if it is there."""
    for at in range(footer.num_columns):
        if footer.schema.column(at).path == column:
            parts = [footer.row_group(group).column(at) for group in range(footer.num_row_groups)]
            return sum(int(part.statistics.null_count) for part in parts)
    return None


def _limits(footer: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The least and the greatest of each column of whole numbers, and of the event times."""
    lows: dict[str, Any] = {}
    highs: dict[str, Any] = {}
    for at in range(footer.num_columns):
        name = footer.schema.column(at).path
        if footer.schema.column(at).physical_type not in ("INT32", "INT64") or "." in name:
            continue
        parts = [
            footer.row_group(group).column(at).statistics for group in range(footer.num_row_groups)
        ]
        if not parts or any(part is None or not part.has_min_max for part in parts):
            continue
        if name == "event_time":
            lows[name] = min(part.min_raw for part in parts)
            highs[name] = max(part.max_raw for part in parts)
        elif isinstance(parts[0].min, int):
            lows[name] = min(part.min for part in parts)
            highs[name] = max(part.max for part in parts)
    return lows, highs
