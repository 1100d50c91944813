"""Mirrors whose columns follow the documents, or are changed by hand; every one ends equal."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tablekit import becomes, rows_of
from test_collection_changes import caught_up, started

from upriver.errors import ConfigError, UpriverError
from upriver.spark.tables.rows.json_columns import JsonColumns
from upriver.spark.tables.rows.json_types import merged, settled, type_of
from upriver.spark.tables.rows.key_columns import KeyColumns
from upriver.spark.tables.rows.row_shape import NO_COLUMNS, MirrorShape
from upriver.spark.tables.verify import Comparison, verify
from upriver.testing import TemporaryProducer

VBUCKETS = 4


@pytest.fixture
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        yield producer


def write(producer: TemporaryProducer, key: str, document: Any) -> None:
    value = document if isinstance(document, bytes) else json.dumps(document).encode()
    producer.write(key.encode(), value, sum(key.encode()) % VBUCKETS)


def rows(table: Path) -> dict[str, dict[str, Any]]:
    return {row["key"].decode(): row for row in rows_of(table)}


def compared(spark: SparkSession, producer: TemporaryProducer, table: Path) -> Comparison:
    return verify(spark, source=producer.source, table=str(table))


def test_columns_follow_the_documents_without_a_restart(
    spark: SparkSession, producer: TemporaryProducer, tmp_path: Path
) -> None:
    table = tmp_path / "things"
    write(producer, "list", [1, 2])  # no object, and no reason to infer nothing
    write(producer, "a", {"n": 1, "tags": ["x"], "in": {"b": True}, "none": None})

    def cells(key: str, *names: str) -> list[Any]:
        row = rows(table).get(key, {})
        return [row.get(name) for name in names]

    pipeline = started(producer, table, value_schema="infer")
    try:
        becomes(pipeline, lambda: cells("a", "n", "tags", "in"), [1, ["x"], {"b": True}])
        write(producer, "b", {"n": 2, "unheard": "of"})
        becomes(pipeline, lambda: cells("b", "n", "unheard"), [2, "of"])
        version = DeltaTable(table).version()
        write(producer, "c", {"n": 2.5, "in": {"c": 1}})  # both columns change their types
        becomes(
            pipeline, lambda: cells("c", "n", "in", "unheard"), [2.5, {"b": None, "c": 1}, None]
        )
        assert DeltaTable(table).version() == version + 1
        # what disagrees, has a name of ours, one twice but for case, or one that Delta refuses
        write(producer, "d", {"n": "many", "key": 1, "N": 2, "a b": 3, "fine": 4})
        becomes(pipeline, lambda: cells("d", "n", "fine"), [None, 4])
    finally:
        pipeline.stop()
    assert pipeline.status().lag == 0
    found = rows(table)
    assert json.loads(found["d"]["_rescued"]) == {"n": "many", "key": 1, "N": 2, "a b": 3}
    assert found["list"]["_corrupt_record"] == b"[1, 2]"
    types = {name: str(kind) for name, kind in _types(table).items()}
    assert (types["n"], types["fine"], types["unheard"]) == ("double", "int64", "string")
    assert compared(spark, producer, table).verdict == "equal"
    # a vbucket goes back to rows from before a column came
    producer.fail_over(sum(b"b") % VBUCKETS, 1)
    caught_up(producer, table, value_schema="infer")
    assert compared(spark, producer, table).verdict == "equal"
    caught_up(producer, table, value_schema="infer", widen_to_text=True)
    write(producer, "e", {"n": "text"})
    caught_up(producer, table, value_schema="infer", widen_to_text=True)
    found = rows(table)
    assert [found[key]["n"] for key in "ade"] == ["1", "many", "text"]
    assert compared(spark, producer, table).verdict == "equal"


def _types(table: Path) -> dict[str, pa.DataType]:
    schema: Any = pa.schema(DeltaTable(table).schema().to_arrow())  # type: ignore[arg-type]
    return {one.name: one.type for one in schema}


def test_a_schema_by_hand_is_extended_and_deleted_documents_come_back(
    spark: SparkSession, producer: TemporaryProducer, tmp_path: Path
) -> None:
    table = tmp_path / "people"
    write(producer, "ann", {"name": "Ann", "age": 31, "city": "Ulm"})
    write(producer, "bob", {"name": "Bob", "age": "many"})
    write(producer, "cid", {"name": "Cid"})
    producer.delete(b"cid", sum(b"cid") % VBUCKETS)
    caught_up(producer, table, value_schema="name string, age int")
    found = rows(table)
    assert (found["bob"]["name"], found["bob"]["_rescued"]) == ("Bob", '{"age": "many"}')
    wider = "name string, age string, city string"
    with pytest.raises(ConfigError, match="--allow-change"):
        caught_up(producer, table, value_schema=wider)
    caught_up(producer, table, value_schema=wider, allow_change=True)
    found = rows(table)
    assert (found["ann"]["age"], found["ann"]["city"]) == ("31", "Ulm")
    assert (found["bob"]["age"], found["bob"]["_rescued"]) == ("many", None)
    assert compared(spark, producer, table).verdict == "equal"
    caught_up(producer, table, value_schema=wider, keep_deleted=True, allow_change=True)
    assert {key: row["deleted"] for key, row in rows(table).items()} == {
        "ann": False,
        "bob": False,
        "cid": True,
    }
    assert compared(spark, producer, table).verdict == "equal"
    version = DeltaTable(table).version()
    caught_up(producer, table, value_schema=wider, keep_deleted=True)
    assert DeltaTable(table).version() == version


def test_columns_of_a_table_per_collection_follow_too(
    spark: SparkSession, producer: TemporaryProducer, tmp_path: Path
) -> None:
    table, options = tmp_path / "all", {"value_schema": "infer", "table_per_collection": True}
    other = producer.bucket.create_collection(0, "other")
    write(producer, "a", {"n": 1})
    producer.write(b"b", b'{"m": 1}', 1, other.id)
    caught_up(producer, table, **options)
    producer.write(b"c", b'{"m": 1.5, "o": 1}', 2, other.id)
    caught_up(producer, table, **options)
    found = rows(table / "_default.other")
    assert [(found[key]["m"], found[key]["o"]) for key in "bc"] == [(1.0, None), (1.5, 1)]
    assert rows(table / "_default._default")["a"]["n"] == 1
    assert compared(spark, producer, table).verdict == "equal"


def test_keys_and_members_are_shaped(
    spark: SparkSession, producer: TemporaryProducer, tmp_path: Path
) -> None:
    table = tmp_path / "orders"
    write(producer, "order::7::ulm", {"name": "Ann", "who": "not me", "address": {"city": "Ulm"}})
    write(producer, "other", {"address": 1})
    options = {
        "value_schema": "who string, city string",
        "rename": "who=name,city=address.city",
        "key_format": "string",
        "key_pattern": "{kind}::{number}",
    }
    caught_up(producer, table, **options)
    write(producer, "order::7::ulm", {"name": "Bob", "address": {"city": 8}})
    caught_up(producer, table, **options)
    found = {row["key"]: row for row in rows_of(table)}
    names = ("kind", "number", "who", "city", "_rescued")
    told = ["order", "7::ulm", "Bob", "8", None]
    assert [found["order::7::ulm"][name] for name in names] == told
    assert [found["other"][name] for name in names] == [None] * 5
    assert compared(spark, producer, table).verdict == "equal"
    caught_up(producer, table, value_schema="who string", allow_change=True)
    assert rows(table)["other"]["key"] == b"other"
    assert compared(spark, producer, table).verdict == "equal"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"key_pattern": "order"}, "is no pattern"),
        ({"key_pattern": "{a}{b}"}, "is no pattern"),
        ({"key_pattern": "{a}:{A}"}, "each of them once"),
        ({"key_pattern": "{cas}:{b}"}, "a column cas already"),
        ({"rename": "who"}, "is no column and member"),
        ({"rename": "who=name"}, "rename needs columns"),
    ],
)
def test_shapes_that_mean_nothing_are_refused(
    producer: TemporaryProducer, tmp_path: Path, options: dict[str, str], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        caught_up(producer, tmp_path / "none", **options)


def test_keys_that_are_no_text_have_no_parts_and_are_no_text_columns() -> None:
    keys = pa.array([b"a:b", b"\xff:b"], pa.binary())
    found = KeyColumns(pattern="{first}:{second}").of(keys)
    assert found["first"].to_pylist() == ["a", None]
    assert found["second"].to_pylist() == ["b", None]
    with pytest.raises(UpriverError, match="is no UTF-8 text; make the table with keyFormat"):
        KeyColumns(text=True).of(keys)


@pytest.mark.parametrize("seed", [3, 8])
def test_documents_of_any_form_end_in_columns_or_rescued(
    producer: TemporaryProducer, tmp_path: Path, seed: int
) -> None:
    dice = random.Random(seed)
    table, documents = tmp_path / "any", dict[str, bytes]()
    names = ["p", "q", "r", "P", "key", "bad name"]
    options = {"value_schema": "infer", "widen_to_text": seed == 8}
    for _ in range(4):
        for _ in range(8):
            key = f"k{dice.randrange(12)}"
            document = {name: _any_value(dice) for name in dice.sample(names, dice.randrange(5))}
            documents[key] = json.dumps(document).encode()
            write(producer, key, documents[key])
        caught_up(producer, table, max_offsets_per_trigger=dice.choice([5, 1000]), **options)
        properties = DeltaTable(table).metadata().configuration
        shape = MirrorShape.of_json(properties["upriver.shape"])
        types = {one["name"]: one["type"] for one in json.loads(shape.schema)["fields"]}
        columns = JsonColumns(types, follows=True)
        found = rows(table)
        assert found.keys() == documents.keys()
        values = [documents[key] for key in found]
        parsed = columns.parse(pa.array(values, pa.binary()), frozenset({"key"}))
        for number, row in enumerate(found.values()):
            assert row["_rescued"] == parsed.rescued[number].as_py()
            for name, column in parsed.columns.items():
                assert row[name] == column[number].as_py()


def _any_value(dice: random.Random, depth: int = 0) -> Any:
    kinds: list[Any] = [None, True, 7, -(2**40), 2**70, 0.5, "text", ""]
    if depth < 3 and dice.random() < 0.4:
        if dice.random() < 0.5:
            return [_any_value(dice, depth + 1) for _ in range(dice.randrange(3))]
        names = dice.sample(["a", "B", "c d", "e"], dice.randrange(4))
        return {name: _any_value(dice, depth + 1) for name in names}
    return dice.choice(kinds)


def test_too_many_members_are_rescued() -> None:
    shape = MirrorShape(schema=NO_COLUMNS, rescues=True, follows=True)
    wide = shape.grown([{f"m{number}": "long" for number in range(2_100)}])
    assert wide is not None
    assert (len(json.loads(wide.schema)["fields"]), wide.full) == (2_000, True)
    assert MirrorShape.of_json(wide.to_property()).full
    assert wide.grown([{"more": "long"}]) is None


def test_types_that_were_merged_take_every_value() -> None:
    dice = random.Random(7)
    for _ in range(300):
        documents = [{"m": _any_value(dice)} for _ in range(3)]
        kind: Any = "void"
        for document in documents:
            kind = merged(kind, type_of(document["m"]), to_text=True)
        columns = JsonColumns({"m": settled(kind)}, follows=True)
        values = [json.dumps(document).encode() for document in documents]
        parsed = columns.parse(pa.array(values, pa.binary()))
        assert not parsed.seen
        assert parsed.rescued.null_count == len(documents)
