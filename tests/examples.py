"""How many random examples a test tries: some in the gate, all with ``UPRIVER_EXAMPLES=all``."""

from __future__ import annotations

import os

#: The gate tries one of so many.
_SHARE = 4


def examples(count: int, *, least: int = 10) -> int:
    if os.environ.get("UPRIVER_EXAMPLES") == "all":
        return count
    return min(count, max(least, count // _SHARE))
