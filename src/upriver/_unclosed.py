"""Warns of an object that was dropped while it still had connections, threads or processes."""

from __future__ import annotations

import warnings
from typing import Any, Final

#: Bound now, because modules may be gone when the interpreter ends.
_warn: Final[Any] = warnings.warn


def warn_unclosed(
    dropped: object, of: object, how: str = "use it in a with block, or call close()"
) -> None:
    """Issues the ResourceWarning; called by ``__del__`` of ``dropped``, which is ``of`` this."""
    text = f"{type(dropped).__name__} of {of} was not closed: {how}"
    _warn(text, ResourceWarning, source=dropped, stacklevel=3)
