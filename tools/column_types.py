"""What columns make of JSON values, as tables of docs/reference/types.md; from the code itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from upriver.tables.rows.ddl import schema_json
from upriver.tables.rows.json_columns import JsonColumns
from upriver.tables.rows.json_types import settled

#: As documents have them.
VALUES = (
    "null",
    "true",
    "7",
    "9007199254740993",
    "18446744073709551615",
    f"1{39 * '0'}",
    "12.5",
    "0.125",
    "1e400",
    '"text"',
    '"7"',
    '"2024-02-29"',
    '"2024-02-29T12:00:00+01:00"',
    "[1, 2]",
    '[1, "x"]',
    "[]",
    '{"a": 1}',
    '{"a": 1, "b": 2}',
    "{}",
)
#: Types as they are written in a schema.
TYPES = (
    *("boolean", "int", "bigint", "double", "decimal(10,2)", "string", "date", "timestamp"),
    *("array<bigint>", "struct<a: bigint>", "map<string, bigint>"),
)
RESCUED = "*rescued*"


def schema() -> str:
    """A column for each type, ``c0`` and so on."""
    return ", ".join(f"c{number} {kind}" for number, kind in enumerate(TYPES))


def document(value: str) -> bytes:
    """The document with the same value for every column."""
    members = ", ".join(f'"c{number}": {value}' for number in range(len(TYPES)))
    return f"{{{members}}}".encode()


def cells(row: dict[str, Any]) -> list[str]:
    """What a row has of each type."""
    rescued = json.loads(row["_rescued"] or "{}")
    return [
        RESCUED if f"c{number}" in rescued else _shown(row[f"c{number}"], kind)
        for number, kind in enumerate(TYPES)
    ]


def expected() -> dict[str, list[str]]:
    """By value what a row has of each type."""
    types = {one["name"]: one["type"] for one in json.loads(schema_json(schema()))["fields"]}
    parsed = JsonColumns(types).parse(pa.array([document(value) for value in VALUES]))
    rows = [
        {name: column[number].as_py() for name, column in parsed.columns.items()}
        | {"_rescued": parsed.rescued[number].as_py()}
        for number in range(len(VALUES))
    ]
    return {value: cells(row) for value, row in zip(VALUES, rows, strict=True)}


def value_table() -> Iterator[str]:
    yield f"| value | {' | '.join(f'`{kind}`' for kind in TYPES)} |"
    yield f"|---|{len(TYPES) * '---|'}"
    for value, row in expected().items():
        yield f"| `{_short(value)}` | {' | '.join(row)} |"


def inferred_table() -> Iterator[str]:
    yield "| value | type |"
    yield "|---|---|"
    for value in VALUES[1:]:
        first = JsonColumns({}, follows=True).parse(pa.array([f'{{"m": {value}}}'.encode()]))
        yield f"| `{_short(value)}` | `{_sql(settled(first.seen['m']))}` |"


def _sql(kind: Any) -> str:
    if isinstance(kind, str):
        return {"long": "bigint"}.get(kind, kind)
    if kind["type"] == "array":
        return f"array<{_sql(kind['elementType'])}>"
    members = ", ".join(one["name"] + ": " + _sql(one["type"]) for one in kind["fields"])
    return f"struct<{members}>"


def _short(text: str) -> str:
    return text if len(text) < 39 else f"{text[:4]}...{text[-4:]}"


def _shown(value: Any, kind: str) -> str:
    if value is None:
        return "null"
    if kind.startswith("map"):
        value = dict(value)
    if isinstance(value, bool | str | list | dict):
        return f"`{_short(json.dumps(value))}`"
    return f"`{value}`"
