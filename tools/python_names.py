"""Describes the public names of the Python interface for docs/reference.

Signatures, fields, docstrings and the comments before fields are those of the code.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum, EnumType
from types import FunctionType
from typing import Any, Final

from upriver.testing import pytest_plugin

__all__ = [
    "MODULES",
    "RETURNED",
    "WIRE_MODULES",
    "fixtures",
    "notes",
    "prose",
    "python_names",
    "returned_names",
    "wire_names",
]

#: The packages that applications and tests import from: all that their ``__all__`` lists is shown.
MODULES: Final = (
    "upriver",
    "upriver.consumer",
    "upriver.spark",
    "upriver.dlt",
    "upriver.testing",
    "upriver.telemetry",
)
#: Those for packets, values and errors, on a page of their own.
WIRE_MODULES: Final = (
    "upriver.model",
    "upriver.errors",
    "upriver.wire",
    "upriver.wire.framing",
    "upriver.wire.dialects",
    "upriver.wire.columns",
    "upriver.wire.canonical",
    "upriver.wire.messages",
    "upriver.wire.kv_messages",
)
#: Classes that are returned and not imported.
RETURNED: Final = {
    "upriver.tables.pipeline": ("Pipeline",),
    "upriver.spark.verify_table": ("Comparison", "Difference", "Verdict"),
}
#: Characters of a constant that are shown.
_MOST_CONSTANT: Final = 2000


def python_names() -> Iterator[str]:
    """The names for applications and tests."""
    return _names(MODULES)


def wire_names() -> Iterator[str]:
    """The names of the codec, of values and of errors."""
    return _names(WIRE_MODULES)


def returned_names() -> Iterator[str]:
    """Classes that public functions return and nobody imports."""
    for place, names in RETURNED.items():
        module = importlib.import_module(place)
        for name in names:
            yield from _described(getattr(module, name), name)


def fixtures() -> Iterator[str]:
    """The fixtures of the pytest plugin, with what they give to a test."""
    yield "| fixture | gives | what it is |\n|---|---|---|"
    source = ast.parse(inspect.getsource(pytest_plugin))
    for node in source.body:
        if isinstance(node, ast.FunctionDef) and node.name in pytest_plugin.__all__:
            given = ast.unparse(node.returns) if node.returns is not None else ""
            given = re.sub(r"^Iterator\[(.*)\]$", r"\1", given).replace("|", "\\|")
            text = " ".join((ast.get_docstring(node) or "").split())
            yield f"| `{node.name}` | `{given}` | {prose(text)} |"
    yield ""
    yield from _described(pytest_plugin.ProducerBehindProxy, "ProducerBehindProxy")


def _names(places: Sequence[str]) -> Iterator[str]:
    for place in places:
        module = importlib.import_module(place)
        yield f"## {place}\n"
        yield f"{prose((module.__doc__ or '').partition(chr(10))[0])}\n"
        for name in module.__all__:
            yield from _described(getattr(module, name), name)


def _described(thing: Any, name: str) -> Iterator[str]:
    yield f"### {name}\n"
    if inspect.ismodule(thing):
        yield f"The module `{thing.__name__}`, [below](#{thing.__name__.replace('.', '')}).\n"
        return
    if not callable(thing):  # a constant
        yield f"```text\n{_constant(thing)}\n```\n"
        return
    if _is_called(thing):
        yield f"```python\n{_signature(thing, name)}\n```\n"
    yield f"{_docstring(thing)}\n"
    if inspect.isclass(thing):
        yield from _fields(thing)
        for member, function in _members(thing).items():
            text = _docstring(function).replace("\n", "\n    ")
            yield f"- `{_heading(function, member)}`" + (f": {text}" if text else "")
        yield ""


def _is_called(thing: Any) -> bool:
    """Whether what it is called with is of interest, and not just its members."""
    has_fields = is_dataclass(thing) or hasattr(thing, "_fields")
    if inspect.isclass(thing) and issubclass(thing, BaseException):
        return "__init__" in vars(thing)  # without one it takes a text
    return not (has_fields or isinstance(thing, EnumType) or getattr(thing, "_is_protocol", False))


def _members(thing: type) -> dict[str, Any]:
    """Methods and properties, those of our own base classes included."""
    found: dict[str, Any] = {}
    for owner in thing.__mro__:
        if owner.__module__.startswith("upriver.") and not issubclass(owner, Enum):
            for name, member in vars(owner).items():
                known = isinstance(member, property | classmethod | staticmethod | FunctionType)
                if known and name.islower() and not name.startswith("_"):
                    found.setdefault(name, member)
    return found


def _heading(member: Any, name: str) -> str:
    if isinstance(member, property):
        return name
    return _signature(getattr(member, "__func__", member), name, width=1000)


def _signature(thing: Any, name: str, *, width: int = 88) -> str:
    """The call of something; a parameter on each line if it is longer than the width."""
    signature = inspect.signature(thing)
    kept = [one for one in signature.parameters.values() if one.name not in ("self", "cls")]
    parts = [_parameter(one) for one in kept]
    if one := next((one for one in kept if one.kind is one.KEYWORD_ONLY), None):
        parts.insert(kept.index(one), "*")
    result = signature.return_annotation
    ending = "" if result in ("None", signature.empty) else f" -> {result}"
    text = f"{name}({', '.join(parts)}){ending}"
    if len(text) <= width:
        return text
    return "\n".join((f"{name}(", *(f"    {part}," for part in parts), f"){ending}"))


def _parameter(one: inspect.Parameter) -> str:
    stars = "**" if one.kind is one.VAR_KEYWORD else ""
    kind = "" if one.annotation is one.empty else f": {one.annotation}"
    default = "" if one.default is one.empty else f" = {_value(one.default)}"
    return f"{stars}{one.name}{kind}{default}"


def _fields(thing: Any) -> Iterator[str]:
    found = notes(thing)
    if issubclass(thing, Enum):
        yield from (f"- `{one.name}`: {found.get(one.name, '')}" for one in thing)
        return
    if is_dataclass(thing):
        members = [(one.name, one.type, one.default) for one in fields(thing)]
    else:
        names = getattr(thing, "_fields", ())
        members = [(name, thing.__annotations__[name].__forward_arg__, MISSING) for name in names]
    for name, kind, default in members:
        if not name.startswith("_"):
            note = f": {found[name]}" if name in found else ""
            shown = "" if default is MISSING else f" = {_value(default)}"
            yield f"- `{name}: {kind}{shown}`{note}"


def _value(default: Any) -> str:
    if isinstance(default, Enum):
        return f"{type(default).__name__}.{default.name}"
    if callable(default):
        return f"{default.__module__}.{default.__qualname__}"
    return repr(default).replace("'", '"')


def notes(thing: Any) -> dict[str, str]:
    """The comments with a colon that stand before the names of a class."""
    found: dict[str, str] = {}
    note: list[str] = []
    for line in inspect.getsource(thing).splitlines():
        text = line.strip()
        if text.startswith("#: "):
            note.append(text.removeprefix("#: "))
        elif name := re.match(r"(\w+)(?::| =)", text):
            if note:
                found[name[1]] = prose(" ".join(note))
            note = []
    return found


def _constant(thing: Any) -> str:
    text = str(thing)
    return text if len(text) <= _MOST_CONSTANT else f"{text[:_MOST_CONSTANT]} ..."


def _docstring(thing: Any) -> str:
    text = inspect.cleandoc(thing.__doc__ or "")
    made_by_dataclass = inspect.isclass(thing) and text.startswith(f"{thing.__name__}(")
    return "" if made_by_dataclass else prose(text)


def prose(text: str) -> str:
    """A text of the code as Markdown."""
    return text.replace("``", "`")
