"""The command line ``upriver``: one module per command."""

from __future__ import annotations

import sys

from ..errors import MissingExtra

__all__ = ["run"]


def run() -> None:
    """Runs the command ``upriver``; without its dependencies, says which extra to install."""
    try:
        from .main import main
    except MissingExtra as missing:
        sys.exit(f"error: {missing}")
    main()
