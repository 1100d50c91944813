"""Parses JSON values into columns with Spark's own parsers, which are faster than Python.

Spark parses to a schema, or without one to ``variant``. Values that are not JSON or do not fit the
schema are kept in a separate column or fail the query; the modes have the names of Spark's JSON
reader. Rows are described in `row_schema`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from ..._extras import extra
from ...errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

_MODES: Final = ("PERMISSIVE", "FAILFAST")


def parse(
    changes: DataFrame,
    schema: StructType | str | None = None,
    *,
    mode: Literal["PERMISSIVE", "FAILFAST"] = "PERMISSIVE",
    corrupt: str = "_corrupt_record",
) -> DataFrame:
    """The rows with ``value`` parsed to a schema (or its DDL), or to ``variant``.

    PERMISSIVE makes a value that cannot be parsed null and keeps its bytes in the column
    ``corrupt``; FAILFAST fails the query. Rows without a value keep none.
    """
    with extra("spark"):
        from pyspark.sql import functions as f
        from pyspark.sql.types import StructType

    if mode not in _MODES:
        raise ConfigError(f"mode: {mode!r} is not one of {', '.join(_MODES)}")
    text = f.col("value").cast("string")
    if isinstance(schema, str):
        described = StructType.fromDDL(schema)
        if not isinstance(described, StructType):
            raise ConfigError(f"schema: {schema!r} has no columns, such as 'name string'")
        schema = described
    if mode == "FAILFAST":
        strict = f.parse_json(text) if schema is None else f.from_json(text, schema, {"mode": mode})
        return changes.withColumn("value", strict)
    parsed, bad = _variant(text) if schema is None else _struct(text, schema, corrupt)
    kept = f.when(bad, f.col("value").cast("binary"))
    if corrupt in changes.columns:  # the source has put values there that are not text
        kept = f.coalesce(f.col(corrupt), kept)
    return changes.withColumns({"value": parsed, corrupt: kept})


def _variant(text: Column) -> tuple[Column, Column]:
    from pyspark.sql import functions as f

    parsed = f.try_parse_json(text)
    return parsed, text.isNotNull() & parsed.isNull()


def _struct(text: Column, schema: StructType, corrupt: str) -> tuple[Column, Column]:
    """Adds the member in which Spark reports a value that does not fit, and drops it afterwards."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructType

    if corrupt in schema.names:
        raise ConfigError(
            f"{corrupt} is a member of the schema; name another column for bad values"
        )
    parsed = f.from_json(
        text,
        StructType([*schema.fields]).add(corrupt, StringType()),
        {"columnNameOfCorruptRecord": corrupt},
    )
    bad = text.isNotNull() & (parsed.isNull() | parsed[corrupt].isNotNull())
    return f.when(~bad, parsed.dropFields(corrupt)), bad
