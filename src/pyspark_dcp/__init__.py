"""Lets Spark find the format ``dcp`` by itself: it asks packages with names like this one.

Importing it does nothing, and asking it for the source never raises anything but AttributeError:
one such package that fails would hide the sources of all the others.
"""

from __future__ import annotations

from typing import Any

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> Any:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from upriver.spark.data_source import DcpDataSource
    except Exception as problem:
        raise AttributeError(f"the source dcp cannot be loaded: {problem}") from problem
    return DcpDataSource
