"""Spark's classes of filters that are pushed down, or stand-ins where Spark has none (4.0)."""

from __future__ import annotations

from typing import Any

from ..runtime.spark_versions import has_filter_classes

__all__ = [
    "EqualNullSafe",
    "EqualTo",
    "Filter",
    "GreaterThan",
    "GreaterThanOrEqual",
    "In",
    "LessThan",
    "LessThanOrEqual",
]

if has_filter_classes():
    from pyspark.sql.datasource import (
        EqualNullSafe,
        EqualTo,
        Filter,
        GreaterThan,
        GreaterThanOrEqual,
        In,
        LessThan,
        LessThanOrEqual,
    )
else:

    class _NoFilter:
        """Nothing is an instance of it: this Spark pushes no filters down."""

    def __getattr__(name: str) -> Any:
        if name in __all__:
            return _NoFilter
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
