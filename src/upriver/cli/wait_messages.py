"""Prints what a command waits for, if that takes long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import click

from .common_options import is_quiet

#: Seconds before the message. A healthy server answers within a fraction of a second.
_PATIENCE: Final = 3.0


@contextmanager
def waiting_for(what: str | Callable[[], str]) -> Iterator[Callable[[], None]]:
    """Prints a message to stderr if the block takes long; yields the function that cancels it.

    ``what`` it waits for may be known only then. Nothing is printed with --quiet.
    """

    def tell() -> None:
        click.echo(f"waiting for {what() if callable(what) else what}", err=True)

    timer = threading.Timer(_PATIENCE, tell)
    timer.daemon = True
    if not is_quiet():
        timer.start()
    try:
        yield timer.cancel
    finally:
        timer.cancel()
