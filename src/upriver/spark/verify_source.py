"""The documents of a bucket as rows of a mirror, for `verify`: a format of its own for Spark.

Each change is a row of the mirror's shape, with ``gone`` where the mirror has no row for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.types import BooleanType, StructType

from ..batches.options import ReadOptions
from ..batches.row_schema import ROLLBACK
from ..tables.format import schema_json
from ..tables.rows.row_shape import MirrorShape
from .source.batch_reader import DcpBatchReader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

#: Says of a document that the mirror has no row for it.
GONE: Final = "gone"
_SHAPE: Final = "upriver.shape"


def documents_as_rows(
    spark: SparkSession, options: Mapping[str, str], any_wanted: bool, shape: MirrorShape
) -> DataFrame:
    """The changes of a bucket, each as a row of a mirror; no rows unless ``any_wanted``."""
    spark.dataSource.register(_Documents)
    given = {**options, _SHAPE: shape.to_json()}
    rows = spark.read.format(_Documents.name()).options(**given).load()
    return rows if any_wanted else rows.limit(0)


class _Documents(DataSource):
    @classmethod
    def name(cls) -> str:
        return "upriver-documents"

    def _shape(self) -> MirrorShape:
        return MirrorShape.of_json(self.options[_SHAPE])

    def schema(self) -> StructType:
        schema = schema_json.to_json(self._shape().arrow_schema)
        return StructType.fromJson(json.loads(schema)).add(GONE, BooleanType())

    def reader(self, schema: StructType) -> _Reader:
        source = {name: text for name, text in self.options.items() if name.lower() != _SHAPE}
        shape = self._shape()
        return _Reader(shape.read_options(ReadOptions.parse(source).for_batch()), shape)


class _Reader(DcpBatchReader):
    def __init__(self, options: ReadOptions, shape: MirrorShape) -> None:
        super().__init__(options)
        self._shape = shape

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for changes in super().read(partition):
            live = changes.filter(pc.not_equal(changes.column("op"), pa.scalar(ROLLBACK)))
            if live.num_rows:
                made = self._shape.rows(live)
                yield made.rows.append_column(GONE, pa.array(~made.is_row))
