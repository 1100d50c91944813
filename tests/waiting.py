"""Waiting for what other threads and processes do without telling anybody."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

_T = TypeVar("_T")

#: Seconds that a test waits for something that should come; never reached when all is well.
PATIENCE: Final = 600.0
#: Seconds between two looks: the first pause and the longest.
_FIRST_PAUSE: Final = 0.001
_LONGEST_PAUSE: Final = 0.05


def until(
    look: Callable[[], _T | None],
    *,
    seconds: float = PATIENCE,
    what: str | Callable[[], object] = "",
    unless: Callable[[], object] = lambda: None,
) -> _T:
    """What ``look`` returns, as soon as that is true.

    Fails after ``seconds`` with ``what`` was waited for, by default the source of ``look``, and at
    once if ``unless`` returns a reason why it cannot come anymore.
    """
    limit, pause = time.monotonic() + seconds, _FIRST_PAUSE
    while not (found := look()):
        over = time.monotonic() > limit
        reason = unless() or (f"it did not come in {seconds:g} seconds" if over else None)
        if reason:
            if found := look():  # it came, and then the reason
                return found
            wanted = (what() if callable(what) else what) or _source(look)
            raise AssertionError(f"{reason}: {wanted}")
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    return found


def _source(look: Callable[..., Any]) -> str:
    try:
        return inspect.getsource(look).strip()
    except (OSError, TypeError):  # made by other means than def and lambda
        return repr(look)
