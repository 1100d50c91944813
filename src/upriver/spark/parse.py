"""JSON values as columns, by Spark's own parsers: no source written in Python could keep up.

Spark parses to a schema, or without one to ``variant``. What is no JSON or does not fit the schema
is kept apart or fails the query, with the words that Spark's JSON reader has for these. It knows
rows (see `rows`) and not where they come from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from ..errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

__all__ = ["parse"]

_MODES: Final = ("PERMISSIVE", "FAILFAST")


def parse(
    changes: DataFrame,
    schema: StructType | str | None = None,
    *,
    mode: Literal["PERMISSIVE", "FAILFAST"] = "PERMISSIVE",
    corrupt: str = "_corrupt_record",
) -> DataFrame:
    """The same rows with their ``value`` parsed: to a schema (or its DDL), or to ``variant``.

    PERMISSIVE makes a value that cannot be parsed null and keeps its bytes in the column
    ``corrupt``; FAILFAST fails the query. Rows without a value keep none.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    if mode not in _MODES:
        raise ConfigError(f"mode: {mode!r} is wrong; expected: {', '.join(_MODES)}")
    text = f.col("value").cast("string")
    if isinstance(schema, str):
        described = StructType.fromDDL(schema)
        if not isinstance(described, StructType):
            raise ConfigError(f"schema: {schema!r} describes no columns, such as 'name string'")
        schema = described
    if mode == "FAILFAST":
        strict = f.parse_json(text) if schema is None else f.from_json(text, schema, {"mode": mode})
        return changes.withColumn("value", strict)
    parsed, bad = _variant(text) if schema is None else _struct(text, schema, corrupt)
    kept = f.when(bad, f.col("value").cast("binary"))
    if corrupt in changes.columns:  # the source has put there what is not even text
        kept = f.coalesce(f.col(corrupt), kept)
    return changes.withColumns({"value": parsed, corrupt: kept})


def _variant(text: Column) -> tuple[Column, Column]:
    from pyspark.sql import functions as f

    parsed = f.try_parse_json(text)
    return parsed, text.isNotNull() & parsed.isNull()


def _struct(text: Column, schema: StructType, corrupt: str) -> tuple[Column, Column]:
    """Spark tells a value that does not fit by a member, so it is asked for and then dropped."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructType

    if corrupt in schema.names:
        raise ConfigError(
            f"{corrupt} is a member of the schema; name another column for bad values"
        )
    told = f.from_json(
        text,
        StructType([*schema.fields]).add(corrupt, StringType()),
        {"columnNameOfCorruptRecord": corrupt},
    )
    bad = text.isNotNull() & (told.isNull() | told[corrupt].isNotNull())
    return f.when(~bad, told.dropFields(corrupt)), bad
