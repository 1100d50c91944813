"""Whatever bytes a document has: its row is written, it is a dead letter, the others are whole."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tablekit import rows_of
from test_collection_changes import caught_up

from upriver.tables.dead_letters import letters
from upriver.tables.places import TablePlace
from upriver.tables.rows.ddl import schema_json
from upriver.tables.rows.json_columns import (
    NOT_FITTING,
    NOT_JSON,
    TOO_DEEP,
    JsonColumns,
    Parsed,
)
from upriver.tables.rows.json_types import Type
from upriver.tables.rows.row_shape import LETTERS, NO_COLUMNS, MirrorShape
from upriver.testing import TemporaryProducer

VBUCKETS = 4
SCHEMA = (
    "id long, note string, n long, t string, d double, f float, price decimal(6,2), day date, "
    "at timestamp, tags array<string>, inside struct<n: int, t: string>, "
    "counts map<string, double>"
)
#: Values that a parser, or what comes after it, may choke on, and why they are no documents.
NO_DOCUMENTS = {
    b"see: http": NOT_JSON,
    b'{"a": ': NOT_JSON,
    b'{"t": "a:\xff"}': NOT_JSON,
    b'\xef\xbb\xbf{"t": ":"}': NOT_JSON,
    b'{"n": NaN, "t": ":"}': NOT_JSON,
    b"": NOT_JSON,
    b'[{"n": 1}, {"n": 2}]': NOT_FITTING,
    b'{"n": ' + b"[" * 5_000 + b"]" * 5_000 + b"}": TOO_DEEP,
    b'{"n":' * 5_000 + b"1" + b"}" * 5_000: TOO_DEEP,
    b'{"n":' + b"[" * 200 + b"]" * 200 + b', "t": ":"}': TOO_DEEP,
}
#: Documents with members that no column can hold.
ODD_DOCUMENTS = (
    b'{"n": ' + b"9" * 5_000 + b"}",
    b'{"\\ud800": 1, "\\ud800": ":"}',
    b'{"t": "\\udfff", "n": 1}',
    b'{"price": "NaN", "d": "NaN", "n": 1e400, "f": -1e39}',
    b'{"day": "0000-00-00", "at": "9999-12-31T23:59:59-23:59"}',
    b'{"n": 18446744073709551616, "d": ' + b"9" * 400 + b"}",
    b'{"tags": ["\\ud800", 1], "inside": {"n": 1.5, "n": 2}, "counts": {"\\udc00": 1}}',
    b'{"' + b"x" * 100_000 + b'": ":", "n": "' + b"y" * 100_000 + b'"}',
    b'{"n":' + b"[" * 199 + b"]" * 199 + b', "t": ":"}',
)
GOOD = b'{"id": 7, "note": "12:30"}'


@pytest.mark.parametrize("schema", ["infer", SCHEMA], ids=["inferred", "written"])
def test_no_document_stops_a_table(tmp_path: Path, schema: str) -> None:
    table, known = tmp_path / "documents", dict[bytes, bytes]()
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        for _ in range(2):  # the second time beside columns that are there
            for number, value in enumerate([*NO_DOCUMENTS, *ODD_DOCUMENTS]):
                for key, content in ((b"odd%d", value), (b"good%d", GOOD)):
                    known[key % number] = content
                    producer.write(key % number, content, number % VBUCKETS)
            caught_up(producer, table, value_schema=schema)
        rows = {row["key"]: row for row in rows_of(table)}
    assert rows.keys() == known.keys()
    reasons = {one.key: one.reason for one in letters(TablePlace.parse(table))}
    for key, value in known.items():
        is_good = key.startswith(b"good")
        if is_good:
            assert (rows[key]["id"], rows[key]["note"]) == (7, "12:30")
            assert rows[key]["_rescued"] is None
        assert rows[key]["_corrupt_record"] == (value if value in NO_DOCUMENTS else None)
        if value in NO_DOCUMENTS:
            assert reasons[key] == NO_DOCUMENTS[value]
        assert not (is_good and key in reasons)


_ANY_TEXT = st.text(st.characters(), max_size=8)
_ANY_NUMBER = st.one_of(
    st.integers(),
    st.floats(),
    st.integers(-(10**40), 10**40),
    st.sampled_from([2**53 + 1, -(2**63), 2**63, 2**64, 10**309]),
)
_NAMES = st.one_of(
    st.sampled_from(["n", "t", "d", "f", "price", "day", "at", "tags", "inside", "counts"]),
    _ANY_TEXT,
)
_ANY_MEMBER = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        _ANY_NUMBER,
        _ANY_TEXT,
        st.sampled_from(["NaN", "Infinity", "2026-11-19", "0001-01-01T00:00:00+23:59", "1e3"]),
    ),
    lambda inside: st.one_of(
        st.lists(inside, max_size=3), st.dictionaries(_NAMES, inside, max_size=3)
    ),
    max_leaves=6,
)
_DOCUMENTS = st.dictionaries(_NAMES, _ANY_MEMBER, max_size=5).map(
    lambda document: json.dumps(document).encode()
)


@st.composite
def _spoiled(draw: st.DrawFn) -> bytes:
    """JSON some of whose bytes are others, are missing or are there twice."""
    value = bytearray(draw(_DOCUMENTS))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(value)))
        end = min(len(value), start + draw(st.integers(0, 8)))
        value[start:end] = draw(
            st.one_of(st.binary(max_size=3), st.just(bytes(value[start:end]) * 2))
        )
    return bytes(value)


_DEEP = st.builds(
    lambda opening, closing, depth: opening * depth + b"1" + closing * depth,
    st.sampled_from([b"[", b'{"n":', b'{"inside":', b'[{"a": ":", "n":']),
    st.sampled_from([b"]", b"}", b"}]", b""]),
    st.integers(1, 3_000),
)
_VALUES = st.one_of(
    st.none(),
    st.just(GOOD),
    st.binary(max_size=12),
    _DOCUMENTS,
    _spoiled(),
    _DEEP,
    st.sampled_from([*NO_DOCUMENTS, *ODD_DOCUMENTS]),
)


_WRITTEN = schema_json(SCHEMA)
SHAPES = {
    "inferred": MirrorShape(schema=NO_COLUMNS, rescues=True, follows=True),
    "inferred as text": MirrorShape(schema=NO_COLUMNS, rescues=True, follows=True, to_text=True),
    "followed": MirrorShape(schema=_WRITTEN, rescues=True, follows=True),
    "written": MirrorShape(schema=_WRITTEN, rescues=True),
    "without rescued": MirrorShape(schema=_WRITTEN),
    "plain": MirrorShape(schema=schema_json("id long, note string"), rescues=True),
}


@pytest.mark.parametrize("kind", SHAPES)
@given(values=st.lists(_VALUES, max_size=6))
def test_no_bytes_leave_the_parser_as_an_error(kind: str, values: list[bytes | None]) -> None:
    grown: MirrorShape | None = SHAPES[kind]
    while grown is not None:  # columns that follow documents, as in a pipeline
        shape = grown
        parsed = parse(shape, values)
        grown = shape.grown([{"": parsed.seen}])
    for number, value in enumerate(values):
        alone = parse(shape, [value])
        cells = (row_of(parsed, number), row_of(alone, 0))
        assert repr(cells[0]) == repr(cells[1])  # NaN is not equal to itself
        if parsed.corrupt[number].is_valid:
            assert parsed.corrupt[number].as_py() == value
            assert parsed.reasons[number] is not None
        if value == GOOD:
            assert parsed.reasons[number] is None
            assert (cells[0]["id"], cells[0]["note"]) == (7, "12:30")
    pa.array(parsed.reasons, LETTERS.field("reason").type)


_NUMBER_TEXTS = st.one_of(
    st.integers().map(str),
    st.integers(-(10**45), 10**45).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.from_regex(r"-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,25})?([eE][-+]?[0-9]{1,4})?", fullmatch=True),
    st.sampled_from(["9007199254740993", "18446744073709551615", "1e400", "0.1", "1e-400", "-0"]),
)
NUMBER_TYPES = ("int", "long", "float", "double", "decimal(10,2)", "decimal(38,0)", "string")


@pytest.mark.parametrize("kind", [*NUMBER_TYPES, "infer"])
@given(texts=st.lists(_NUMBER_TEXTS, min_size=1, max_size=4))
def test_a_number_is_in_its_column_as_it_was_written_or_rescued(
    kind: str, texts: list[str]
) -> None:
    values: list[bytes | None] = [b'{"n": %s, "in": [%s]}' % (2 * (t.encode(),)) for t in texts]
    shape: MirrorShape = SHAPES["inferred"]
    if kind != "infer":
        written = schema_json(f"n {kind}, in array<{kind}>")
        shape = MirrorShape(schema=written, rescues=True)
    while (grown := shape.grown([{"": parse(shape, values).seen}])) is not None:
        shape = grown
    parsed = parse(shape, values)
    for number, text in enumerate(texts):
        row = row_of(parsed, number)
        rescued = json.loads(row["_rescued"] or "{}", parse_float=str, parse_int=str)
        inside = row.get("in")
        for name, cell in (("n", row.get("n")), ("in", inside and inside[0])):
            if cell is None:
                assert rescued[name] in (text, [text])
            else:
                is_float = pa.types.is_float32(parsed.columns["n"].type)
                shown = np.float32(cell) if is_float else cell
                assert Decimal(text) in (Decimal(str(shown)), Decimal(cell))
                assert name not in rescued


def parse(shape: MirrorShape, values: list[bytes | None]) -> Parsed:
    types: dict[str, Type] = {
        one["name"]: one["type"] for one in json.loads(shape.schema)["fields"]
    }
    columns = JsonColumns(types, rescues=shape.rescues, follows=shape.follows, full=shape.full)
    return columns.parse(pa.array(values, pa.binary()), frozenset({"key"}))


def row_of(parsed: Parsed, number: int) -> dict[str, Any]:
    row = {name: column[number].as_py() for name, column in parsed.columns.items()}
    return row | {"_rescued": parsed.rescued[number].as_py(), "why": parsed.reasons[number]}
