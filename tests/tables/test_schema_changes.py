"""Mirrors whose columns follow the documents, or are changed by hand; every one ends equal."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import column_types
import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from tablekit import becomes, rows_of
from test_collection_changes import caught_up, started

from upriver.cli.main import cli
from upriver.errors import ConfigError, UpriverError
from upriver.spark.hashed_columns import hashable
from upriver.spark.repair_table import repair
from upriver.spark.verify_table import Comparison, verify
from upriver.tables.dead_letters import Replayed, replay
from upriver.tables.pipeline_settings import PipelineSettings
from upriver.tables.pipeline_start import place_of
from upriver.tables.rows.json_columns import JsonColumns
from upriver.tables.rows.json_types import merged, settled, type_of
from upriver.tables.rows.key_pattern import KeyColumns
from upriver.tables.rows.row_shape import NO_COLUMNS, MirrorShape
from upriver.tables.upkeep.manual_maintenance import compact
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


@pytest.mark.story
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
        inside = {"B": False, "c": 2, "d e": 1}
        odd = {"n": "many", "key": 1, "N": 2, "a b": 3, "fine": 4, "x.y": 5, "`": 6, "in": inside}
        write(producer, "d", odd)
        becomes(pipeline, lambda: cells("d", "n", "fine"), [None, 4])
    finally:
        pipeline.stop()
    assert pipeline.status().lag == 0
    found = rows(table)
    rescued = json.loads(found["d"]["_rescued"])
    assert rescued.pop("in") == {"B": False, "d e": 1}
    assert rescued == {"n": "many", "key": 1, "N": 2, "a b": 3}
    assert (found["d"]["x.y"], found["d"]["`"]) == (5, 6)
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


def test_a_column_stays_open_while_its_members_are_empty(
    spark: SparkSession, producer: TemporaryProducer, tmp_path: Path
) -> None:
    table = tmp_path / "people"
    write(producer, "ann", {"address": {}, "tags": [], "n": 1})
    caught_up(producer, table, value_schema="infer")
    assert rows(table)["ann"]["address"] == "{}"
    write(producer, "bob", {"address": {"city": "Ulm"}, "tags": ["x"], "n": "many"})
    write(producer, "cid", {"address": {"city": "Jena"}, "n": 2.5})
    caught_up(producer, table, value_schema="infer")
    found = rows(table)
    assert [found[key]["address"] for key in ("ann", "bob")] == [{"city": None}, {"city": "Ulm"}]
    assert [found[key]["n"] for key in ("ann", "bob", "cid")] == [1.0, None, 2.5]
    assert found["bob"]["_rescued"] == '{"n": "many"}'
    assert compared(spark, producer, table).verdict == "equal"


def test_single_members_are_given_types_beside_those_that_follow(
    spark: SparkSession, producer: TemporaryProducer, tmp_path: Path
) -> None:
    table = tmp_path / "shop"
    options: dict[str, Any] = {"value_schema": "infer", "column_types": {"price": "decimal(18,2)"}}
    write(producer, "a", {"price": 12.5, "n": 1, "deep": {"er": {"still": 1}}})
    caught_up(producer, table, **options)
    write(producer, "b", {"price": "12.50", "n": 0.5, "Price": 3})
    write(producer, "c", {"price": 0.125})
    caught_up(producer, table, **options)
    found = rows(table)
    assert [found[key]["price"] for key in "abc"] == [Decimal("12.50"), Decimal("12.50"), None]
    assert [found[key]["n"] for key in "ab"] == [1.0, 0.5]
    assert found["b"]["_rescued"] == '{"Price": 3}'
    assert found["c"]["_rescued"] == '{"price": 0.125}'
    assert compared(spark, producer, table).verdict == "equal"
    options |= {"column_types": ["price string", "n string"], "infer_depth": 1}
    with pytest.raises(ConfigError, match=r"its columnTypes is price decimal\(18,2\) and here"):
        caught_up(producer, table, **options)
    caught_up(producer, table, allow_change=True, **options)
    found = rows(table)
    assert [found[key]["price"] for key in "abc"] == ["12.5", "12.50", "0.125"]
    assert found["a"]["deep"] == {"er": '{"still":1}'}
    assert compared(spark, producer, table).verdict == "equal"
    version = DeltaTable(table).version()
    caught_up(producer, table, **options)
    assert DeltaTable(table).version() == version


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"column_types": "a int"}, "set valueSchema to infer"),
        ({"value_schema": "infer", "column_types": '{"a"'}, "columnTypes: give columns"),
        ({"value_schema": "infer", "column_types": {"a": "decimal(50)"}}, "decimal"),
        ({"value_schema": "infer", "column_types": ["a int", "A int"]}, "differ only by case"),
        ({"value_schema": "infer", "infer_depth": 51}, "inferDepth: 51 is not within 0 to 50"),
    ],
)
def test_wrong_types_of_members_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        PipelineSettings.parse("mirror", "couchbase://localhost/b", options)


def test_types_of_members_are_given_one_by_one_on_the_command_line(tmp_path: Path) -> None:
    words = ["mirror", "couchbase://localhost/b", str(tmp_path / "table"), "--schema", "infer"]
    found = CliRunner().invoke(cli, [*words, "--column", "a int", "--column", "A decimal(18,2)"])
    assert "a and A differ only by case" in str(found.exception)


def test_the_page_of_types_says_what_a_table_has_and_what_verify_finds(
    spark: SparkSession, producer: TemporaryProducer, tmp_path: Path
) -> None:
    table = tmp_path / "types"
    for value in column_types.VALUES:
        write(producer, value, column_types.document(value))
    caught_up(producer, table, value_schema=column_types.schema())
    found = {key: column_types.cells(row) for key, row in rows(table).items()}
    assert found == column_types.expected()
    assert compared(spark, producer, table).verdict == "equal"


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        ("array<int>", [None, 1], [1, None]),
        ("struct<a: int, b: int>", {"a": 1}, {"b": 1}),
        ("array<array<int>>", [[1], [2]], [[1, 2]]),
        ("map<string, array<int>>", {"a": [None, 1]}, {"a": [1]}),
    ],
)
def test_values_whose_nulls_lie_elsewhere_have_other_hashes(
    spark: SparkSession, kind: str, one: Any, other: Any
) -> None:
    values = spark.createDataFrame([(one,), (other,), (one,), (None,)], f"value {kind}")
    told = values.select(f.xxhash64(hashable(f.col("value"), values.schema[0].dataType)))
    first, second, third, none = (row[0] for row in told.collect())
    assert first == third
    assert len({first, second, none}) == 3


def test_a_table_with_maps_is_verified(
    spark: SparkSession, producer: TemporaryProducer, tmp_path: Path
) -> None:
    table = tmp_path / "maps"
    schema = "m map<string, struct<n: map<string, int>>>, a array<map<string, int>>"
    write(producer, "a", {"m": {"x": {"n": {"y": 1}}, "none": None}, "a": [{"z": 2}, None]})
    write(producer, "b", {"m": {}, "a": []})
    caught_up(producer, table, value_schema=schema)
    assert compared(spark, producer, table).verdict == "equal"
    write(producer, "a", {"m": {"x": {"n": {"y": 3}}}})
    with pytest.MonkeyPatch.context() as patch:  # the table says something else of the new one
        read = JsonColumns.parse

        def other(columns: JsonColumns, values: Any, *more: Any) -> Any:
            texts = [(text or b"{}").replace(b"3", b"4") for text in values.to_pylist()]
            return read(columns, pa.array(texts), *more)

        patch.setattr(JsonColumns, "parse", other)
        caught_up(producer, table, value_schema=schema)
    found = compared(spark, producer, table)
    assert (found.verdict, found.different) == ("different", 1)


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
    changed = caught_up(producer, table, value_schema=wider, allow_change=True).status()
    assert (changed.rows, changed.rollbacks) == (3, 0)
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


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ("a int, A int", "a and A differ only by case"),
        ("n array<struct<b: int, B: string>>", "b and B differ only by case"),
        ("`x y` int", "no column of the name 'x y'"),
        ("m map<string, struct<`k=v`: int>>", "no column of the name 'k=v'"),
    ],
)
def test_a_schema_with_names_that_delta_does_not_take_is_refused(
    producer: TemporaryProducer, tmp_path: Path, schema: str, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        caught_up(producer, tmp_path / "table", value_schema=schema)
    assert not (tmp_path / "table" / "_delta_log").exists()


def test_collections_have_schemas_of_their_own(
    spark: SparkSession, producer: TemporaryProducer, tmp_path: Path
) -> None:
    table, scope = tmp_path / "shop", producer.bucket.create_scope("shop").id
    numbers = {
        name: producer.bucket.create_collection(scope, name).id
        for name in ("orders", "people", "notes")
    }

    def put(collection: str, key: str, document: Any) -> None:
        value = document if isinstance(document, bytes) else json.dumps(document).encode()
        producer.write(key.encode(), value, len(key) % VBUCKETS, numbers[collection])

    options: dict[str, Any] = {
        "table_per_collection": True,
        "value_schema": {"shop.orders": "id int, sum double", "shop.people": "infer"},
        "rename": {"shop.orders": "sum=total.net"},
        "key_pattern": {"shop.orders": "{kind}::{number}"},
    }
    put("orders", "order::1", {"id": 1, "total": {"net": 2.5}})
    put("orders", "o2", {"id": "two"})
    put("people", "ann", {"name": "Ann", "id": "text"})
    put("notes", "n", b"no JSON")
    caught_up(producer, table, **options)
    put("people", "bob", {"name": "Bob", "age": 7})
    put("notes", "m", b"more")
    caught_up(producer, table, **options)
    orders, people, notes = (rows(table / f"shop.{name}") for name in numbers)
    names = ("kind", "number", "id", "sum", "_rescued")
    assert [orders["order::1"][name] for name in names] == ["order", "1", 1, 2.5, None]
    assert [orders["o2"][name] for name in names] == [None, None, None, None, '{"id": "two"}']
    assert (people["ann"]["id"], people["bob"]["age"]) == ("text", 7)
    assert (notes["n"]["value"], notes["m"]["value"]) == (b"no JSON", b"more")
    assert {"sum", "value", "kind"}.isdisjoint(people["ann"])
    assert compared(spark, producer, table).verdict == "equal"
    # a vbucket goes back, the letter of o2 is settled by a wider schema, and rows are repaired
    producer.fail_over(len("bob") % VBUCKETS, 1)
    options["value_schema"] = {**options["value_schema"], "shop.orders": "id string, sum double"}
    with pytest.raises(ConfigError, match="allow-change"):
        caught_up(producer, table, **options)
    caught_up(producer, table, allow_change=True, **options)
    assert rows(table / "shop.orders")["o2"]["id"] == "two"
    assert replay(place_of(table, PipelineSettings.parse("mirror", producer.source, {}))) == (
        Replayed(fitting=1)
    )
    for name in numbers:
        DeltaTable(table / f"shop.{name}").delete("vbucket > 0")
    assert compared(spark, producer, table).verdict == "different"
    done = repair(spark, source=producer.source, table=str(table))
    assert (done.written, done.removed, done.left) == (done.found.missing, 0, 0)
    assert compared(spark, producer, table).verdict == "equal"
    # a collection that comes later has values, and one that is dropped none
    late = producer.bucket.create_collection(scope, "late")
    producer.bucket.drop_collection(numbers["people"])
    producer.write(b"k", b"{}", 0, late.id)
    caught_up(producer, table, **options)
    assert rows(table / "shop.late")["k"]["value"] == b"{}"
    assert not rows(table / "shop.people")
    assert compared(spark, producer, table).verdict == "equal"
    assert compact(
        place_of(table, PipelineSettings.parse("mirror", producer.source, {})), seconds=0
    )
    assert compared(spark, producer, table).verdict == "equal"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"value_schema": {"a.b": "c int"}}, "set tablePerCollection"),
        ({"value_schema": {"a.b": "c int"}, "scope": "x"}, "none of the collections that are read"),
        ({"rename": {"orders": "c=d"}}, "rename: 'orders' is no collection"),
        ({"key_pattern": '["a"]'}, "a JSON object with a text by collection"),
    ],
)
def test_wrong_columns_of_collections_are_refused(options: dict[str, Any], problem: str) -> None:
    more = {"table_per_collection": True} if "set" not in problem else {}
    with pytest.raises(ConfigError, match=problem):
        PipelineSettings.parse("mirror", "couchbase://localhost/b", {**options, **more})


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
    wide = shape.grown([{"": {f"m{number}": "long" for number in range(2_100)}}])
    assert wide is not None
    assert (len(json.loads(wide.schema)["fields"]), wide.full) == (2_000, True)
    assert MirrorShape.of_json(wide.to_property()).full
    assert wide.grown([{"": {"more": "long"}}]) is None


def test_a_struct_grows_up_to_as_many_members_as_there_may_be_columns() -> None:
    shape = MirrorShape(schema=NO_COLUMNS, rescues=True, follows=True)
    for added, fits in ((1_950, True), (100, False), (10, True)):
        members = {f"m{added}-{nth}": nth for nth in range(added)}
        value = pa.array([json.dumps({"in": members}).encode()])
        grown = shape.grown([{"": shape_columns(shape).parse(value).seen}])
        assert grown is not None
        shape = grown
        (rescued,) = shape_columns(shape).parse(value).rescued.to_pylist()
        assert json.loads(rescued or "null") == (None if fits else {"in": members})
        assert shape.full == (added != 1_950)


def shape_columns(shape: MirrorShape) -> JsonColumns:
    types = {one["name"]: one["type"] for one in json.loads(shape.schema)["fields"]}
    return JsonColumns(types, follows=True, full=shape.full)


@pytest.mark.parametrize("to_text", [False, True])
def test_no_member_is_lost_whatever_its_name(to_text: bool) -> None:
    """Each value is in its column, or rescued: also members that differ only by case, inside."""
    dice = random.Random(29)
    names = ["a", "A", "b.c", "", "x y", "l" * 300, "d", "\u00e4", "\u00c4", "tab\t", "=", "`q`"]

    def any_value(depth: int = 0) -> Any:
        if depth < 3 and dice.random() < 0.5:
            if dice.random() < 0.3:
                return [any_value(depth + 1) for _ in range(dice.randrange(3))]
            return {name: any_value(depth + 1) for name in dice.sample(names, dice.randrange(4))}
        return dice.choice([None, True, 7, 0.5, "text"])

    for _ in range(100):
        shape = MirrorShape(schema=NO_COLUMNS, rescues=True, follows=True, to_text=to_text)
        documents = [
            {name: any_value() for name in dice.sample(names, dice.randrange(5))} for _ in range(6)
        ]
        values = pa.array([json.dumps(document).encode() for document in documents])
        for part in (values.slice(0, 3), values):  # the schema grows in the middle
            while grown := shape.grown([{"": shape_columns(shape).parse(part).seen}]):
                shape = grown
        parsed = shape_columns(shape).parse(values)
        for number, document in enumerate(documents):
            cells = {name: column[number].as_py() for name, column in parsed.columns.items()}
            rescued = json.loads(parsed.rescued[number].as_py() or "{}")
            assert is_held(document, cells, rescued), (document, cells, rescued)


def is_held(value: Any, cell: Any, rescued: Any) -> bool:
    if value is None or (rescued is not None and rescued == value):
        return True
    if isinstance(cell, str) and not isinstance(value, str):
        cell = json.loads(cell)
    if isinstance(value, dict) and isinstance(cell, dict):
        rest = rescued if isinstance(rescued, dict) else {}
        return all(is_held(one, cell.get(name), rest.get(name)) for name, one in value.items())
    if isinstance(value, list) and isinstance(cell, list):
        return len(value) == len(cell) and all(
            is_held(one, some, None) for one, some in zip(value, cell, strict=True)
        )
    return bool(value == cell)


def test_members_that_are_there_several_times_are_rescued_with_all_their_values() -> None:
    inside = {"type": "struct", "fields": [{"name": "a", "type": "long"}]}
    columns = JsonColumns(
        {"n": "long", "t": "string", "in": inside, "city": "string"},
        sources={"city": "at.city"},
    )
    cases: dict[str, dict[str, Any] | None] = {
        '{"n": 1, "n": 2, "t": "a:b", "other": 1, "other": 2}': {"n": [1, 2]},
        '{"n": 1, "\\u006e": "\\u003a"}': {"n": [1, ":"]},
        '{"in": {"a": 1, "a": 3, "b": 1, "b": 1}}': {"in": {"a": [1, 3]}},
        '{"t": [{"x": 1, "x": 2}]}': {"t": [{"x": [1, 2]}]},
        '{"at": {"city": "A", "city": "B"}}': {"city": ["A", "B"]},
        '{"n": 1, "t": "12:30", "in": {"a": 1}}': None,
    }
    parsed = columns.parse(pa.array([text.encode() for text in cases]))
    told = [json.loads(text) if text else None for text in parsed.rescued.to_pylist()]
    assert told == list(cases.values())
    assert parsed.columns["n"].to_pylist() == [2, None, None, None, None, 1]
    assert parsed.reasons[0] == "n: it is there several times"
    # values whose members have their types as they are take another way
    plain = JsonColumns({"n": "long", "t": "string"})
    for text in (
        '{"n": 1, "n": 2}',
        '{"t": ":", "t": "\\u003a"}',
        '{"n": 1, "x": {"y": 1, "y": 2}}',
    ):
        parsed = plain.parse(pa.array([b'{"t": "12:30:00"}', text.encode()]))
        assert (parsed.rescued[1].as_py() is None) == ("x" in text)
        assert parsed.rescued[0].as_py() is None


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
