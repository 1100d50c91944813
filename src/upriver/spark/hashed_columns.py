"""Columns as Spark can hash them: it hashes everything but maps, as their entries have no order."""

from __future__ import annotations

from .._extras import extra

with extra("spark"):
    from pyspark.sql import Column
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, DataType, MapType, StructType


def without_maps(column: Column, kind: DataType) -> Column:
    """The column with lists of entries instead of maps, at any depth."""
    if not _has_map(kind):
        return column
    if isinstance(kind, MapType):
        value = kind.valueType
        return f.transform(
            f.map_entries(column),
            lambda entry: f.struct(entry["key"], without_maps(entry["value"], value)),
        )
    if isinstance(kind, ArrayType):
        element = kind.elementType
        return f.transform(column, lambda one: without_maps(one, element))
    assert isinstance(kind, StructType)
    members = [without_maps(column.getField(one.name), one.dataType) for one in kind.fields]
    return f.when(column.isNotNull(), f.struct(*members))


def _has_map(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _has_map(kind.elementType)
    if isinstance(kind, StructType):
        return any(_has_map(one.dataType) for one in kind.fields)
    return isinstance(kind, MapType)
