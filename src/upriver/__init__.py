"""Upriver: the change stream of a Couchbase-style database in Python and Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._lazy import lazily
from .errors import UpriverError

if TYPE_CHECKING:
    from .model import Op

__all__ = ["Op", "UpriverError", "__version__"]

__version__: str

_lazily = lazily(__name__, {"Op": ".model"})


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # it takes as long to load as all the rest

        return version("upriver")
    return _lazily(name)
