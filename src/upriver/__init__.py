"""Upriver: the change stream of a Couchbase-style database in Python and Spark."""

from importlib.metadata import version as _version

from .errors import UpriverError

__all__ = ["UpriverError", "__version__"]

__version__ = _version("upriver")
