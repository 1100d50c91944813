"""Tables in Spark without a jar: the format ``upriver-table``, read by the executors' Python.

Deletion vectors are applied. Files that a filter on a whole-number column rules out are not read.
A change feed has the column ``_change_type``: insert, update_preimage, update_postimage or delete.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Unpack

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StringType, StructType

from ..errors import ConfigError
from ..files.storage import Storage
from ..settings.option_types import TableOptions
from ..settings.setting import camel, text_of
from ..tables.change_feed import CHANGE_TYPE, FeedPart, feed_parts, feed_rows
from ..tables.format.data_files import cast_rows, read_rows
from ..tables.format.delta_log import DataFile
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
        feed = options.read_change_feed
        snapshot = options.snapshot(options.ending_version) if feed else options.rows_snapshot()
        fields = StructType.fromJson(json.loads(snapshot.schema))
        if names := options.columns:
            if missing := [name for name in names if name not in fields.names]:
                raise ConfigError(f"columns: the table has no column {missing[0]}")
            fields = StructType([fields[name] for name in names])
        if feed:
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
        snapshot = self._options.rows_snapshot()
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


class _Part(InputPartition):
    def __init__(self, part: FeedPart) -> None:
        super().__init__(None)
        self.part = part


class ChangeFeedReader(DataSourceReader):
    """What is different between two versions of a mirror."""

    def __init__(self, options: TableReadOptions, schema: StructType) -> None:
        self._options = options
        self._names = [name for name in schema.names if name != CHANGE_TYPE]

    def __repr__(self) -> str:
        return f"{NAME} {self._options.path}"

    def partitions(self) -> Sequence[InputPartition]:
        old = self._options.snapshot(self._options.starting_version)
        new = self._options.snapshot(self._options.ending_version)
        return [_Part(part) for part in feed_parts(old, new, self._names)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Part)
        return feed_rows(self._options.storage, partition.part, self._names)
