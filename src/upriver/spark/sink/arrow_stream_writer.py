"""The base of a stream's writer that receives Arrow batches, in every version of Spark.

Spark 4.0 hands rows to the writer of a stream, later versions Arrow batches.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from ..runtime.internals import arrow_schema_of
from ..runtime.spark_versions import has_arrow_stream_writer

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: Rows that become one batch.
_ROWS: Final = 1_000

if has_arrow_stream_writer():
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as _Base
else:
    from pyspark.sql.datasource import DataSourceStreamWriter as _Base  # type: ignore[assignment]


class ArrowStreamWriter(_Base):
    """Calls ``write_batches`` with the Arrow batches of a task."""

    def __init__(self, schema: StructType) -> None:
        self._schema = None if has_arrow_stream_writer() else schema

    @abstractmethod
    def write_batches(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Writes what a task has."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        if self._schema is None:
            return self.write_batches(iterator)
        return self.write_batches(_batches(iterator, self._schema))


def _batches(rows: Iterator[Any], schema: StructType) -> Iterator[pa.RecordBatch]:
    arrow = arrow_schema_of(schema)
    while some := list(islice(rows, _ROWS)):
        yield pa.RecordBatch.from_pylist([row.asDict(recursive=True) for row in some], arrow)
