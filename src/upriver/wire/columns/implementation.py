"""Selects the implementation of the columns: the compiled accelerator or numpy.

The environment variable ``UPRIVER_COLUMNS`` forces one, ``c`` or ``numpy``; without it the compiled
one is used if it was built.
"""

from __future__ import annotations

import os
from typing import Final

from ...errors import ConfigError
from .interface import Implementation

VARIABLE: Final = "UPRIVER_COLUMNS"


def chosen() -> Implementation:
    """The selected implementation; `ConfigError` if the forced one is not available."""
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
                    "reinstall upriver on a machine with a C compiler and Python's headers, "
                    f"or unset {VARIABLE} to use numpy"
                ) from problem
        else:
            return C
    from .numpy_path import NUMPY

    return NUMPY
