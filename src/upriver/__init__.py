"""Upriver: the change stream of a Couchbase-style database in Python and Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._lazy import lazily
from .errors import UpriverError

if TYPE_CHECKING:
    from .model import Op

__all__ = ["Op", "UpriverError", "__version__"]

#: Here and not in the metadata of the package, which an archive for executors does not have.
__version__ = "0.2.0"

__getattr__ = lazily(__name__, {"Op": ".model"})
