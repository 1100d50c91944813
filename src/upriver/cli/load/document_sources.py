"""Sources of documents for ``upriver load``: generated, from NDJSON and from CSV files.

A document is a key and a value, both bytes.
"""

from __future__ import annotations

import csv
import functools
import json
import random
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from typing import IO, Any, Final, NoReturn, TypeAlias

from ...errors import UpriverError
from ...wire.limits import MAX_KEY, MAX_VALUE

KeyAndBody: TypeAlias = tuple[bytes, bytes]


class BadLine(UpriverError):
    """A line of a file that is not a valid document."""

    def __init__(self, *, file: str, line: int, problem: str) -> None:
        super().__init__(f"{file}, line {line}: {problem}; --skip-bad skips such lines")
        self.file = file
        self.line = line
        self.problem = problem


#: Called with a bad line; if it returns, the line is skipped.
OnBad: TypeAlias = Callable[[BadLine], None]


def raise_bad(bad: BadLine) -> NoReturn:
    """Stops at the first bad line."""
    raise bad


# ---- generated ---------------------------------------------------------------------------

_CITIES: Final = ("Amsterdam", "Berlin", "Chicago", "Delhi", "Lagos", "Lima", "Osaka", "Perth")
#: Spreads neighbouring numbers over all 32 bits (Knuth's multiplicative hash).
_SPREAD: Final = 2_654_435_761
#: The text that documents are filled up from, long enough that neighbours differ.
_FILL_BYTES: Final = 64 * 1024


def generated(count: int, *, size: int, prefix: str) -> Iterator[KeyAndBody]:
    """Documents 0 to ``count``, of ``size`` bytes if their members fit into that.

    A number always gives the same document, so a second run writes the same documents.
    """
    fill = _fill() * (size // _FILL_BYTES + 2)
    for number in range(count):
        spread = number * _SPREAD % 2**32
        city, cents = _CITIES[spread % len(_CITIES)], spread % 100_000
        members = (
            f'{{"id":{number},"city":"{city}","amount":{cents // 100}.{cents % 100:02},'
            f'"active":{"true" if spread & 64 else "false"},"text":"'
        )
        at = spread % _FILL_BYTES
        text = fill[at : at + max(0, size - len(members) - 2)]
        yield f"{prefix}{number}".encode(), f'{members}{text}"}}'.encode()


@functools.cache
def _fill() -> str:
    letters = "abcdefghijklmnopqrstuvwxyz    "
    return "".join(random.Random(0).choices(letters, k=_FILL_BYTES))


# ---- files -------------------------------------------------------------------------------


def from_ndjson(
    file: IO[bytes], *, prefix: str, key: str | None = None, on_bad: OnBad = raise_bad
) -> Iterator[KeyAndBody]:
    """The objects of a file with one on each line, whose bytes become the values unchanged.

    ``key`` names the member that is the key; without it a key is the prefix and the number of
    the line, from 0. Empty lines are skipped.
    """
    for number, line in enumerate(_lines(file)):
        text = line.strip()
        if not text:
            continue
        try:
            document = _object(text)
            yield _key(document, key, prefix, number), text
        except ValueError as problem:
            on_bad(BadLine(file=file.name, line=number + 1, problem=str(problem)))


def from_csv(
    file: IO[bytes], *, prefix: str, key: str | None = None, on_bad: OnBad = raise_bad
) -> Iterator[KeyAndBody]:
    """The rows of a file whose first row names the members; all values are strings.

    Keys are those of `from_ndjson`, with rows for lines.
    """
    # Invalid UTF-8 is detected when a row is encoded again, so that only that row is bad.
    lines = (line.decode(errors="surrogateescape") for line in _lines(file))
    rows = csv.reader(lines, strict=True)
    names: list[str] | None = None
    number = 0
    while True:
        line = rows.line_num + 1  # a row may have several
        try:
            row = next(rows)
            if not row:
                continue
            if names is None:
                names = _header(row)
                continue
            number += 1
            if len(row) != len(names):
                raise ValueError(f"{len(row)} fields where the header has {len(names)}")
            document = dict(zip(names, row, strict=True))
            value = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
            yield _key(document, key, prefix, number - 1), _encoded(value)
        except StopIteration:
            return
        except (csv.Error, ValueError) as problem:
            bad = BadLine(file=file.name, line=line, problem=str(problem))
            if names is None:
                raise bad from None  # the file cannot be read without its header
            on_bad(bad)


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """The lines of a file without its byte order mark; lines that are too long are truncated."""
    line = file.readline(MAX_VALUE + 1).removeprefix(BOM_UTF8)
    while line:
        rest = line
        while len(rest) > MAX_VALUE and not rest.endswith(b"\n"):
            rest = file.readline(MAX_VALUE + 1)
        yield line
        line = file.readline(MAX_VALUE + 1)


def _object(text: bytes) -> dict[str, Any]:
    if len(text) > MAX_VALUE:
        raise ValueError(f"a document has at most {MAX_VALUE} bytes")
    try:
        document = _DECODER.decode(text.decode())
    except UnicodeDecodeError as problem:
        raise ValueError(f"byte {problem.start} is not UTF-8") from None
    except json.JSONDecodeError as problem:
        raise ValueError(f"not JSON: {problem.msg} at character {problem.pos}") from None
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    return document


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


#: Strict: Python's own default takes NaN and Infinity for numbers.
_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant)


def _header(row: list[str]) -> list[str]:
    if len(set(row)) != len(row):
        raise ValueError("the header repeats a name")
    for name in row:
        _encoded(name)
    return row


def _key(document: dict[str, Any], member: str | None, prefix: str, number: int) -> bytes:
    if member is None:
        return f"{prefix}{number}".encode()
    found = document.get(member)
    if isinstance(found, bool) or not isinstance(found, str | int):
        raise ValueError(f"the key, member {member!r}, must be a string or an integer")
    key = _encoded(str(found))
    if not 1 <= len(key) <= MAX_KEY:
        raise ValueError(f"a key has 1 to {MAX_KEY} bytes, not {len(key)}")
    return key


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as problem:
        raise ValueError(f"character {problem.start} is not UTF-8") from None
