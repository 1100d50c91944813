"""Whether a value is JSON, strictly."""

from __future__ import annotations

import json
from typing import Final

#: The first bytes of any JSON text.
_BEGINNINGS: Final = frozenset(b'{["-0123456789tfn \t\r\n')


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


#: Python's own default takes NaN and Infinity for numbers.
DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant)


def is_json(body: bytes) -> bool:
    """Whether a body is JSON; one that is nested too deeply counts as none."""
    if not body or body[0] not in _BEGINNINGS:
        return False
    try:
        DECODER.decode(body.decode())
    except (ValueError, RecursionError):
        return False
    return True
