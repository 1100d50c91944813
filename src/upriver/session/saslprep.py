"""The one form in which names and passwords are compared, on either side of a connection.

It knows text only: nothing of users, mechanisms or messages.
"""

from __future__ import annotations

import stringprep
import unicodedata
from typing import Final

__all__ = ["prepare"]


def prepare(text: str) -> str:
    """Brings a name or a password into the one form in which it is compared (SASLprep, RFC 4013).

    Raises ValueError for characters that nobody can see or type on purpose. Left out are the
    rules for right-to-left text and for characters that Unicode 3.2 had not assigned: they only
    refuse, and would refuse what people have by now.
    """
    if text.isascii() and text.isprintable():
        return text
    mapped = "".join(
        " " if stringprep.in_table_c12(character) else character
        for character in text
        if not stringprep.in_table_b1(character)
    )
    normal = unicodedata.normalize("NFKC", mapped)
    if any(is_in_table(character) for character in normal for is_in_table in _PROHIBITED):
        raise ValueError("a character that is not allowed in names and passwords")
    return normal


_PROHIBITED: Final = (
    stringprep.in_table_c21_c22,  # control characters
    stringprep.in_table_c3,  # private use
    stringprep.in_table_c4,  # no characters at all
    stringprep.in_table_c5,  # surrogates
    stringprep.in_table_c6,  # inappropriate for plain text
    stringprep.in_table_c7,  # ideographic descriptions
    stringprep.in_table_c8,  # changing how others display
    stringprep.in_table_c9,  # tags
)
