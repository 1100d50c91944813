"""Fills an empty mirror with the documents of a history in which each of them is there once.

That is what a backlog looks like that nobody changed while it was read. The rows of such a history
are rows of the mirror, so the executors' workers take them from its files as they are, and Spark
only hands the files out. Whatever is not so simple is left to the general way (`states`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource

from ...model import Op
from .change_log import ChangeLog
from .grouped_files import GroupedWriter, save
from .shape import GROUP, MirrorShape
from .states import DOCUMENT, repeated

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = ["has_each_document_once", "register", "write_first"]

#: Rows of which the driver compares the names by itself, some tens of bytes each.
_MOST_ROWS: Final = 2_000_000
#: Rows that are read at once; a worker keeps several times their bytes.
_BATCH: Final = 16 * 1024


def register(spark: SparkSession) -> None:
    """Must be called before queries that write are started."""
    spark.dataSource.register(_FirstLoad)


def has_each_document_once(spark: SparkSession, log: ChangeLog) -> bool:
    """Whether no document changed twice and nothing was rolled back."""
    if log.rollbacks(-1):
        return False
    count, _ = log.size(-1)
    if count > _MOST_ROWS:
        return repeated(log.rows(spark)).isEmpty()
    files = ds.dataset(log.folder.paths(log.folder.files()), format="parquet")
    names = files.to_table(columns=list(DOCUMENT))
    # most buckets use no name in two collections, and one column is compared in half of the time
    return any(
        names.group_by(columns).aggregate([]).num_rows == count
        for columns in (["key"], [*DOCUMENT])
    )


def write_first(spark: SparkSession, log: ChangeLog, shape: MirrorShape, directory: Path) -> None:
    """Writes the files of the mirror."""
    paths = log.folder.paths(log.folder.files())
    # a task for each file
    files = spark.createDataFrame(
        spark.sparkContext.parallelize(zip(paths), len(paths)), "path string"
    )
    save(files, _FirstLoad.name(), path=str(directory), shape=shape.to_json())


class _FirstLoad(DataSource):
    @classmethod
    def name(cls) -> str:
        return "upriver-first-load"

    def writer(self, schema: StructType, overwrite: bool) -> GroupedWriter:
        shape = MirrorShape.of_json(self.options["shape"])
        return _FromHistory(shape, Path(self.options["path"]))


class _FromHistory(GroupedWriter):
    """Is given the names of files, and writes what they hold."""

    def __init__(self, shape: MirrorShape, directory: Path) -> None:
        super().__init__(GROUP, directory)
        self._shape = shape

    def _rows(self, told: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        columns = self._shape.plain_columns
        for names in told:
            for path in names.column(0).to_pylist():
                with pq.ParquetFile(str(path)) as file:
                    for batch in file.iter_batches(_BATCH, columns=["op", *columns]):
                        yield self._row(batch, columns)

    def _row(self, batch: pa.RecordBatch, columns: list[str]) -> pa.RecordBatch:
        lives = pc.equal(batch.column("op"), pa.scalar(Op.MUTATION.value))
        kept = batch.filter(lives).select(columns)
        group = kept.column("vbucket").to_numpy() % self._shape.groups
        return kept.append_column(GROUP, pa.array(group, pa.int32()))
