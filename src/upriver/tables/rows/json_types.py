"""Types of JSON values as Spark's JSON of a schema writes them: found in values, and widened.

Whole numbers are ``long``, or ``decimal(38,0)`` where they need more than 64 bits; those with a
fraction are ``double``; one of more than 38 digits, which no type holds, widens nothing. Whole
numbers widen to doubles as long as doubles hold all that were seen, and otherwise their type has a
mark. Structs widen by members, arrays by their elements. What has no type yet is open: ``void``
where nothing or null was seen, a struct without members, an array of ``void``. It is text meanwhile
(`settled`), which takes any JSON, and what is seen next decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ...errors import ConfigError
from .json_numbers import WrittenNumber, is_double, parse_fraction

#: A name, or a mapping for arrays, structs and maps.
Type = Any

VOID: Final = "void"
_INTEGERS: Final = ("byte", "short", "integer", "long")
#: Of whole numbers that a long does not hold.
_LARGE: Final = "decimal(38,0)"
_NUMBERS: Final = (*_INTEGERS, _LARGE, "float", "double")
_FRACTIONS: Final = ("float", "double")
#: Behind the type of whole numbers one of which no double holds.
_MARK: Final = "!"
_LEAST, _MOST = -(2**63), 2**63 - 1
#: Whole numbers up to it are doubles.
SURE: Final = 2**53
#: Characters that Delta does not take in the names of columns.
_FORBIDDEN: Final = frozenset(" ,;{}()\n\t=")
_LONGEST_NAME: Final = 255
#: Levels of arrays and structs, unless a pipeline was given others.
DEPTH: Final = 10


def type_of(value: Any, levels: int = DEPTH) -> Type:
    """The type of a value of ``json.loads``: so many ``levels`` of types, and below them text."""
    if value is None:
        return VOID
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        if -SURE <= value <= SURE or abs(value) >= 10**38:
            return "long"
        kind = "long" if _LEAST <= value <= _MOST else _LARGE
        return kind if is_double(parse_fraction(str(value))) else kind + _MARK
    if isinstance(value, float):
        return "long" if isinstance(value, WrittenNumber) and value.is_whole else "double"
    if isinstance(value, str) or not levels:
        return "string"
    if isinstance(value, list):
        element: Type = VOID
        for one in value:
            element = merged(element, type_of(one, levels - 1), to_text=True)
        return _array(element)
    if not all(can_be_column(name) for name in value):
        return "string"
    first = {name.lower(): name for name in reversed(value)}
    return _struct({name: type_of(value[name], levels - 1) for name in reversed(first.values())})


def merged(held: Type, seen: Type, *, to_text: bool) -> Type:
    """A type for both; where there is none, text if that is allowed, and else the one held.

    One that is empty gives way to any other. Of members that differ by case, the one held stays.
    """
    if seen in (VOID, held) or held == "string":
        return held
    if held == VOID:
        return seen
    if isinstance(held, Mapping) and isinstance(seen, Mapping) and held["type"] == seen["type"]:
        if held["type"] == "array":
            return _array(merged(held["elementType"], seen["elementType"], to_text=to_text))
        if held["type"] == "struct":
            return _merged_structs(held, seen, to_text=to_text)
    if (number := _merged_numbers(held, seen)) is not None:
        return number
    if to_text:
        return "string"
    return seen if is_empty(held) and not is_empty(seen) else held


def is_empty(kind: Type) -> bool:
    """Whether nothing is known of a type but that a value was an empty object or array."""
    return kind == VOID or (
        isinstance(kind, Mapping)
        and not kind.get("fields")
        and kind.get("elementType", VOID) == VOID
    )


def _merged_numbers(held: Type, seen: Type) -> Type | None:
    if not isinstance(held, str) or not isinstance(seen, str):
        return None
    plain = {settled(held), settled(seen)}
    if not plain <= {*_NUMBERS}:
        return None
    kind = max(plain, key=_NUMBERS.index)
    if _MARK not in held + seen:
        return kind
    return kind + _MARK if kind not in _FRACTIONS else None


def is_exact(kind: Type) -> bool:
    """Whether a type is of whole numbers all of which doubles hold, as far as they were seen."""
    return kind in (*_INTEGERS, _LARGE)


def _merged_structs(held: Type, seen: Type, *, to_text: bool) -> Type:
    fields = {one["name"]: one["type"] for one in held["fields"]}
    known = {name.lower(): name for name in fields}
    for one in seen["fields"]:
        name = one["name"]
        if known.get(name.lower(), name) == name:
            fields[name] = merged(fields.get(name, VOID), one["type"], to_text=to_text)
    return _struct(fields)


def settled(kind: Type) -> Type:
    """The type of a column: with text for everything whose type was never seen."""
    if isinstance(kind, str):
        return "string" if kind == VOID else kind.removesuffix(_MARK)
    if isinstance(kind, Mapping) and kind["type"] == "array":
        return _array(settled(kind["elementType"]))
    if isinstance(kind, Mapping) and kind["type"] == "struct":
        fields = {one["name"]: settled(one["type"]) for one in kind["fields"]}
        return _struct(fields) if fields else "string"
    return kind


def count(kind: Type) -> int:
    """How many columns a type is, with those of its members."""
    if isinstance(kind, Mapping) and kind["type"] == "array":
        return count(kind["elementType"])
    if isinstance(kind, Mapping) and kind["type"] == "struct":
        return 1 + sum(count(one["type"]) for one in kind["fields"])
    return 1


def can_be_column(name: str) -> bool:
    """Whether Delta takes a column of that name."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return False
    return 0 < size <= _LONGEST_NAME and _FORBIDDEN.isdisjoint(name) and "\0" not in name


def require_column_names(kind: Type) -> None:
    """ConfigError if columns, or members of one struct, have names that Delta does not take."""
    if not isinstance(kind, Mapping):
        return
    for inside in ("elementType", "keyType", "valueType"):
        require_column_names(kind.get(inside))
    known: dict[str, str] = {}
    for one in kind.get("fields", ()):
        name = one["name"]
        if not can_be_column(name):
            raise ConfigError(
                f"valueSchema: Delta takes no column of the name {name[:100]!r}: names have up to "
                f"{_LONGEST_NAME} bytes, and none of the characters ' ,;{{}}()=', tab and newline; "
                "name it otherwise and take it from its member with rename"
            )
        if other := known.get(name.lower()):
            raise ConfigError(
                f"valueSchema: {other} and {name} differ only by case, which columns must not; "
                "name one of them otherwise and take it from its member with rename"
            )
        known[name.lower()] = name
        require_column_names(one["type"])


def _array(element: Type) -> Type:
    return {"type": "array", "elementType": element, "containsNull": True}


def _struct(fields: Mapping[str, Type]) -> Type:
    return {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in fields.items()
        ],
    }
