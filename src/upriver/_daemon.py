"""Starts daemon threads for computations that cannot be interrupted.

A simulation runs them at once instead: the end of a thread is at a time that no seed decides.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_is_inline = False


def start(work: Callable[[], object], *, name: str) -> None:
    """Runs ``work`` in a daemon thread."""
    if _is_inline:
        work()
    else:
        threading.Thread(target=work, name=name, daemon=True).start()


@contextmanager
def inline() -> Iterator[None]:
    """Runs the work at once in a block, in this process; for simulations only."""
    global _is_inline
    before, _is_inline = _is_inline, True
    try:
        yield
    finally:
        _is_inline = before
