"""Columns written as in Spark SQL, ``name string, tags array<string>``, as the JSON of a schema.

It is read here and not by Spark, so that a schema that cannot be is refused before Spark is
started. The JSON is what Spark itself makes of the same text.
"""

from __future__ import annotations

import json
import re
from difflib import get_close_matches
from typing import Any, Final

from ...errors import ConfigError

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<quoted>`(?:[^`]|``)+`)|(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<word>\w+)|(?P<mark>[<>(),:]))",
    re.ASCII | re.DOTALL,
)
#: By the words of SQL the names in a schema.
_SIMPLE: Final = {
    "boolean": "boolean",
    "tinyint": "byte",
    "byte": "byte",
    "smallint": "short",
    "short": "short",
    "int": "integer",
    "integer": "integer",
    "bigint": "long",
    "long": "long",
    "float": "float",
    "real": "float",
    "double": "double",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ltz": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
    "string": "string",
    "binary": "binary",
    "variant": "variant",
}
_DECIMALS: Final = ("decimal", "dec", "numeric")
_NESTED: Final = ("array", "map", "struct")
_MOST_DIGITS: Final = 38
#: Levels of a type: deeper ones are a mistake or an attack.
_DEEPEST: Final = 64


def schema_json(ddl: str) -> str:
    """The JSON of the schema that a text describes; ConfigError says where it is wrong."""
    return json.dumps(_Reader(ddl).columns(), separators=(",", ":"), sort_keys=True)


class _Reader:
    def __init__(self, ddl: str) -> None:
        self._ddl = ddl
        self._tokens: list[tuple[str, str]] = []
        at, text = 0, ddl.rstrip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise self._wrong(f"{text[at:].split()[0]!r} cannot be read")
            assert found.lastgroup is not None
            self._tokens.append((found.lastgroup, found[found.lastgroup]))
            at = found.end()
        self._next = 0

    def columns(self) -> dict[str, Any]:
        if not self._tokens:
            raise self._wrong("it describes no columns")
        fields = self._fields(0)
        if self._next < len(self._tokens):
            raise self._wrong(f"{self._tokens[self._next][1]!r} is not expected there")
        return {"type": "struct", "fields": fields}

    def _fields(self, depth: int) -> list[dict[str, Any]]:
        made = [self._column(depth)]
        while self._took(","):
            made.append(self._column(depth))
        return made

    def _column(self, depth: int) -> dict[str, Any]:
        kind, token = self._take("the name of a column")
        if kind == "quoted":
            token = token[1:-1].replace("``", "`")
        elif kind != "word":
            raise self._wrong(f"{token!r} is not the name of a column")
        self._took(":")
        column = {
            "name": token,
            "type": self._type(token, depth),
            "nullable": True,
            "metadata": {},
        }
        if self._took("not"):
            self._require("null", token)
            column["nullable"] = False
        if self._took("comment"):
            kind, text = self._take("a comment in quotes")
            if kind != "text":
                raise self._wrong(f"the comment of {token} needs quotes")
            column["metadata"] = {"comment": re.sub(r"\\(.)", r"\1", text[1:-1])}
        return column

    def _type(self, column: str, depth: int) -> Any:
        if depth > _DEEPEST:
            raise self._wrong(f"{column} has more than {_DEEPEST} levels")
        _, token = self._take(f"the type of {column}")
        name = token.lower()
        if name in _SIMPLE:
            return _SIMPLE[name]
        if name in _DECIMALS:
            return self._decimal(column)
        if name not in _NESTED:
            raise self._unknown(column, token)
        self._require("<", token)
        made: Any
        if name == "struct":
            made = {"type": "struct", "fields": self._fields(depth + 1)}
        elif name == "array":
            made = {
                "type": "array",
                "elementType": self._type(column, depth + 1),
                "containsNull": True,
            }
        else:
            key = self._type(column, depth + 1)
            self._require(",", token)
            made = {
                "type": "map",
                "keyType": key,
                "valueType": self._type(column, depth + 1),
                "valueContainsNull": True,
            }
        self._require(">", token)
        return made

    def _decimal(self, column: str) -> str:
        precision, scale = (*self._numbers(column), 10, 0)[:2] if self._sees("(") else (10, 0)
        if not (0 < precision <= _MOST_DIGITS and 0 <= scale <= precision):
            raise self._wrong(
                f"{column} is a decimal({precision},{scale}): it has 1 to {_MOST_DIGITS} digits, "
                "and not more of them behind the point"
            )
        return f"decimal({precision},{scale})"

    def _numbers(self, column: str) -> tuple[int, ...]:
        """``(10,2)``, or ``(10)`` with 0 for the second."""
        self._require("(", column)
        numbers = [self._number(column)]
        while self._took(","):
            numbers.append(self._number(column))
        self._require(")", column)
        return (*numbers, 0) if len(numbers) == 1 else tuple(numbers)

    def _number(self, column: str) -> int:
        _, token = self._take(f"a number in the type of {column}")
        if not (token.isascii() and token.isdigit() and len(token) < 10):
            raise self._wrong(f"{token!r} in the type of {column} is not a number")
        return int(token)

    # ---- tokens ----------------------------------------------------------------------------

    def _take(self, wanted: str) -> tuple[str, str]:
        if self._next >= len(self._tokens):
            raise self._wrong(f"it ends where {wanted} should be")
        self._next += 1
        return self._tokens[self._next - 1]

    def _sees(self, token: str) -> bool:
        return self._next < len(self._tokens) and self._tokens[self._next][1].lower() == token

    def _took(self, token: str) -> bool:
        seen = self._sees(token)
        self._next += seen
        return seen

    def _require(self, token: str, after: str) -> None:
        if not self._took(token):
            raise self._wrong(f"a {token!r} is missing after {after}")

    def _unknown(self, column: str, token: str) -> ConfigError:
        close = get_close_matches(token.lower(), [*_SIMPLE, *_DECIMALS, *_NESTED], 1)
        hint = f", did you mean {close[0]}?" if close else ""
        return self._wrong(f"{column} has the type {token}, which is no type of a column{hint}")

    def _wrong(self, problem: str) -> ConfigError:
        shown = self._ddl if len(self._ddl) <= 120 else f"{self._ddl[:117]}..."
        return ConfigError(
            f"valueSchema: {shown!r}: {problem}; write columns such as 'name string, age int'"
        )
