"""Numbers of JSON as they were written, and whether a type of column holds them unchanged.

JSON has numbers of any size, and Python's parser rounds those with a fraction. So a number keeps
its text, and a column has it only if the column's value is what was written.
"""

from __future__ import annotations

import math
import re
from decimal import Context, Decimal
from typing import Final

import numpy as np

#: Digits of the longest whole number that Python reads from a text.
_MOST_DIGITS: Final = 4_300
#: Characters of a number without an exponent whose digits every double holds, whatever they are.
_SURE: Final = 15
#: For numbers as people write them.
_DIGITS: Final = Context(prec=100)
_PLAIN: Final = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?", re.ASCII)


class WrittenNumber(float):
    """A number with a fraction or an exponent, or a very long one, and how it was written."""

    text: str

    @property
    def is_whole(self) -> bool:
        return self.text.lstrip("-").isdigit()


def parse_fraction(text: str) -> WrittenNumber:
    """For ``json.JSONDecoder(parse_float=...)``."""
    number = WrittenNumber(text)
    number.text = text
    return number


def parse_whole(text: str) -> int | WrittenNumber:
    """For ``json.JSONDecoder(parse_int=...)``."""
    return int(text) if len(text) <= _MOST_DIGITS else parse_fraction(text)


def parse_exact(text: str) -> float:
    """A number with a fraction: a plain double if that holds it, and else one with its text."""
    number = float(text)
    if len(text) <= _SURE and "e" not in text and "E" not in text:
        return number
    if repr(number) == text or is_double(written := parse_fraction(text)):
        return number
    return written


def is_double(number: WrittenNumber) -> bool:
    """Whether a double is the number that was written: exactly, or as doubles are written."""
    return _is(float(number), repr(float(number)), number.text)


def is_float(number: WrittenNumber) -> bool:
    """The same for a column of 32 bits."""
    with np.errstate(all="ignore"):
        held = np.float32(number)
    return _is(float(held), str(held), number.text)


def _is(held: float, shortest: str, text: str) -> bool:
    if not math.isfinite(held):
        return False
    return shortest == text or _exactly(text) in (Decimal(shortest), Decimal(held))


def as_decimal(text: str, precision: int, scale: int) -> Decimal | None:
    """The number of a text with so many digits, of which ``scale`` follow the point; or None."""
    if not _PLAIN.fullmatch(text):
        return None
    number = _exactly(text)
    exact = _DIGITS if len(text) < _DIGITS.prec else Context(prec=len(text) + 1)
    try:
        placed = number.quantize(Decimal(1).scaleb(-scale), context=exact)
    except ArithmeticError:  # it has too many digits
        return None
    return placed if placed == number and len(placed.as_tuple().digits) <= precision else None


def _exactly(text: str) -> Decimal:
    try:
        return Decimal(text)
    except ArithmeticError:  # of an exponent beyond all that can be
        return Decimal("NaN")
