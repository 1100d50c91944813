"""Writes many rows into one Parquet file for each task and group, in the executors' Python workers.

Spark's own writer sorts rows by group first and encodes them one by one, which takes several times
as long as writing them as they come, in batches. A task keeps a bounded number of bytes and the
open files of its groups. Files of a task count when Spark commits it: until then they are in a
directory of the attempt, so what a failed or repeated attempt wrote is never taken for data.
Nothing here knows what the rows mean.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["ATTEMPTS", "UNIQUE_COLUMNS", "GroupedWriter", "register", "save", "write_grouped"]

#: Where attempts write; its name says to whoever lists the directory that it holds no data.
ATTEMPTS: Final = "_attempts"
#: Bytes that a task gathers before it writes them, so that parts of files are of a good size.
_MOST_GATHERED: Final = 64 * 1024 * 1024
#: Columns whose values hardly repeat: a dictionary of them is work for nothing.
UNIQUE_COLUMNS: Final = frozenset({"key", "value", "seqno", "cas", "event_time"})


def register(spark: SparkSession) -> None:
    """Must be called before anything is written, and before queries that write are started."""
    spark.dataSource.register(_GroupedFiles)


def write_grouped(rows: DataFrame, by: str, directory: Path) -> None:
    """Writes rows to ``directory/<by>=<group>/*.parquet``; the column ``by`` has whole numbers."""
    save(rows, _GroupedFiles.name(), by=by, path=str(directory))


def save(rows: DataFrame, name: str, **options: str) -> None:
    """Has a format of ours write rows."""
    # it makes its session that of the thread, which is where Spark looks for the format
    rows.sparkSession.createDataFrame([], "nothing int")
    rows.write.format(name).mode("append").options(**options).save()


class _GroupedFiles(DataSource):
    @classmethod
    def name(cls) -> str:
        return "upriver-grouped-files"

    def writer(self, schema: StructType, overwrite: bool) -> GroupedWriter:
        return GroupedWriter(self.options["by"], Path(self.options["path"]))


@dataclass(frozen=True, slots=True)
class _Written(WriterCommitMessage):
    attempt: str


class GroupedWriter(DataSourceArrowWriter):
    """It is pickled to the tasks."""

    def __init__(self, by: str, directory: Path) -> None:
        self._by = by
        self._directory = directory

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Written:  # type: ignore[override]
        attempt = uuid.uuid4().hex
        with ExitStack() as stack:
            files = _Files(self._by, self._directory / ATTEMPTS / attempt, attempt, stack)
            for batch in self._rows(iterator):
                files.add(batch)
            files.flush()
        return _Written(attempt)

    def _rows(self, told: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows to write, of what Spark gives to a task."""
        return told

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Takes the files of the tasks that Spark counts, and no others."""
        attempts = self._directory / ATTEMPTS
        for message in messages:
            assert isinstance(message, _Written)
            for file in sorted((attempts / message.attempt).glob("*/*.parquet")):
                group = self._directory / file.parent.name
                group.mkdir(parents=True, exist_ok=True)
                file.rename(group / file.name)
        shutil.rmtree(attempts, ignore_errors=True)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)


class _Files:
    """The files of one attempt."""

    def __init__(self, by: str, directory: Path, name: str, closing: ExitStack) -> None:
        self._by = by
        self._directory = directory
        self._name = name
        self._closing = closing
        self._writers: dict[int, pq.ParquetWriter] = {}
        self._gathered: dict[int, list[pa.RecordBatch]] = {}
        self._size = 0

    def add(self, batch: pa.RecordBatch) -> None:
        at = batch.schema.get_field_index(self._by)
        groups = batch.column(at).to_numpy(zero_copy_only=False)
        order = np.argsort(groups, kind="stable")
        ordered = batch.remove_column(at).take(order)
        groups = groups[order]
        starts = np.flatnonzero(np.diff(groups, prepend=groups[:1] - 1)).tolist()
        for start, stop in zip(starts, [*starts[1:], len(groups)], strict=True):
            part = ordered.slice(start, stop - start)
            self._gathered.setdefault(int(groups[start]), []).append(part)
        self._size += ordered.nbytes
        if self._size >= _MOST_GATHERED:
            self.flush()

    def flush(self) -> None:
        for group, parts in self._gathered.items():
            self._writer(group, parts[0].schema).write_table(pa.Table.from_batches(parts))
        self._gathered.clear()
        self._size = 0

    def _writer(self, group: int, schema: pa.Schema) -> pq.ParquetWriter:
        writer = self._writers.get(group)
        if writer is None:
            folder = self._directory / f"{self._by}={group}"
            folder.mkdir(parents=True)
            repeating = [name for name in schema.names if name not in UNIQUE_COLUMNS]
            writer = pq.ParquetWriter(
                folder / f"{self._name}.parquet",
                schema,
                use_dictionary=repeating,  # type: ignore[arg-type]  # names will do
                compression="snappy",
            )
            self._writers[group] = self._closing.enter_context(writer)
        return writer
