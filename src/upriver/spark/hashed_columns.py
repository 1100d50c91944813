"""Columns as Spark can hash them, so that different values have different hashes.

Spark refuses to hash maps, and passes over nulls: ``[null, 1]`` would be the same as ``[1, null]``.
"""

from __future__ import annotations

from .._extras import extra

with extra("spark"):
    from pyspark.sql import Column
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, DataType, MapType, StructType


def hashable(column: Column, kind: DataType) -> Column:
    """The column with lists of entries instead of maps, and beside all that is inside, if it is."""
    if isinstance(kind, MapType):
        value = kind.valueType
        return f.transform(
            f.map_entries(column),
            lambda entry: f.struct(entry["key"], _inside(entry["value"], value)),
        )
    if isinstance(kind, ArrayType):
        element = kind.elementType
        return f.transform(column, lambda one: _inside(one, element))
    if isinstance(kind, StructType) and kind.fields:
        members = [_inside(column.getField(one.name), one.dataType) for one in kind.fields]
        return f.when(column.isNotNull(), f.struct(*members))
    return column


def _inside(column: Column, kind: DataType) -> Column:
    return f.struct(column.isNull(), hashable(column, kind))
