"""The format ``dcp`` as Spark knows it: which class does which kind of work.

Spark pickles what it gets here into its processes, so nothing is opened in a constructor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from ..errors import ConfigError
from .options import ReadOptions, WriteOptions
from .rows import spark_schema

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )

__all__ = ["DcpDataSource"]


class DcpDataSource(DataSource):
    """The changes of a bucket, to read as a batch or a stream; its documents, to write."""

    @classmethod
    def name(cls) -> str:
        return "dcp"

    def schema(self) -> StructType:
        return spark_schema(ReadOptions.parse(self.options).rows)

    def reader(self, schema: StructType) -> DataSourceReader:
        from .batch_reader import batch_reader

        return batch_reader(self._read_options(schema).for_batch())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from .stream_reader import DcpStreamReader

        return DcpStreamReader(self._read_options(schema).for_stream())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from .sink import writer

        return writer(WriteOptions.parse(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from .sink import stream_writer

        return stream_writer(WriteOptions.parse(self.options), schema, overwrite)

    def _read_options(self, schema: StructType) -> ReadOptions:
        options = ReadOptions.parse(self.options)
        if schema != spark_schema(options.rows):
            raise ConfigError(
                "the format dcp has columns of its own; leave schema(...) out and select or parse "
                "what comes (upriver.spark.parse makes columns of JSON)"
            )
        return options
