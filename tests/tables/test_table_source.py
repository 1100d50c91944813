"""Tables as Spark reads them without a jar: rows, versions, columns, filters and change feeds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any, cast

import polars
import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tablekit import ModelledBucket, caught_up, rows_of

from upriver.settings.option_types import TableOptions
from upriver.spark import read_table, register
from upriver.tables.places import TablePlace
from upriver.tables.upkeep.manual_maintenance import compact
from upriver.testing import TemporaryProducer

VBUCKETS = 4


@pytest.fixture
def bucket() -> Iterator[ModelledBucket]:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        bucket = ModelledBucket(producer)
        for number in range(20):
            bucket.write(number % VBUCKETS, b"k%d" % number, b"%d" % number)
        yield bucket


def test_rows_versions_columns_and_filters(
    spark: SparkSession, bucket: ModelledBucket, tmp_path: Path
) -> None:
    table = tmp_path / "documents"
    caught_up(spark, bucket.producer, table)
    before = bucket.documents()
    bucket.write(0, b"k0", b"new")
    bucket.delete(1, b"k1")
    caught_up(spark, bucket.producer, table)
    register(spark)

    def held(**options: int | str) -> dict[bytes, bytes]:
        frame = spark.read.format("upriver-table").options(**options).load(str(table))
        rows = frame.select("key", "value").collect()
        assert len({bytes(row.key) for row in rows}) == len(rows)
        return {bytes(row.key): bytes(row.value) for row in rows}

    assert held() == bucket.documents()
    assert held(versionAsOf=1) == before
    log = table / "_delta_log"
    first, second = (json.loads(open_line(log / f"{n:020}.json")) for n in (1, 2))
    for stamp, wanted in ((first, before), (second, bucket.documents())):
        moment = datetime.fromtimestamp(stamp["commitInfo"]["timestamp"] / 1000, UTC)
        assert held(timestampAsOf=moment.isoformat()) == wanted
    assert held(timestampAsOf="0s") == bucket.documents()
    with pytest.raises(PySparkException, match="has no version of 2001-01-01T00:00:00Z any more"):
        held(timestampAsOf="2001-01-01")
    some = read_table(spark, table, columns=["key", "vbucket"])
    assert some.columns == ["key", "vbucket"]
    assert some.where("vbucket = 2").count() == 5
    assert some.where("vbucket > 900").count() == 0
    with pytest.raises(PySparkException, match="no column nothing"):
        read_table(spark, table, columns=["nothing"])
    with pytest.raises(PySparkException, match="has no version 99"):
        read_table(spark, table, version_as_of=99).count()
    for wrong, said in (
        ({"version": "1"}, "there is no option 'version'; did you mean versionAsOf"),
        ({"timestamp_as_of": "soon"}, "timestampAsOf 'soon' is no time"),
        ({"version_as_of": 1, "timestamp_as_of": "1h"}, "contradict each other: give one of them"),
        ({"version_as_of": "new"}, "versionAsOf: 'new' is wrong; expected: number"),
        ({"read_change_feed": "yes"}, "readChangeFeed: 'yes' is wrong; expected: true or false"),
        ({"read_change_feed": True}, "readChangeFeed: give startingVersion"),
    ):
        with pytest.raises(PySparkException, match=said):
            read_table(spark, table, **cast("TableOptions", wrong))
    with pytest.raises(PySparkException, match="takes one path"):
        spark.read.format("upriver-table").load([str(table), str(table)])
    with pytest.raises(PySparkException, match="there is no Delta table"):
        read_table(spark, tmp_path / "none")


def test_spark_reads_the_rows_that_other_readers_read(
    spark: SparkSession, bucket: ModelledBucket, tmp_path: Path
) -> None:
    """All columns, after updates, deletions and a failover, with vectors and without."""
    for merge_on_read in ("true", "false"):
        table = tmp_path / merge_on_read
        caught_up(spark, bucket.producer, table, merge_on_read=merge_on_read)
        high = bucket.high(0)
        bucket.write(0, b"k0", b"lost")
        bucket.write(2, b"k2", b"new")
        bucket.delete(1, b"k1") if bucket.has(1, b"k1") else bucket.write(1, b"k1", b"again")
        caught_up(spark, bucket.producer, table, merge_on_read=merge_on_read)
        bucket.fail_over(0, high)
        caught_up(spark, bucket.producer, table, merge_on_read=merge_on_read)
        wanted = sorted(rows_of(table), key=lambda row: row["key"])
        frame = read_table(spark, table)
        assert frame.columns == list(wanted[0])
        found = sorted(frame.toArrow().to_pylist(), key=lambda row: row["key"])
        assert found == wanted
        polars_rows = polars.read_delta(str(table)).to_arrow().to_pylist()
        assert sorted(polars_rows, key=lambda row: row["key"]) == wanted
        assert {row["key"]: row["value"] for row in wanted} == bucket.documents()


def test_a_change_feed_tells_what_is_different(
    spark: SparkSession, bucket: ModelledBucket, tmp_path: Path
) -> None:
    table = tmp_path / "documents"
    caught_up(spark, bucket.producer, table)
    bucket.write(0, b"k0", b"once")
    caught_up(spark, bucket.producer, table)
    bucket.write(0, b"k0", b"twice")
    bucket.delete(1, b"k1")
    bucket.write(2, b"new", b"!")
    bucket.write(3, b"comes", b"1")
    bucket.delete(3, b"comes")
    caught_up(spark, bucket.producer, table)
    compact(TablePlace.parse(table), seconds=86_400)  # rows move, and that is no change

    def feed(**options: Any) -> list[tuple[str, bytes, bytes]]:
        changes = read_table(spark, table, read_change_feed=True, **options)
        return sorted(
            (row["_change_type"], bytes(row.key), bytes(row.value)) for row in changes.collect()
        )

    assert feed(starting_version=1) == [
        ("delete", b"k1", b"1"),
        ("insert", b"new", b"!"),
        ("update_postimage", b"k0", b"twice"),
        ("update_preimage", b"k0", b"0"),
    ]
    assert feed(starting_version=1, ending_version=2) == [
        ("update_postimage", b"k0", b"once"),
        ("update_preimage", b"k0", b"0"),
    ]
    assert feed(starting_version=3) == []
    assert len(feed(starting_version=0, ending_version=1)) == 20


def open_line(path: Path) -> str:
    return path.read_text().splitlines()[0]


def test_a_change_feed_has_the_schema_of_the_version_that_it_ends_at(
    spark: SparkSession, bucket: ModelledBucket, tmp_path: Path
) -> None:
    """Also in types that earlier values cannot have; what was only read again is not in it."""
    table = tmp_path / "typed"
    producer = bucket.producer

    def mirrored(schema: str, **documents: str) -> int:
        for key, value in documents.items():
            producer.write(key.encode(), value.encode(), 3)
        caught_up(spark, producer, table, value_schema=schema, allow_change=True)
        return DeltaTable(table).version()

    def feed(start: int, end: int | None = None) -> list[tuple[Any, ...]]:
        changes = read_table(
            spark, table, read_change_feed=True, starting_version=start, ending_version=end
        )
        rows = changes.where("key like 'd%'").drop("cas", "event_time").toArrow().to_pylist()
        names = ["_change_type", "key", "n", *({"in", "more"} & set(changes.columns))]
        return sorted((tuple(one[name] for name in names) for one in rows), key=itemgetter(0, 1))

    documents = {"d1": '{"n": "1", "in": {"a": 1}}', "d2": '{"n": "x"}'}
    first = mirrored("n string, in struct<a: int>", **documents)
    wider = mirrored("n string, in struct<a: int, b: string>")
    other = mirrored("n int, more int", d2='{"n": 2, "more": 3}')
    assert feed(first, first) == feed(wider, wider) == []
    assert feed(first, wider) == []
    assert feed(wider, other) == [
        ("update_postimage", b"d1", None, None),  # a text is no int
        ("update_postimage", b"d2", 2, 3),
        ("update_preimage", b"d1", 1, None),
        ("update_preimage", b"d2", None, None),  # x is no number
    ]
    assert feed(first - 1, first) == [
        ("insert", b"d1", "1", {"a": 1}),
        ("insert", b"d2", "x", None),
    ]
