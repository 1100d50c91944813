"""What columns do not hold of a JSON value: members without a column, and members given twice.

Parsers keep the last of several members of one name. Here such an object remembers the values of
all of them, so that the others can be rescued.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from .json_numbers import WrittenNumber
from .json_types import Type


class _DoubledMembers(dict[str, Any]):
    """An object some of whose members are there several times; as a dict it has the last ones."""

    #: By name the values of members that are there several times, in their order.
    doubled: dict[str, list[Any]]


def members_of_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For ``json.loads(object_pairs_hook=...)``."""
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    members = _DoubledMembers(made)
    every: dict[str, list[Any]] = {}
    for name, value in pairs:
        every.setdefault(name, []).append(value)
    members.doubled = {name: values for name, values in every.items() if len(values) > 1}
    return members


def doubled_in(value: Any) -> dict[str, list[Any]]:
    """By name all values of members that an object has several times."""
    return value.doubled if isinstance(value, _DoubledMembers) else {}


def left_over(value: Any, kind: Type, *, follows: bool) -> Any:
    """The part of a value that a column of a type does not hold; None if it holds all of it.

    Members that a struct lacks are left over only if columns are to hold all there is
    (``follows``). An array of which something is left over is left over as a whole.
    """
    told = kind if isinstance(kind, Mapping) else {}
    if isinstance(value, dict):
        fields = {one["name"]: one["type"] for one in told.get("fields", ())}
        rest: dict[str, Any] = {}
        for name, one in value.items():
            if name in fields or not fields:
                inside = fields.get(name) or told.get("valueType")
                some = left_over(one, inside, follows=follows)
            else:
                some = one if follows else None
            if some is not None:
                rest[name] = some
        for name, values in doubled_in(value).items():
            if follows or not fields or name in fields:
                rest[name] = values
        return rest or None
    if isinstance(value, list):
        element = told.get("elementType")
        if any(left_over(one, element, follows=follows) is not None for one in value):
            return value
    return None


def column_text(value: Any) -> str:
    """JSON for a column of text: without spaces, and with the last of members given twice."""
    return _written(value, ",", ":", ascii_only=False, every=False)


def rescued_text(value: Any) -> str:
    """JSON of what is rescued: a member given twice has a list of all its values.

    Half of a surrogate pair, which no text has, stays as it was escaped.
    """
    return _written(value, ", ", ": ", ascii_only=True, every=True)


def _written(value: Any, comma: str, colon: str, *, ascii_only: bool, every: bool) -> str:
    """JSON of a parsed value, with its numbers as they were written."""
    if isinstance(value, WrittenNumber):
        return value.text

    def inside(one: Any) -> str:
        return _written(one, comma, colon, ascii_only=ascii_only, every=every)

    if isinstance(value, dict):
        members = (value | doubled_in(value) if every else value).items()
        return f"{{{comma.join(f'{inside(name)}{colon}{inside(one)}' for name, one in members)}}}"
    if isinstance(value, list):
        return f"[{comma.join(map(inside, value))}]"
    return json.dumps(value, ensure_ascii=ascii_only)


_decode_pairs: Final = json.JSONDecoder(object_pairs_hook=members_of_pairs).decode


def has_doubled_members(value: bytes, found: Mapping[str, Any]) -> bool:
    """Whether an object has a member twice, at any depth; ``found`` is what was parsed.

    A colon belongs to a member or to a text, so most objects need not be parsed a second time.
    """
    colons = value.count(b":") - len(found)
    if not colons:
        return False
    if b"\\" not in value:
        for name, member in found.items():
            colons -= name.count(":")
            if type(member) is str:
                colons -= member.count(":")
        if not colons:
            return False
    return _is_doubled(_decode_pairs(value.decode()))


def _is_doubled(value: Any) -> bool:
    if isinstance(value, _DoubledMembers):
        return True
    inside = value.values() if isinstance(value, dict) else value if type(value) is list else ()
    return any(map(_is_doubled, inside))
