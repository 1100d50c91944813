"""Lists of vbuckets as people write them: ``0-15,17``.

It only takes the text apart; how many vbuckets a bucket has is for its user to know.
"""

from __future__ import annotations

import re
from typing import Final

import click

from ..consumer.checkpoint import MAX_VBUCKETS
from ..errors import ConfigError

__all__ = ["parse_vbuckets", "vbuckets_option"]

_PART: Final = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", re.ASCII)
#: Room for every vbucket by its number, with a comma and a space.
_MAX_TEXT: Final = MAX_VBUCKETS * 7
_SHAPE: Final = "vbuckets are written like 0-15,17"


def parse_vbuckets(text: str) -> tuple[int, ...]:
    """The vbuckets of such a list, rising, each once; ConfigError says what is wrong with it."""
    if len(text) > _MAX_TEXT:
        raise ConfigError(f"{len(text)} characters are too many for a list of vbuckets")
    chosen: set[int] = set()
    for part in text.split(","):
        found = _PART.fullmatch(part.strip())
        if found is None:
            raise ConfigError(f"{part.strip()[:40]!r} is no vbucket and no range; {_SHAPE}")
        first = int(found[1])
        last = int(found[2] or first)
        if last < first:
            raise ConfigError(f"the range {found[0]} goes down; write {last}-{first}")
        if last >= MAX_VBUCKETS:
            raise ConfigError(f"there is no vbucket {last}; the last one is {MAX_VBUCKETS - 1}")
        named = range(first, last + 1)
        if not chosen.isdisjoint(named):  # a slip of the hand, and endless work if repeated enough
            raise ConfigError(f"{found[0]} names a vbucket for the second time")
        chosen.update(named)
    return tuple(sorted(chosen))


def vbuckets_option(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> tuple[int, ...] | None:
    """The callback of an option that takes such a list."""
    if text is None:
        return None
    try:
        return parse_vbuckets(text)
    except ConfigError as problem:
        raise click.BadParameter(str(problem), context, parameter) from None
