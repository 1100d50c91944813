"""Upriver: the change stream of a Couchbase-style database in Python and Spark."""

from .errors import UpriverError

__all__ = ["UpriverError", "__version__"]

__version__: str


def __getattr__(name: str) -> str:
    if name == "__version__":
        from importlib.metadata import version  # it takes as long to load as all the rest

        return version("upriver")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
