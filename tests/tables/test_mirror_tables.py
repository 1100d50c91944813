"""Mirrors of a real producer: loads, changes, rollbacks, options, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from tablekit import (
    ModelledBucket,
    becomes,
    becomes_equal,
    caught_up,
    crashed,
    documents_of,
    rows_of,
    running_mirror,
)

from upriver.errors import ConfigError
from upriver.files.storage import Storage
from upriver.spark.pipelines import mirror
from upriver.spark.verify_table import verify
from upriver.tables.commit_state import TableState, positions_of
from upriver.tables.format.open_table import OpenTable
from upriver.testing import TemporaryProducer

pytestmark = pytest.mark.story

VBUCKETS = 4


@pytest.fixture
def bucket() -> Iterator[ModelledBucket]:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        yield ModelledBucket(producer)


def filled(bucket: ModelledBucket, count: int = 40) -> None:
    for number in range(count):
        bucket.write(number % VBUCKETS, b"k%d" % number, b'{"n":%d}' % number)


def test_documents_come_change_and_leave(
    spark: SparkSession, bucket: ModelledBucket, tmp_path: Path
) -> None:
    table = tmp_path / "documents"
    filled(bucket)
    caught_up(spark, bucket.producer, table, max_offsets_per_trigger=15)
    assert documents_of(table) == bucket.documents()
    bucket.write(1, b"k1", b"new")
    bucket.write(1, b"k1", b"newer")
    bucket.delete(2, b"k2")
    bucket.write(3, b"other", b"\xff\x00")
    with running_mirror(spark, bucket.producer, table) as pipeline:
        becomes_equal(pipeline, bucket, table)
        version = DeltaTable(table).version()
    assert pipeline.status().state == "stopped"
    caught_up(spark, bucket.producer, table)
    assert DeltaTable(table).version() == version
    found = OpenTable.open(Storage.parse(table))
    assert found is not None
    assert found.snapshot.state is not None
    offset = TableState.of_text(found.snapshot.state, str(table)).offset
    assert offset is not None
    assert {vb: at for vb, (at, _) in positions_of(offset).items()} == {
        vb: bucket.high(vb) for vb in range(VBUCKETS)
    }


def test_a_first_load_has_what_lives_of_every_collection(
    spark: SparkSession, bucket: ModelledBucket, tmp_path: Path
) -> None:
    table = tmp_path / "documents"
    filled(bucket)
    bucket.delete(1, b"k1")
    other = bucket.producer.bucket.create_collection(0, "other")
    bucket.producer.write(b"k2", b"of the other", 2, other.id)
    caught_up(spark, bucket.producer, table)
    assert DeltaTable(table).version() == 1  # one commit has made the table, and one filled it
    rows = sorted(rows_of(table), key=lambda row: (row["collection"], row["key"]))
    last = rows.pop()
    assert (last["collection"], last["key"], last["value"]) == ("other", b"k2", b"of the other")
    assert {row["key"]: row["value"] for row in rows} == bucket.documents()
    assert all(row["vbucket_group"] == row["vbucket"] % 64 for row in rows)
    compared = verify(spark, source=bucket.producer.source, table=str(table))
    assert (compared.equal, compared.differing) == (len(rows) + 1, 0)


def test_a_first_load_takes_the_newest_change_of_documents_that_changed_twice(
    spark: SparkSession, bucket: ModelledBucket, tmp_path: Path
) -> None:
    table = tmp_path / "documents"
    filled(bucket)
    crashed(spark, bucket.producer, table, "files")  # files are there, and no commit names them
    bucket.write(0, b"k0", b"newer")
    bucket.delete(1, b"k1")
    bucket.write(2, b"comes and goes", b"1")
    bucket.delete(2, b"comes and goes")
    bucket.write(3, b"another", b"1")
    caught_up(spark, bucket.producer, table)
    assert documents_of(table) == bucket.documents()


def test_rollbacks_are_undone_exactly(
    spark: SparkSession, bucket: ModelledBucket, tmp_path: Path
) -> None:
    table = tmp_path / "documents"
    filled(bucket)
    with running_mirror(spark, bucket.producer, table) as pipeline:
        becomes_equal(pipeline, bucket, table)
        # the next plan makes a boundary of this, which failovers can go back to
        bucket.write(0, b"stays", b"0")
        becomes_equal(pipeline, bucket, table)
        points = {vb: bucket.high(vb) for vb in range(VBUCKETS)}
        # in vbucket 0 an update, an insert and a deletion that will be lost; elsewhere what stays
        bucket.write(0, b"k4", b"lost update")
        bucket.write(0, b"inserted", b"lost insert")
        bucket.delete(0, b"k8")
        bucket.write(1, b"k1", b"kept update")
        bucket.delete(1, b"k5")
        becomes_equal(pipeline, bucket, table)
        bucket.fail_over(0, points[0])
        bucket.write(0, b"after", b"the failover")
        bucket.write(0, b"k12", b"on the new branch")
        becomes_equal(pipeline, bucket, table)
        held = documents_of(table)
        assert (held[b"k4"], held[b"k8"]) == (b'{"n":4}', b'{"n":8}')
        assert b"inserted" not in held
        assert held[b"k1"] == b"kept update"
        # the second failover of the same vbucket, the first of another, and one down to nothing
        bucket.fail_over(0, points[0])
        bucket.fail_over(1, points[1])
        bucket.fail_over(2, 0)
        bucket.write(2, b"k2", b"begins again")
        becomes_equal(pipeline, bucket, table)
        held = documents_of(table)
    assert (held[b"k12"], held[b"k5"]) == (b'{"n":12}', b'{"n":5}')
    assert b"k6" not in held
    branches = {row["vbucket"]: row["branch"] for row in rows_of(table)}
    assert branches[3] == 0
    assert pipeline.status().rollbacks >= 4


def test_deleted_documents_stay_marked_on_request(
    spark: SparkSession, bucket: ModelledBucket, tmp_path: Path
) -> None:
    table = tmp_path / "documents"

    def held() -> dict[bytes, tuple[bool, str | None]]:
        return {row["key"]: (row["deleted"], row["value"]) for row in rows_of(table)}

    for key in (b"stays", b"goes", b"returns"):
        bucket.write(0, key, b"1")
    bucket.delete(0, b"goes")
    options = {"keep_deleted": True, "value_format": "string"}
    with running_mirror(spark, bucket.producer, table, **options) as pipeline:
        before = {b"stays": (False, "1"), b"goes": (True, None), b"returns": (False, "1")}
        becomes(pipeline, held, before)
        high = bucket.high(0)
        bucket.delete(0, b"returns")
        bucket.write(0, b"inserted", b"2")
        becomes(pipeline, held, {**before, b"returns": (True, None), b"inserted": (False, "2")})
        bucket.fail_over(0, high)
        becomes(pipeline, held, before)


@pytest.mark.parametrize("per_collection", [False, True])
def test_collections(
    spark: SparkSession, bucket: ModelledBucket, tmp_path: Path, per_collection: bool
) -> None:
    table = tmp_path / "documents"
    names = ["_default._default", "shop.orders", "shop.people"]
    scope = bucket.producer.bucket.create_scope("shop")
    numbers = {
        name: bucket.producer.bucket.create_collection(scope.id, name).id
        for name in ("orders", "people")
    }

    def held() -> list[tuple[str, str, int, bytes]]:
        tables = [table / name for name in names] if per_collection else [table]
        return sorted(
            (row["scope"], row["collection"], row["vbucket"], row["value"])
            for path in tables
            if (path / "_delta_log").exists()
            for row in rows_of(path)
        )

    for vbucket in (0, 1):
        bucket.producer.write(b"same", b"default", vbucket)
        for name, number in numbers.items():
            bucket.producer.write(b"same", name.encode(), vbucket, number)
    first = [("_default", "_default", vb, b"default") for vb in (0, 1)]
    first += [("shop", name, vb, name.encode()) for name in numbers for vb in (0, 1)]
    options = {"table_per_collection": per_collection}
    with running_mirror(spark, bucket.producer, table, **options) as pipeline:
        becomes(pipeline, held, sorted(first))
        bucket.producer.delete(b"same", 0, numbers["orders"])
        bucket.producer.write(b"same", b"changed", 1, numbers["people"])
        changed = [*first, ("shop", "people", 1, b"changed")]
        changed.remove(("shop", "orders", 0, b"orders"))
        changed.remove(("shop", "people", 1, b"people"))
        becomes(pipeline, held, sorted(changed))
    found = verify(spark, source=bucket.producer.source, table=str(table))
    assert (found.equal, found.differing, found.incomparable) == (5, 0, ())


def test_values_as_columns_and_dead_letters(
    spark: SparkSession, bucket: ModelledBucket, tmp_path: Path
) -> None:
    table = tmp_path / "people"
    schema = "name string, age int"
    bucket.write(0, b"ann", b'{"name":"Ann","age":31,"more":[1]}')
    bucket.write(1, b"bad", b"no JSON")
    bucket.write(1, b"odd", b'{"name":"Odd","age":"many"}')

    def named() -> dict[bytes, str | None]:
        return {row["key"]: row["name"] for row in rows_of(table)}

    with running_mirror(spark, bucket.producer, table, value_schema=schema) as pipeline:
        becomes(pipeline, named, {b"ann": "Ann", b"bad": None, b"odd": "Odd"})
        bucket.write(1, b"bad", b'{"name":"Bad","age":1}')
        bucket.write(2, b"worse", b"\xff\xfe")
        becomes(pipeline, named, {b"ann": "Ann", b"bad": "Bad", b"odd": "Odd", b"worse": None})
    assert pipeline.status().dead_letters == 3
    people = {row["key"]: row for row in rows_of(table)}
    assert {key: (row["name"], row["age"]) for key, row in people.items()} == {
        b"ann": ("Ann", 31),
        b"bad": ("Bad", 1),
        b"odd": ("Odd", None),
        b"worse": (None, None),
    }
    assert people[b"odd"]["_rescued"] == '{"age": "many"}'
    assert people[b"worse"]["_corrupt_record"] == b"\xff\xfe"
    assert people[b"bad"]["_corrupt_record"] is people[b"bad"]["_rescued"] is None
    letters = rows_of(table / "_upriver" / "dead_letters")
    assert sorted((one["key"], one["reason"], one["value"]) for one in letters) == [
        (b"bad", "it is no JSON", b"no JSON"),
        (b"odd", "age: it does not fit the schema", b'{"name":"Odd","age":"many"}'),
        (b"worse", "it is no JSON", b"\xff\xfe"),
    ]
    assert {one["seqno"] for one in letters if one["key"] == b"worse"} == {bucket.high(2)}


def test_what_does_not_belong_to_the_table_is_refused(
    spark: SparkSession, bucket: ModelledBucket, tmp_path: Path
) -> None:
    table = tmp_path / "documents"
    filled(bucket, 4)
    caught_up(spark, bucket.producer, table)
    source = bucket.producer.source

    def refused(**options: Any) -> str:
        with pytest.raises(ConfigError) as failure:
            mirror(spark, **{"source": source, "table": table, "once": True, **options})
        return str(failure.value)

    with TemporaryProducer(vbuckets=VBUCKETS, bucket="other") as other:
        assert "its bucket is default and here it is other" in refused(source=other.source)
    assert "its keepDeleted is false and here it is true; give" in refused(keep_deleted=True)
    assert "its scope is none and here it is _default; give" in refused(scope="_default")
    assert "merge_on_read is true" in refused(merge_on_read=False)
    assert "has no meaning for a mirror" in refused(starting_offsets="latest")
    write_deltalake(tmp_path / "other", pa.table({"n": [1]}))
    assert "no pipeline of ours has made" in refused(table=tmp_path / "other")
    DeltaTable.create(
        tmp_path / "old",
        pa.schema([("n", pa.int64())]),
        configuration={"upriver.kind": "mirror"},
        raise_if_key_not_exists=False,
    )
    assert "made by upriver 0.1" in refused(table=tmp_path / "old")
    running = mirror(spark, source=source, table=table)
    try:
        assert "another pipeline is running" in refused()
    finally:
        running.stop()
    assert running.status().state == "stopped"
    assert documents_of(table) == bucket.documents()
