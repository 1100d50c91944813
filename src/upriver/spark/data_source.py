"""Spark's DataSource class of the format ``dcp``: its readers and writers.

Spark pickles these objects into its processes, so constructors open no connections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from ..batches.options import ReadOptions, WriteOptions
from ..errors import ConfigError
from .source.row_types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )


class DcpDataSource(DataSource):
    """Reads the changes of a bucket as a batch or a stream, and writes its documents."""

    @classmethod
    def name(cls) -> str:
        return "dcp"

    def schema(self) -> StructType:
        return spark_schema(ReadOptions.parse(self.options).rows)

    def reader(self, schema: StructType) -> DataSourceReader:
        from .source.batch_reader import batch_reader

        return batch_reader(self._read_options(schema).for_batch())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from .source.stream_reader import stream_reader

        return stream_reader(self._read_options(schema).for_stream())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from .sink.bucket_writer import writer

        return writer(WriteOptions.parse(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from .sink.bucket_writer import stream_writer

        return stream_writer(WriteOptions.parse(self.options), schema, overwrite)

    def _read_options(self, schema: StructType) -> ReadOptions:
        options = ReadOptions.parse(self.options)
        if schema != spark_schema(options.rows):
            raise ConfigError(
                "the format dcp has a fixed schema: leave schema(...) out and select or parse its "
                "columns (upriver.spark.parse makes columns of JSON)"
            )
        return options
