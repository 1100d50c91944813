"""Parses packets from text: plain hex, hex dumps, and the box diagrams of the drafts.

Each separate piece of text becomes one piece of bytes, which the caller splits into packets.
"""

from __future__ import annotations

import re
from collections.abc import Callable

#: ``12| 0x00 | 0x6d ('m') |``: a row of a diagram, with the offset of its first byte before it.
_DIAGRAM_ROW = re.compile(r"^\s*(\d+)\|(.*)$")
_DIAGRAM_CELL = re.compile(r"^\s*(?:0x)?([0-9a-fA-F]{2})\b")

#: ``00000010  80 57  |.W|``, ``00000010: 8057  .W``, ``0x0010:  8057`` and ``0010  80 57  .W``:
#: what hexdump, xxd, tcpdump and Wireshark print.
_DUMP_ROW = re.compile(
    r"^\s*(?:0x)?([0-9a-fA-F]{4,8})(?::\s|\s\s)\s*"
    r"((?:[0-9a-fA-F]{2})+(?:\s{1,2}(?:[0-9a-fA-F]{2})+)*)(?:\s.*|$)"
)
_DUMP_ROW_BYTES = 16

_NOISE = re.compile(r"0x|\\x|[\s:,;-]+")
_COMMENT = re.compile(r"#.*$")

_Row = tuple[int, bytes]


def pieces_of_file(raw: bytes) -> list[bytes]:
    """The pieces of a file: hex in any form if it is text, the bytes themselves if it is not."""
    try:
        text = raw.decode("ascii")
    except UnicodeDecodeError:
        return [raw]
    return pieces_of_text(text) if text.isprintable() or "\n" in text or not text else [raw]


def pieces_of_text(text: str) -> list[bytes]:
    """The pieces of bytes in a text; ValueError says what in it is not hex."""
    lines = text.splitlines()
    return _tables(lines, _diagram_row) or _tables(lines, _dump_row) or _plain(lines)


def _plain(lines: list[str]) -> list[bytes]:
    pieces = []
    text = "\n".join(_COMMENT.sub("", line) for line in lines)
    for block in re.split(r"\n\s*\n", text):
        digits = _NOISE.sub("", block)
        for char in digits:
            if char not in "0123456789abcdefABCDEF":
                raise ValueError(f"{char!r} is not a hex digit")
        if len(digits) % 2:
            raise ValueError(f"an odd number of hex digits ({len(digits)})")
        if digits:
            pieces.append(bytes.fromhex(digits))
    return pieces


def _tables(lines: list[str], row: Callable[[str], _Row | None]) -> list[bytes]:
    """The bytes of tables whose rows begin with their offset; offset 0 begins a new table."""
    pieces: list[bytearray] = []
    for line in lines:
        found = row(line)
        if found is None:
            continue
        offset, content = found
        if offset == 0:
            pieces.append(bytearray())
        elif not pieces or offset != len(pieces[-1]):
            return []
        pieces[-1] += content
    return [bytes(piece) for piece in pieces]


def _diagram_row(line: str) -> _Row | None:
    match = _DIAGRAM_ROW.match(line)
    if match is None:
        return None
    cells = [_DIAGRAM_CELL.match(cell) for cell in match[2].split("|") if cell.strip()]
    if not cells or None in cells:
        return None
    return int(match[1]), bytes.fromhex("".join(cell[1] for cell in cells if cell))


def _dump_row(line: str) -> _Row | None:
    match = _DUMP_ROW.match(line)
    if match is None:
        return None
    return int(match[1], 16), bytes.fromhex(match[2])[:_DUMP_ROW_BYTES]
