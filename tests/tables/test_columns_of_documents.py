"""The columns that follow documents depend on the documents, not on how these fell into batches."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upriver.tables.rows.json_columns import JsonColumns, Parsed
from upriver.tables.rows.json_types import Type, settled
from upriver.tables.rows.row_shape import NO_COLUMNS, MirrorShape

INFER = MirrorShape(schema=NO_COLUMNS, rescues=True, follows=True)
TO_TEXT = replace(INFER, to_text=True)


def types_of(shape: MirrorShape) -> dict[str, Type]:
    return {one["name"]: one["type"] for one in json.loads(shape.schema)["fields"]}


def columns_of(shape: MirrorShape) -> dict[str, Any]:
    """By name the types of columns; their order is that in which they came."""
    return {name: in_order(settled(kind)) for name, kind in types_of(shape).items()}


def in_order(kind: Type) -> Any:
    """A type whose members have no order."""
    if isinstance(kind, str):
        return kind
    if kind["type"] == "array":
        return [in_order(kind["elementType"])]
    return {one["name"]: in_order(one["type"]) for one in kind["fields"]}


def parse(shape: MirrorShape, documents: Sequence[Any], seen: dict[str, Type]) -> Parsed:
    columns = JsonColumns(types_of(shape), follows=True, to_text=shape.to_text)
    values = [json.dumps(document).encode() for document in documents]
    return columns.parse(pa.array(values, pa.binary()), frozenset({"key"}), seen)


class Table:
    """A table in memory that does with batches what a pipeline does."""

    def __init__(self, shape: MirrorShape) -> None:
        self.shape = shape
        self.documents: list[Any] = []
        self.rows: list[dict[str, Any]] = []
        #: How often all documents were read anew.
        self.anew = 0

    def batch(self, documents: Sequence[Any], tasks: int = 1) -> None:
        before, read = self.shape, list(documents)
        while True:
            parts = [read[number::tasks] for number in range(tasks)]
            found: list[dict[str, dict[str, Type]]] = [{"": {}} for _ in parts]
            rows: dict[int, dict[str, Any]] = {}
            for number, part in enumerate(parts):
                half = len(part) // 2
                for start, some in ((0, part[:half]), (half, part[half:])):
                    parsed = parse(self.shape, some, found[number][""])
                    for nth in range(len(some)):
                        rows[number + (start + nth) * tasks] = row_of(parsed, nth)
            grown = self.shape.grown(found)
            if grown is None:
                break
            if not grown.only_adds_to(before) and len(read) == len(documents):
                read, self.rows = [*self.documents, *documents], []
                self.anew += bool(self.documents)
            self.shape = grown
        self.rows += [rows[number] for number in sorted(rows)]
        self.documents += documents

    def content(self) -> tuple[dict[str, Any], list[str]]:
        """The columns, and the rows as text."""
        names = [*columns_of(self.shape), "_rescued"]
        rows = [{name: row.get(name) for name in names} for row in self.rows]
        return columns_of(self.shape), [
            json.dumps([document, row], sort_keys=True, default=str)
            for document, row in zip(self.documents, rows, strict=True)
        ]


def row_of(parsed: Parsed, number: int) -> dict[str, Any]:
    row = {name: column[number].as_py() for name, column in parsed.columns.items()}
    return row | {"_rescued": parsed.rescued[number].as_py()}


def in_batches(shape: MirrorShape, *batches: Sequence[Any]) -> Table:
    table = Table(shape)
    for documents in batches:
        table.batch(documents)
    return table


def divided(documents: list[Any], cuts: list[int]) -> Iterator[list[Any]]:
    places = [0, *sorted({cut % (len(documents) + 1) for cut in cuts}), len(documents)]
    for start, end in pairwise(places):
        yield documents[start:end]


def documents_of(names: list[str], cells: Any) -> Any:
    values = st.recursive(
        cells,
        lambda inside: st.one_of(
            st.lists(inside, max_size=3),
            st.dictionaries(st.sampled_from(names), inside, max_size=3),
        ),
        max_leaves=5,
    )
    return st.lists(
        st.dictionaries(st.sampled_from(names), values, max_size=3), min_size=1, max_size=6
    )


_CELLS: Any = st.sampled_from(
    [None, True, 7, -(2**40), 2**60 + 1, 2**70, 10**40, 0.5, "text", [], {}]
)
_CUTS = st.lists(st.integers(0, 6), max_size=3)


@pytest.mark.parametrize("shape", [INFER, TO_TEXT], ids=["rescued", "to text"])
@given(documents=documents_of(["a", "A", "b", "c d", "key"], _CELLS), cuts=_CUTS)
def test_a_table_is_the_same_in_whatever_batches_its_documents_came(
    shape: MirrorShape, documents: list[Any], cuts: list[int]
) -> None:
    whole, parts = in_batches(shape, documents), in_batches(shape, *divided(documents, cuts))
    assert parts.content() == whole.content()


@given(documents=documents_of(["a", "b", "key"], _CELLS), cuts=_CUTS, data=st.data())
def test_with_columns_that_become_text_their_order_does_not_matter_either(
    documents: list[Any], cuts: list[int], data: st.DataObject
) -> None:
    mixed = data.draw(st.permutations(documents))
    found = in_batches(TO_TEXT, *divided(list(mixed), cuts)).content()
    told = in_batches(TO_TEXT, documents).content()
    assert (found[0], sorted(found[1])) == (told[0], sorted(told[1]))


_AGREEING: Any = st.builds(
    dict,
    n=st.sampled_from([None, 1, 2**60, 2**70, 10**40, 0.5]),
    id=st.sampled_from([None, 1, 2**60 + 1, 2**70 + 1, 10**40]),
    flag=st.sampled_from([None, True]),
    text=st.sampled_from([None, "x"]),
    tags=st.lists(st.one_of(st.integers(0, 9), st.just(0.5)), max_size=2),
    place=st.dictionaries(st.sampled_from("pqr"), st.sampled_from([None, 1, 2.5]), max_size=3),
    deep=st.lists(st.dictionaries(st.sampled_from("xy"), st.lists(st.just(True))), max_size=2),
)


@given(
    documents=st.lists(_AGREEING, min_size=1, max_size=6),
    cuts=_CUTS,
    tasks=st.integers(1, 3),
    data=st.data(),
)
def test_documents_that_agree_make_the_same_table_in_any_order_and_in_any_tasks(
    documents: list[Any], cuts: list[int], tasks: int, data: st.DataObject
) -> None:
    mixed, table = data.draw(st.permutations(documents)), Table(INFER)
    for part in divided(list(mixed), cuts):
        table.batch(part, tasks)
    found, told = table.content(), in_batches(INFER, documents).content()
    assert (found[0], sorted(found[1])) == (told[0], sorted(told[1]))


def test_a_document_that_disagrees_does_not_keep_others_from_widening_a_column() -> None:
    held = in_batches(INFER, [{"n": 1}], [{"n": "many"}, {"n": 2.5}, {"n": [1]}])
    assert columns_of(held.shape) == {"n": "double"}
    assert [row["n"] for row in held.rows] == [1.0, None, 2.5, None]


@pytest.mark.parametrize(
    ("documents", "kind"),
    [
        ([{"a": {}}, {"a": {"city": "Ulm"}}], {"city": "string"}),
        ([{"a": []}, {"a": [1]}], ["long"]),
        ([{"a": []}, {"a": {"city": "Ulm"}}], {"city": "string"}),
        ([{"a": {}}, {"a": []}, {"a": 5}], "long"),
        ([{"a": {"in": {}}}, {"a": {"in": {"b": True}}}], {"in": {"b": "boolean"}}),
        ([{"a": [{}]}, {"a": [{"b": 1}]}], [{"b": "long"}]),
        ([{"a": {"b": None}}, {"a": {"b": 1}}], {"b": "long"}),
        ([{"a": {}}], "string"),
        ([{"a": []}], ["string"]),
    ],
)
def test_an_empty_object_or_array_does_not_fix_a_type(documents: list[Any], kind: Any) -> None:
    table = in_batches(INFER, *([one] for one in documents))
    assert columns_of(table.shape) == {"a": kind}
    assert table.content() == in_batches(INFER, documents).content()


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([7, 2**64], "decimal(38,0)"),
        ([7, 10**40], "long"),
        ([7, 0.5], "double"),
        ([2**64, 0.5], "double"),
        ([2**53 + 1, 0.5], "long"),
        ([7, 2**53 + 1, 7, 0.5], "long"),
        ([2**64 + 1, 0.5], "decimal(38,0)"),
        ([2**53 + 1, 2**64, 0.5], "decimal(38,0)"),
        ([0.5, 2**53 + 1], "double"),
        ([[2**53 + 1], [0.5]], ["long"]),
        ([{"b": 1}, {"c": "x"}], {"b": "long", "c": "string"}),
        ([[1], [0.5]], ["double"]),
        (["x", 7], "string"),
        ([7, "x"], "long"),
        ([True, 7], "boolean"),
        ([{"b": 1}, []], {"b": "long"}),
    ],
)
def test_what_a_later_value_makes_of_a_column(values: list[Any], kind: Any) -> None:
    assert columns_of(in_batches(INFER, *([{"a": one}] for one in values)).shape) == {"a": kind}


def test_one_fraction_does_not_push_whole_numbers_out_of_their_column() -> None:
    numbers = [{"id": 2**60 + number, "n": number} for number in range(1, 50)]
    for batches in ([[*numbers, {"id": 0.5, "n": 0.5}]], [numbers, [{"id": 0.5, "n": 0.5}]]):
        rescued = in_batches(INFER, *batches)
        assert [row["id"] for row in rescued.rows] == [one["id"] for one in numbers] + [None]
        assert rescued.rows[-1] == {"id": None, "n": 0.5, "_rescued": '{"id": 0.5}'}
        text = in_batches(TO_TEXT, *batches)
        assert [row["id"] for row in text.rows] == [str(one["id"]) for one in numbers] + ["0.5"]


def test_a_history_makes_no_column_before_something_is_known() -> None:
    history = replace(INFER, versions=True)
    table = in_batches(history, [{"a": {}, "b": {"c": []}}], [{"a": {"city": "Ulm"}}])
    assert columns_of(table.shape) == {"a": {"city": "string"}, "b": {"c": ["string"]}}
    assert [row["_rescued"] for row in table.rows] == ['{"a": {}}', None]
    assert table.anew == 0


@pytest.mark.parametrize(
    ("depth", "kind"),
    [
        (0, "string"),
        (1, {"in": "string", "n": "long"}),
        (2, {"in": ["string"], "n": "long"}),
        (3, {"in": [{"b": "long"}], "n": "long"}),
    ],
)
def test_what_lies_deeper_than_wanted_is_text(depth: int, kind: Any) -> None:
    columns = JsonColumns({}, follows=True, depth=depth)
    parsed = columns.parse(pa.array([b'{"a": {"n": 1, "in": [{"b": 2}]}}']))
    assert in_order(parsed.seen["a"]) == kind


def test_of_members_that_differ_by_case_the_first_has_the_column() -> None:
    often = [{"name": number, "in": {"x": number}} for number in range(100)]
    for batches in ([[*often, {"Name": 1, "in": {"X": 1}}]], [often, [{"Name": 1}]]):
        table = in_batches(INFER, *batches)
        assert [row["name"] for row in table.rows] == [*range(100), None]
        assert [row["_rescued"] for row in table.rows[:100]] == [None] * 100
        assert json.loads(table.rows[100]["_rescued"])["Name"] == 1
    both = in_batches(INFER, [{"in": {"b": 1, "B": 2}}])
    assert columns_of(both.shape) == {"in": {"b": "long"}}
    assert both.rows == [{"in": {"b": 1}, "_rescued": '{"in": {"B": 2}}'}]
