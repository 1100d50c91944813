"""The schema of a Delta table: its JSON, and the Arrow schema of its rows.

Spark's `StructType` has the same JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from ...errors import ConfigError

_ARROW: Final[Mapping[str, pa.DataType]] = {
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "date": pa.date32(),
    "double": pa.float64(),
    "float": pa.float32(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "short": pa.int16(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
}
_NAMES: Final = {
    **{arrow: name for name, arrow in _ARROW.items()},
    pa.large_binary(): "binary",
    pa.large_string(): "string",
}
_DECIMAL: Final = re.compile(r"decimal\((\d+),\s*(\d+)\)")


def to_json(schema: pa.Schema) -> str:
    """The JSON of an Arrow schema; `ConfigError` if Delta has no type for one of its columns."""
    return json.dumps(_struct(schema), separators=(",", ":"), ensure_ascii=False)


def to_arrow(text: str) -> pa.Schema:
    """The Arrow schema of the JSON; `ConfigError` if a column is of a type that is not known."""
    return pa.schema(_fields(json.loads(text)))


def _struct(fields: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": [_field_json(one) for one in fields]}


def _field_json(field: pa.Field[Any]) -> dict[str, Any]:
    try:
        kind = _type_json(field.type)
    except KeyError:
        raise ConfigError(f"column {field.name}: Delta has no type for {field.type}") from None
    notes = {name.decode(): text.decode() for name, text in (field.metadata or {}).items()}
    return {"name": field.name, "type": kind, "nullable": field.nullable, "metadata": notes}


def _type_json(kind: Any) -> str | dict[str, Any]:
    if pa.types.is_struct(kind):
        return _struct([kind.field(number) for number in range(kind.num_fields)])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = _type_json(kind.value_type)
        return {
            "type": "array",
            "elementType": element,
            "containsNull": kind.value_field.nullable,
        }
    if pa.types.is_map(kind):
        return {
            "type": "map",
            "keyType": _type_json(kind.key_type),
            "valueType": _type_json(kind.item_type),
            "valueContainsNull": kind.item_field.nullable,
        }
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _NAMES[kind]


def _fields(struct: Mapping[str, Any]) -> list[pa.Field[Any]]:
    return [_field_arrow(one) for one in struct["fields"]]


def _field_arrow(field: Mapping[str, Any]) -> pa.Field[Any]:
    try:
        kind = _type_arrow(field["type"])
    except KeyError as error:
        raise ConfigError(
            f"column {field['name']}: its type {error.args[0]} is not known here"
        ) from None
    notes = {name: text for name, text in field["metadata"].items() if isinstance(text, str)}
    return pa.field(field["name"], kind, field["nullable"], metadata=notes or None)


def _type_arrow(kind: str | Mapping[str, Any]) -> pa.DataType:
    if isinstance(kind, str):
        if decimal := _DECIMAL.fullmatch(kind):
            return pa.decimal128(int(decimal[1]), int(decimal[2]))
        return _ARROW[kind]
    match kind["type"]:
        case "struct":
            return pa.struct(_fields(kind))
        case "array":
            element = _type_arrow(kind["elementType"])
            return pa.list_(pa.field("element", element, kind["containsNull"]))
        case "map":
            value = pa.field("value", _type_arrow(kind["valueType"]), kind["valueContainsNull"])
            return pa.map_(_type_arrow(kind["keyType"]), value)  # type: ignore[call-overload, no-any-return]
        case other:
            raise KeyError(other)
