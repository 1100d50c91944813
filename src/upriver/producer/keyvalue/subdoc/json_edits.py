"""Lookups and edits at a path of a JSON document.

Edits are pure functions. They take the text of a document and of a value, and return the new text
of the document or raise a refusal with a status. They know nothing of how documents are stored.
"""

from __future__ import annotations

import json
import re
from collections import deque
from typing import Any, Final, NoReturn

from ....errors import Status, StoreRefusal
from ....wire.json_check import DECODER
from .json_paths import (
    MAX_DEPTH,
    Entry,
    Path,
    child,
    decode,
    entries,
    find,
    locate,
    reading,
    start_of,
)

#: Counters are signed 64-bit numbers.
_LOWEST: Final = -(2**63)
_HIGHEST: Final = 2**63 - 1
_DELTA = re.compile(rb"-?[0-9]{1,19}")
_INTEGER = re.compile(r"-?[0-9]+")

_NESTING = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]')


def _refuse(status: Status, rule: str) -> NoReturn:
    raise StoreRefusal(status, rule)


def checked_value(raw: bytes, path: Path, *, several: bool = False) -> str:
    """Checks that a value is JSON and fits at a path; returns its text.

    With ``several``, the value is a list of JSON values separated by commas.
    """
    try:
        text = raw.decode()
        DECODER.decode(f"[{text}]" if several else text)
    except RecursionError:
        _refuse(Status.SUBDOC_VALUE_TOO_DEEP, "the value is nested too deeply")
    except ValueError:
        _refuse(Status.SUBDOC_VALUE_CANNOT_INSERT, "the value is not JSON")
    if several and not text.strip():
        _refuse(Status.SUBDOC_VALUE_CANNOT_INSERT, "there is no value")
    if len(path) + _depth(text) > MAX_DEPTH:
        _refuse(Status.SUBDOC_VALUE_TOO_DEEP, f"it would be nested deeper than {MAX_DEPTH} levels")
    return text


def _depth(text: str) -> int:
    depth = deepest = 0
    for match in _NESTING.finditer(text):
        mark = match.group()
        if mark in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif mark in "]}":
            depth -= 1
    return deepest


# ---- lookups -----------------------------------------------------------------------------


def look_up(text: str, path: Path) -> str:
    """Returns the text of the value at a path."""
    with reading():
        at = find(text, path)
        return text[at : decode(text, at)[1]]


def count_entries(text: str, path: Path) -> int:
    """Counts the members or elements of the object or array at a path."""
    with reading():
        at = find(text, path)
        if text[at] not in "{[":
            _refuse(Status.SUBDOC_PATH_MISMATCH, "only objects and arrays can be counted")
        return len(decode(text, at)[0]) if text[at] == "[" else len(list(entries(text, at)))


# ---- objects -----------------------------------------------------------------------------


def add_member(text: str, path: Path, value: str, *, parents: bool = False) -> str:
    """Adds a member that does not exist yet; ``parents`` creates the objects above it."""
    with reading():
        at, missing = _locate_member(text, path)
        if not missing:
            _refuse(Status.SUBDOC_PATH_EXISTS, f"there is a {path[-1]!r}")
        return _grow(text, at, missing, value, parents=parents)


def upsert_member(text: str, path: Path, value: str, *, parents: bool = False) -> str:
    """Adds a member, or replaces its value."""
    with reading():
        at, missing = _locate_member(text, path)
        if not missing:
            return _put(text, at, value)
        return _grow(text, at, missing, value, parents=parents)


def _locate_member(text: str, path: Path) -> tuple[int, Path]:
    if not path or not isinstance(path[-1], str):
        _refuse(Status.SUBDOC_PATH_INVALID, "the path must end with a name")
    return locate(text, path)


def _grow(text: str, at: int, missing: Path, value: str, *, parents: bool) -> str:
    """Adds a value under the parts of a path that do not exist, to the container at ``at``."""
    if len(missing) > 1 and not parents:
        _refuse(Status.SUBDOC_PATH_NOT_FOUND, f"there is no {missing[0]!r}")
    names = [part for part in missing if isinstance(part, str)]
    if len(names) < len(missing):
        _refuse(Status.SUBDOC_PATH_NOT_FOUND, "elements of arrays are not made on the way")
    for name in reversed(names[1:]):
        value = f"{{{_quoted(name)}:{value}}}"
    return _add_entry(text, at, f"{_quoted(names[0])}:{value}")


# ---- objects and arrays ------------------------------------------------------------------


def replace(text: str, path: Path, value: str) -> str:
    """Replaces the value at a path."""
    with reading():
        return _put(text, find(text, path), value)


def remove(text: str, path: Path) -> str:
    """Removes the entry at a path."""
    if not path:
        _refuse(Status.SUBDOC_PATH_INVALID, "a document cannot be removed from itself")
    with reading():
        at = find(text, path[:-1])
        gone = child(text, at, path[-1])
        if gone is None:
            _refuse(Status.SUBDOC_PATH_NOT_FOUND, f"there is no {path[-1]!r}")
        all_of = list(entries(text, at))
        position = all_of.index(gone)
        if position + 1 < len(all_of):
            return text[: gone.start] + text[all_of[position + 1].start :]
        start = all_of[position - 1].end if position else gone.start
        return text[:start] + text[gone.end :]


# ---- arrays ------------------------------------------------------------------------------


def push(text: str, path: Path, values: str, *, first: bool, parents: bool = False) -> str:
    """Adds elements to the end or the beginning of an array; ``parents`` creates the array."""
    with reading():
        at, missing = locate(text, path)
        if missing:
            if not parents:
                _refuse(Status.SUBDOC_PATH_NOT_FOUND, f"there is no {missing[0]!r}")
            return _grow(text, at, missing, f"[{values}]", parents=True)
        elements = _elements(text, at)
        return _add_entry(text, at, values, before=elements[0] if first and elements else None)


def insert_element(text: str, path: Path, values: str) -> str:
    """Inserts elements before the one at a path. The index may be one past the last element."""
    if not path or not isinstance(path[-1], int) or path[-1] < 0:
        _refuse(Status.SUBDOC_PATH_INVALID, "the path must end with a position")
    position = path[-1]
    with reading():
        at = find(text, path[:-1])
        elements = _elements(text, at)
        if position > len(elements):
            _refuse(Status.SUBDOC_PATH_NOT_FOUND, f"the array has {len(elements)} elements")
        before = elements[position] if position < len(elements) else None
        return _add_entry(text, at, values, before=before)


def add_unique(text: str, path: Path, value: str, *, parents: bool = False) -> str:
    """Adds a scalar to an array of scalars that must not contain it yet."""
    if value.lstrip()[0] in "{[":
        _refuse(Status.SUBDOC_VALUE_CANNOT_INSERT, "only simple values can be compared")
    with reading():
        at, missing = locate(text, path)
        if not missing:
            _elements(text, at)
            there = decode(text, at)[0]
            if any(isinstance(element, dict | list) for element in there):
                _refuse(Status.SUBDOC_PATH_MISMATCH, "the array has more than simple values")
            new = DECODER.decode(value)
            if any(_same(element, new) for element in there):
                _refuse(Status.SUBDOC_PATH_EXISTS, "the array has this value")
        return push(text, path, value, first=False, parents=parents)


def _elements(text: str, at: int) -> list[Entry]:
    if text[at] != "[":
        _refuse(Status.SUBDOC_PATH_MISMATCH, "the path leads to no array")
    return list(entries(text, at))


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal and of the same type: in Python, True equals 1."""
    return type(one) is type(other) and one == other


# ---- numbers -----------------------------------------------------------------------------


def count_up(text: str, path: Path, delta: bytes, *, parents: bool = False) -> tuple[str, int]:
    """Adds to the integer at a path, 0 if there is none; returns the text and the new number."""
    step = int(delta) if _DELTA.fullmatch(delta) else 0
    if not step or not _LOWEST <= step <= _HIGHEST:
        _refuse(Status.SUBDOC_DELTA_INVALID, "a delta is a whole number of 64 bits and not 0")
    if not path:
        _refuse(Status.SUBDOC_PATH_INVALID, "a counter needs a path")
    with reading():
        at, missing = locate(text, path)
        if missing:
            return _grow(text, at, missing, str(step), parents=parents), step
        found = text[at : decode(text, at)[1]]
        if not _INTEGER.fullmatch(found):
            _refuse(Status.SUBDOC_PATH_MISMATCH, "the path leads to no whole number")
        if not _LOWEST <= int(found) <= _HIGHEST:
            _refuse(Status.SUBDOC_NUMBER_RANGE, "the number does not fit 64 bits")
        number = int(found) + step
        if not _LOWEST <= number <= _HIGHEST:
            _refuse(Status.SUBDOC_VALUE_CANNOT_INSERT, "the sum does not fit 64 bits")
        return _put(text, at, str(number)), number


# ---- editing the text --------------------------------------------------------------------


def _put(text: str, at: int, value: str) -> str:
    """Replaces the value that begins at ``at``."""
    return text[:at] + value + text[decode(text, at)[1] :]


def _add_entry(text: str, at: int, entry: str, *, before: Entry | None = None) -> str:
    """Adds an entry to the container that begins at ``at``: last, or ``before`` another entry."""
    if before is not None:
        return f"{text[: before.start]}{entry},{text[before.start :]}"
    last = deque(entries(text, at), maxlen=1)
    if last:
        return f"{text[: last[0].end]},{entry}{text[last[0].end :]}"
    inside = start_of(text, at + 1)
    return text[:inside] + entry + text[inside:]


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)
