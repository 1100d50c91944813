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
def waiting_for(what: str) -> Iterator[Callable[[], None]]:
    """Prints a message to stderr if the block takes long; yields the function that cancels it.

    Nothing is printed with --quiet.
    """
    timer = threading.Timer(_PATIENCE, lambda: click.echo(f"waiting for {what}", err=True))
    timer.daemon = True
    if not is_quiet():
        timer.start()
    try:
        yield timer.cancel
    finally:
        timer.cancel()
