"""Validates documents that come from another dashboard or from a file against their TypedDicts."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints, is_typeddict

_D = TypeVar("_D")


def checked(kind: type[_D], value: object) -> _D:
    """Validates a document from another dashboard; ValueError says what is wrong.

    Unknown members are left out.
    """
    result: _D = _checked(kind, value, kind.__name__)
    return result


def _checked(kind: Any, value: Any, where: str) -> Any:
    if is_typeddict(kind):
        if not isinstance(value, dict):
            raise ValueError(f"{where} is not an object")
        hints = get_type_hints(kind)
        missing = sorted(hints.keys() - value.keys())
        if missing:
            raise ValueError(f"{where} has no {missing[0]}")
        return {name: _checked(hint, value[name], name) for name, hint in hints.items()}
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is UnionType:
        if value is None and NoneType in arguments:
            return None
        return _checked(arguments[0], value, where)
    if origin is list and isinstance(value, list):
        return [_checked(arguments[0], one, where) for one in value]
    if origin is dict and isinstance(value, dict):
        return {str(name): _checked(arguments[1], one, where) for name, one in value.items()}
    if origin is None and _is(kind, value):
        return value
    raise ValueError(f"{where} has the wrong type")


def _is(kind: type, value: object) -> bool:
    """Whether a plain value has a type; a bool is not a number, an int is a valid float."""
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)
