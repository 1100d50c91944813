"""Which implementation of the columns this process uses.

``UPRIVER_COLUMNS`` forces one, ``c`` or ``numpy``; without it the compiled one is taken where
there is one.
"""

from __future__ import annotations

import os
from typing import Final

from ...errors import ConfigError
from .interface import Implementation

__all__ = ["VARIABLE", "chosen"]

VARIABLE: Final = "UPRIVER_COLUMNS"


def chosen() -> Implementation:
    """The implementation that the environment asks for; `ConfigError` if it cannot be had."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", "c", "numpy"):
        raise ConfigError(f"{VARIABLE} is {wanted!r}; it can be 'c', 'numpy' or unset")
    if wanted != "numpy":
        try:
            from .c_path import C
        except ImportError as problem:
            if wanted == "c":
                raise ConfigError(
                    f"{VARIABLE} is 'c', but the compiled accelerator is missing ({problem}); "
                    "install upriver again where there is a C compiler with Python's headers, "
                    f"or unset {VARIABLE} to go without"
                ) from problem
        else:
            return C
    from .numpy_path import NUMPY

    return NUMPY
