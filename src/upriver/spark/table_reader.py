"""Tables in Spark without a jar: the format ``upriver-table``, read by the executors' Python.

Deletion vectors are applied. Files that a filter on a whole-number column rules out are not read.
A change feed has the column ``_change_type``: insert, update_preimage, update_postimage or delete.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StringType, StructType

from ..errors import ConfigError
from ..files.storage import Storage
from ..settings.option_types import TableOptions
from ..settings.setting import camel, text_of
from ..tables.format.data_files import GROUP, VALID_TO, cast_rows, read_rows
from ..tables.format.deletion_vectors import read_vector, rows_of
from ..tables.format.delta_log import DataFile, TableSnapshot
from ..tables.format.key_index import NAME_COLUMNS
from ..tables.pipeline_settings import storage_options
from ..tables.table_read_options import TableReadOptions
from .functions.parse import parse
from .runtime.internals import may_push_filters
from .source.filter_classes import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME: Final = "upriver-table"
CHANGE_TYPE: Final = "_change_type"
#: Bytes of files that one task reads.
_TASK_BYTES: Final = 64 * 1024 * 1024


def read_table(
    spark: SparkSession,
    table: str | os.PathLike[str],
    *,
    variant: bool = False,
    **options: Unpack[TableOptions],
) -> DataFrame:
    """A table as a frame; ``options`` are those of the format ``upriver-table``.

    They are spelled as in Spark or in Python: ``versionAsOf=7`` or ``version_as_of=7``. With
    ``variant`` the values of documents, which the table has as bytes or text, are of Spark's type
    VARIANT; those that are no JSON are null, with their bytes in ``_corrupt_record``.
    """
    from .session import register

    register(spark)
    chosen = {camel(name): text_of(value) for name, value in options.items() if value is not None}
    storage = Storage.parse(table, storage_options(chosen.pop("storageOptions", None)))
    if storage.options:  # the driver's environment is not that of the executors
        chosen["storageOptions"] = json.dumps(dict(storage.options))
    rows = spark.read.format(NAME).options(**chosen).load(storage.url)
    if not variant:
        return rows
    if "value" not in rows.columns:
        raise ConfigError(
            f"variant: {storage.url} has no column value, because its documents have columns of "
            "their own; read a mirror that was made without valueSchema"
        )
    return parse(rows)


class TableSource(DataSource):
    """A Delta table, to read."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        options = TableReadOptions.parse(self.options)
        fields = StructType.fromJson(json.loads(options.snapshot(options.version_as_of).schema))
        if names := options.columns:
            if missing := [name for name in names if name not in fields.names]:
                raise ConfigError(f"columns: the table has no column {missing[0]}")
            fields = StructType([fields[name] for name in names])
        if options.read_change_feed:
            fields = StructType([*fields.fields]).add(CHANGE_TYPE, StringType())
        return fields

    def reader(self, schema: StructType) -> DataSourceReader:
        options = TableReadOptions.parse(self.options)
        if options.read_change_feed:
            return ChangeFeedReader(options, schema)
        wanted = options.push_filters and may_push_filters("pushFilters")
        return (_FilteringReader if wanted else TableReader)(options, schema)


class _Files(InputPartition):
    def __init__(self, files: Sequence[DataFile], schema: pa.Schema) -> None:
        super().__init__(None)
        self.files = tuple(files)
        self.schema = schema


class TableReader(DataSourceReader):
    """The rows of a version."""

    def __init__(self, options: TableReadOptions, schema: StructType) -> None:
        self._options = options
        self._names = schema.names
        self._filters: list[Filter] = []

    def __repr__(self) -> str:
        return f"{NAME} {self._options.path}"

    def partitions(self) -> Sequence[InputPartition]:
        snapshot = self._options.snapshot(self._options.version_as_of)
        parts: list[list[DataFile]] = [[]]
        size = 0
        for file in sorted(snapshot.files.values(), key=lambda file: -file.size):
            if not all(_may_match(one, file) for one in self._filters):
                continue
            if size and size + file.size > _TASK_BYTES:
                parts.append([])
                size = 0
            parts[-1].append(file)
            size += file.size
        schema = snapshot.arrow_schema()
        chosen = pa.schema([schema.field(name) for name in self._names])
        return [_Files(part, chosen) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Files)
        storage = self._options.storage
        for file in partition.files:
            for rows in read_rows(storage, file, self._names):
                yield cast_rows(rows, partition.schema)


class _FilteringReader(TableReader):
    """The same where Spark pushes filters down."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        self._filters = list(filters)
        return filters


def _may_match(one: Filter, file: DataFile) -> bool:
    """Whether a file can have rows that a filter lets pass, by its least and greatest values."""
    stats = file.statistics
    column: tuple[str, ...] = getattr(one, "attribute", ())
    low = (stats.get("minValues") or {}).get(column[0]) if len(column) == 1 else None
    high = (stats.get("maxValues") or {}).get(column[0]) if len(column) == 1 else None
    value = getattr(one, "value", None)
    if not (isinstance(low, int) and isinstance(high, int)):
        return True
    if isinstance(one, In) and isinstance(value, tuple | list):
        return any(isinstance(each, int) and low <= each <= high for each in value)
    if not isinstance(value, int):
        return True
    if isinstance(one, EqualTo):
        return low <= value <= high
    if isinstance(one, GreaterThan | GreaterThanOrEqual):
        return high >= value
    if isinstance(one, LessThan | LessThanOrEqual):
        return low <= value
    return True


# ---- change feed -------------------------------------------------------------------------


class _Group(InputPartition):
    def __init__(self, group: int | None, before: Any, after: Any, schema: pa.Schema) -> None:
        super().__init__(None)
        self.group = group
        self.schema = schema
        self.before: list[tuple[DataFile, DataFile | None]] = before
        self.after: list[tuple[DataFile, DataFile | None]] = after


class ChangeFeedReader(DataSourceReader):
    """What is different between two versions of a mirror, document by document."""

    def __init__(self, options: TableReadOptions, schema: StructType) -> None:
        self._options = options
        self._names = [name for name in schema.names if name != CHANGE_TYPE]

    def __repr__(self) -> str:
        return f"{NAME} {self._options.path}"

    def partitions(self) -> Sequence[InputPartition]:
        old = self._options.snapshot(self._options.starting_version)
        new = self._options.snapshot(self._options.ending_version)
        if missing := [name for name in NAME_COLUMNS if name not in _names(new)]:
            raise ConfigError(f"readChangeFeed: the table has no column {missing[0]}: no mirror")
        if VALID_TO in _names(new):
            raise ConfigError(
                "readChangeFeed: a history has a row for each change; compare _valid_from_seqno "
                "and _valid_to_seqno instead"
            )
        schema = new.arrow_schema()
        schema = pa.schema([schema.field(name) for name in self._names])
        before = _differing(old.files, new.files)
        after = _differing(new.files, old.files)
        ranges = [file.groups for file, _ in (*before, *after)]
        if any(one is None for one in ranges):
            return [_Group(None, before, after, schema)]
        last = max((one[1] for one in ranges if one), default=-1)
        made: list[InputPartition] = []
        for group in range(last + 1):
            gone = [pair for pair in before if pair[0].may_have(group)]
            come = [pair for pair in after if pair[0].may_have(group)]
            if gone or come:
                made.append(_Group(group, gone, come, schema))
        return made or [_Group(None, [], [], schema)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Group)
        storage = self._options.storage
        wanted = list(dict.fromkeys([*NAME_COLUMNS, *self._names, "seqno", "cas", GROUP]))
        before = _rows(storage, partition.before, partition.group, wanted)
        after = _rows(storage, partition.after, partition.group, wanted)
        changes: dict[str, list[tuple[Any, int]]] = {}
        for name, (row, number) in before.items():
            if name not in after:
                changes.setdefault("delete", []).append((row, number))
            elif not _same(row, number, *after[name]):
                changes.setdefault("update_preimage", []).append((row, number))
                changes.setdefault("update_postimage", []).append(after[name])
        changes["insert"] = [place for name, place in after.items() if name not in before]
        for kind, places in changes.items():
            by_batch: dict[int, tuple[pa.RecordBatch, list[int]]] = {}
            for row, number in places:
                by_batch.setdefault(id(row), (row, []))[1].append(number)
            for batch, numbers in by_batch.values():
                rows = cast_rows(batch.take(pa.array(numbers, pa.int64())), partition.schema)
                yield rows.append_column(CHANGE_TYPE, pa.array([kind] * len(numbers), pa.string()))


def _names(snapshot: TableSnapshot) -> list[str]:
    return [field["name"] for field in json.loads(snapshot.schema)["fields"]]


def _differing(
    mine: Mapping[str, DataFile], other: Mapping[str, DataFile]
) -> list[tuple[DataFile, DataFile | None]]:
    """The files of which one version has live rows that the other has not, with the other's."""
    return [
        (file, other.get(name))
        for name, file in mine.items()
        if name not in other or other[name].vector != file.vector
    ]


def _rows(
    storage: Storage,
    files: Sequence[tuple[DataFile, DataFile | None]],
    group: int | None,
    columns: Sequence[str],
) -> dict[tuple[Any, ...], tuple[pa.RecordBatch, int]]:
    """By name the rows that only this version has."""
    found: dict[tuple[Any, ...], tuple[pa.RecordBatch, int]] = {}
    for file, other in files:
        shared = None
        if other is not None:  # what lives in both is no difference
            dead = rows_of(read_vector(storage, other.vector)).astype(np.int64)
            shared = np.setdiff1d(np.arange(file.rows), dead)
        for rows in read_rows(storage, file, columns, but=shared):
            chosen = rows
            if group is not None:
                chosen = rows.filter(pc.equal(rows.column(GROUP), pa.scalar(group, pa.int32())))
            names = zip(*(chosen.column(name).to_pylist() for name in NAME_COLUMNS), strict=True)
            for number, name in enumerate(names):
                found[name] = chosen, number
    return found


def _same(row: pa.RecordBatch, number: int, other: pa.RecordBatch, at: int) -> bool:
    """Whether two rows are the same change: a compaction moves rows and changes none."""
    return all(
        row.column(name)[number] == other.column(name)[at]
        for name in ("seqno", "cas", "branch")
        if name in row.schema.names and name in other.schema.names
    )
