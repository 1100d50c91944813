"""Random numbers for ids, branch names, tokens and pauses, from the operating system.

A simulation puts a seeded generator in their place, so that one seed decides everything. Passwords,
salts and nonces do not come from here.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

_source: random.Random = random.SystemRandom()


def token_hex(size: int) -> str:
    """``size`` random bytes as hexadecimal digits."""
    return _source.randbytes(size).hex()


def uuid4() -> uuid.UUID:
    """A random UUID."""
    return uuid.UUID(int=_source.getrandbits(128), version=4)


def randbelow(limit: int) -> int:
    """A random number from 0 up to, but not including, ``limit``."""
    return _source.randrange(limit)


def uniform(least: float, most: float) -> float:
    """A random number between two others."""
    return _source.uniform(least, most)


@contextmanager
def seeded(source: random.Random) -> Iterator[None]:
    """Takes all numbers from ``source`` in a block, in this process; for simulations only."""
    global _source
    before, _source = _source, source
    try:
        yield
    finally:
        _source = before
