"""Parses lists of vbuckets such as ``0-15,17``.

Whether the bucket has these vbuckets is checked by the caller.
"""

from __future__ import annotations

import re
from typing import Final

from ..errors import ConfigError

#: Vbucket numbers have 16 bits.
MAX_VBUCKETS: Final = 65536
_PART: Final = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", re.ASCII)
#: Enough for every vbucket's number with a comma and a space.
_MAX_TEXT: Final = MAX_VBUCKETS * 7


def parse_vbuckets(text: str) -> tuple[int, ...]:
    """The vbuckets of such a list in ascending order; ConfigError says what is wrong with it."""
    if len(text) > _MAX_TEXT:
        raise ConfigError(f"a list of vbuckets has at most {_MAX_TEXT} characters, not {len(text)}")
    chosen: set[int] = set()
    for part in map(str.strip, text.split(",")):
        found = _PART.fullmatch(part)
        if found is None:
            raise ConfigError(
                f"{part[:40]!r} is neither a vbucket nor a range; write vbuckets like 0-15,17"
            )
        first = int(found[1])
        last = int(found[2] or first)
        if last < first:
            raise ConfigError(f"the range {part} is descending; write {last}-{first}")
        if last >= MAX_VBUCKETS:
            raise ConfigError(f"there is no vbucket {last}; the last one is {MAX_VBUCKETS - 1}")
        named = range(first, last + 1)
        if not chosen.isdisjoint(named):  # a typing error; repeated often, also unbounded work
            raise ConfigError(f"{part} repeats a vbucket")
        chosen.update(named)
    return tuple(sorted(chosen))
