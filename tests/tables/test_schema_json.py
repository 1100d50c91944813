"""The JSON of a Delta table's schema, held to what deltalake has for the same."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from deltalake import Schema
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from upriver.errors import ConfigError
from upriver.tables.format import schema_json

_PLAIN: list[pa.DataType] = [
    pa.binary(),
    pa.bool_(),
    pa.date32(),
    pa.float32(),
    pa.float64(),
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    pa.string(),
    pa.timestamp("us"),
    pa.timestamp("us", "UTC"),
]
_DECIMALS: st.SearchStrategy[pa.DataType] = st.tuples(st.integers(1, 38), st.integers(0, 38)).map(
    lambda one: pa.decimal128(max(one), min(one))
)
_NAMES = st.text("ab c.é\"\\'", min_size=1, max_size=4)


def _struct(kinds: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[list[pa.Field[Any]]]:
    field = st.builds(pa.field, _NAMES, kinds, st.booleans())
    return st.lists(field, min_size=1, max_size=4, unique_by=lambda one: one.name.lower())


def _nested(kinds: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[Any]:
    elements = st.builds(lambda kind, null: pa.field("element", kind, null), kinds, st.booleans())
    values = st.builds(lambda kind, null: pa.field("value", kind, null), kinds, st.booleans())
    return st.one_of(
        _struct(kinds).map(pa.struct),
        elements.map(pa.list_),
        values.map(lambda value: pa.map_(pa.field("key", pa.string(), False), value)),
    )


_TYPES: st.SearchStrategy[pa.DataType] = st.recursive(
    st.sampled_from(_PLAIN) | _DECIMALS, _nested, max_leaves=6
)


@given(_struct(_TYPES).map(pa.schema))
def test_a_schema_is_what_deltalake_and_spark_make_of_it(schema: pa.Schema) -> None:
    text = schema_json.to_json(schema)
    theirs = Schema.from_arrow(schema).to_json()
    assert json.loads(text) == json.loads(theirs)
    assert schema_json.to_arrow(text) == schema
    assert pa.schema(Schema.from_json(text).to_arrow()) == schema  # type: ignore[arg-type]
    assert json.loads(StructType.fromJson(json.loads(text)).json()) == json.loads(text)


def test_the_text_is_what_earlier_versions_wrote() -> None:
    """A table whose schema has not changed gets no commit that says so."""
    schema = pa.schema({"é": pa.list_(pa.field("element", pa.int64())), "n": pa.null()})
    assert schema_json.to_json(schema) == Schema.from_arrow(schema).to_json()


def test_large_texts_are_texts_and_notes_stay() -> None:
    schema = pa.schema([pa.field("a", pa.large_string(), metadata={"comment": "c"})])
    back = schema_json.to_arrow(schema_json.to_json(schema)).field("a")
    assert (back.type, back.metadata) == (pa.string(), {b"comment": b"c"})


@pytest.mark.parametrize(
    "kind", [pa.uint64(), pa.time64("us"), pa.decimal256(50, 2), pa.list_(pa.timestamp("ns"))]
)
def test_a_type_that_delta_does_not_have_is_named_with_its_column(kind: pa.DataType) -> None:
    with pytest.raises(ConfigError, match="column a: Delta has no type for"):
        schema_json.to_json(pa.schema([("a", kind)]))


@pytest.mark.parametrize("kind", ["variant", {"type": "interval"}])
def test_a_type_that_only_others_know_is_named_with_its_column(kind: object) -> None:
    field = {"name": "a", "type": kind, "nullable": True, "metadata": {}}
    with pytest.raises(ConfigError, match=r"column a: its type (variant|interval) is not known"):
        schema_json.to_arrow(json.dumps({"type": "struct", "fields": [field]}))
