"""JSON text of structs, maps and arrays, for the sink: what Spark's ``to_json`` makes of them.

Members of a struct that are null are left out. Timestamps and dates are ISO 8601 (timestamps with a
zone in UTC), decimals are exact numbers, binary is base64. NaN and infinite numbers are refused,
because JSON has none.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa


def json_texts(column: pa.Array[Any]) -> list[str | ValueError | None]:
    """The cells of a column as JSON; null stays None.

    A cell that cannot be JSON is a ValueError, so that the caller can name its row.
    """
    kind = column.type
    return [None if cell is None else _attempted(cell, kind) for cell in column.to_pylist()]


def _attempted(cell: Any, kind: pa.DataType) -> str | ValueError:
    try:
        return _text(cell, kind)
    except ValueError as problem:
        return problem


def _text(value: Any, kind: pa.DataType) -> str:
    if value is None:
        return "null"
    if isinstance(kind, pa.StructType):
        members = (
            f"{json.dumps(field.name)}:{_text(value[field.name], field.type)}"
            for field in kind
            if value[field.name] is not None
        )
        return f"{{{','.join(members)}}}"
    if isinstance(kind, pa.MapType):
        pairs = (
            f"{json.dumps(_name(name))}:{_text(one, kind.item_type)}"
            for name, one in (value.items() if isinstance(value, dict) else value)
        )
        return f"{{{','.join(pairs)}}}"
    if isinstance(kind, pa.ListType | pa.LargeListType):
        return f"[{','.join(_text(one, kind.value_type) for one in value)}]"
    return _scalar(value)


def _name(name: Any) -> str:
    return name if isinstance(name, str) else json.loads(_quoted(_scalar(name)))


def _quoted(text: str) -> str:
    return text if text.startswith('"') else json.dumps(text)


def _scalar(value: Any) -> str:
    if isinstance(value, bool | int | str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, float | Decimal):
        if not math.isfinite(value):
            raise ValueError(f"the number {value} is not JSON")
        return f"{value:f}" if isinstance(value, Decimal) else json.dumps(value)
    if isinstance(value, datetime):
        moment = value.astimezone(UTC) if value.tzinfo is not None else value
        return json.dumps(moment.isoformat().replace("+00:00", "Z"))
    if isinstance(value, date):
        return json.dumps(value.isoformat())
    if isinstance(value, bytes):
        return json.dumps(b64encode(value).decode())
    raise ValueError(f"a {type(value).__name__} is not JSON; make a string of it first")
