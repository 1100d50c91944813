"""How many random examples a test tries.

Some in the gate, all with ``UPRIVER_EXAMPLES=all``, and with ``UPRIVER_EXAMPLES=few`` no more than
it takes to reach the lines that the coverage is of.
"""

from __future__ import annotations

import os
from typing import Final

_WANTED: Final = os.environ.get("UPRIVER_EXAMPLES")
#: The gate tries one of so many.
_SHARE: Final = 4
_FEW: Final = 5

#: Of a property that says nothing of it; the first is what Hypothesis itself would try.
USUAL: Final = 100 if _WANTED != "few" else _FEW


def examples(count: int, *, least: int = 10) -> int:
    if _WANTED == "all":
        return count
    return min(count, max(least, count // _SHARE) if _WANTED != "few" else _FEW)
