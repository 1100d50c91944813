"""The schema of the source's rows, as Spark has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from ...batches.options import RowFormat
from ...batches.row_schema import TIMESTAMP, arrow_schema
from ...batches.value_columns import XATTRS

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def spark_schema(rows: RowFormat) -> StructType:
    """The same schema for Spark. All columns are nullable, because Spark does not check them."""
    from pyspark.sql.types import (
        BinaryType,
        IntegerType,
        LongType,
        MapType,
        StringType,
        StructField,
        StructType,
        TimestampType,
    )

    types = {
        pa.string(): StringType(),
        pa.binary(): BinaryType(),
        pa.int32(): IntegerType(),
        pa.int64(): LongType(),
        TIMESTAMP: TimestampType(),
        XATTRS: MapType(StringType(), StringType()),
    }
    return StructType([StructField(cell.name, types[cell.type]) for cell in arrow_schema(rows)])
