"""SASLprep (RFC 4013): normalizes user names and passwords before they are compared.

It handles text only, and knows neither users nor mechanisms nor messages.
"""

from __future__ import annotations

import stringprep
import unicodedata
from typing import Final


def prepare(text: str) -> str:
    """Normalizes a user name or a password with SASLprep.

    Raises ValueError for prohibited characters, such as control characters. Two rules of the RFC
    are left out: those for right-to-left text, and for characters that Unicode 3.2 had not
    assigned. Both only reject text, and would reject names that are in use today.
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
    stringprep.in_table_c4,  # noncharacters
    stringprep.in_table_c5,  # surrogates
    stringprep.in_table_c6,  # inappropriate for plain text
    stringprep.in_table_c7,  # ideographic descriptions
    stringprep.in_table_c8,  # change display properties
    stringprep.in_table_c9,  # tags
)
