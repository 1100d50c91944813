"""Spark: source, sink, tables and pipelines. It uses the consumer and never the producer.

Importing it loads no Spark; what is called does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .fold import fold
from .parse import parse
from .session import register, session

if TYPE_CHECKING:
    from .tables.api import changelog, mirror
    from .tables.verify import verify

__all__ = ["changelog", "fold", "mirror", "parse", "register", "session", "verify"]


def __getattr__(name: str) -> Any:
    # these bring the table format with them, which a worker of Spark has no use for
    if name in ("changelog", "mirror"):
        from .tables import api

        return getattr(api, name)
    if name == "verify":
        from .tables.verify import verify

        return verify
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
