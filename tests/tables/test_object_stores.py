"""Tables in an object store: everything that works in a directory, without a jar."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from storekit_s3 import BUCKET, SECRET, s3_server
from tablekit import PATIENCE, ModelledBucket, caught_up, crashed, documents_of, rows_of

from upriver.errors import ConfigError
from upriver.files.storage import Storage
from upriver.spark.functions.fold import fold
from upriver.spark.pipelines import changelog, mirror
from upriver.spark.table_reader import read_table
from upriver.spark.verify_table import verify
from upriver.tables import pipeline_tables
from upriver.tables.places import TablePlace
from upriver.tables.progress_log import read_progress
from upriver.tables.upkeep import compaction
from upriver.tables.upkeep.manual_maintenance import compact
from upriver.testing import TemporaryProducer

VBUCKETS = 4


@pytest.fixture(scope="module")
def variables() -> Iterator[dict[str, str]]:
    with s3_server() as variables:
        yield variables


@pytest.fixture
def bucket() -> Iterator[ModelledBucket]:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        bucket = ModelledBucket(producer)
        for number in range(20):
            bucket.write(number % VBUCKETS, b"k%d" % number, b'{"n":%d}' % number)
        yield bucket


def test_a_file_is_created_once(variables: dict[str, str]) -> None:
    storage = Storage.parse(f"s3://{BUCKET}/files", variables, {})
    assert storage.create("a/b", b"1")
    assert not storage.create("a/b", b"2")
    assert storage.read("a/b") == b"1"
    assert [file.path for file in storage.files()] == ["a/b"]
    with pytest.raises(FileNotFoundError):
        storage.read("none")
    storage.delete(["a/b", "none"])
    assert list(storage.files()) == []
    assert SECRET not in repr(storage)


def test_a_store_that_refuses_is_named_and_no_secret_is_told(variables: dict[str, str]) -> None:
    storage = Storage.parse("s3://no-such-bucket/t", variables, {})
    with pytest.raises(Exception, match="s3://no-such-bucket/t") as failure:
        storage.put("a", b"1")
    assert SECRET not in str(failure.value)


@pytest.mark.story
def test_a_mirror_is_kept_verified_compacted_and_reported(
    spark: SparkSession,
    bucket: ModelledBucket,
    variables: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    table = f"s3://{BUCKET}/documents"
    source = bucket.producer.source
    caught_up(spark, bucket.producer, table, max_offsets_per_trigger=11)
    high = bucket.high(0)
    bucket.write(0, b"k0", b"lost")
    bucket.delete(1, b"k1")
    caught_up(spark, bucket.producer, table)
    assert documents_of(table, variables) == bucket.documents()
    bucket.fail_over(0, high)
    bucket.write(0, b"k4", b"after")
    caught_up(spark, bucket.producer, table)
    assert documents_of(table, variables) == bucket.documents()
    found = verify(spark, source=source, table=table)
    assert (found.equal, found.differing) == (len(bucket.documents()), 0)
    (done,) = compact(TablePlace.parse(table), seconds=0)
    assert (done.files_before > 1, done.files_after, done.vacuumed > 0) == (True, 1, True)
    assert documents_of(table, variables) == bucket.documents()
    assert len(read_progress(TablePlace.parse(table).storage)) >= 4
    frame = read_table(spark, table, columns=["key"])
    assert frame.count() == len(bucket.documents())
    frame.explain(True)
    said = capfd.readouterr()
    assert SECRET not in said.out + said.err
    running = mirror(spark, source=source, table=table)
    try:
        with pytest.raises(ConfigError, match="another pipeline is running"):
            mirror(spark, source=source, table=table)
    finally:
        running.stop()
    log = Storage.parse(table).under("_delta_log")
    assert all(SECRET.encode() not in log.read(file.path) for file in log.files())


STEPS = ("read", "files", "commit", "table", "compaction files", "compaction commit", "checkpoint")


def test_a_crash_after_any_step_loses_and_doubles_nothing(
    spark: SparkSession,
    bucket: ModelledBucket,
    variables: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pipeline_tables, "CHECKPOINT_EVERY", 3)
    monkeypatch.setattr(compaction, "_MOST_ALIKE", 2)
    table = f"s3://{BUCKET}/crashes"
    options = {"value_schema": "n int", "compact_every": 1, "storage_options": variables}
    for number, step in enumerate(STEPS):
        for key in range(6):
            bucket.write(key % VBUCKETS, b"k%d" % key, b'{"n":%d}' % (100 + number))
        bucket.write(0, b"bad%d" % number, b"no JSON")
        assert f"died after {step}" in crashed(spark, bucket.producer, table, step, **options)
    caught_up(spark, bucket.producer, table, **options)
    rows = rows_of(table, variables)
    assert sorted(row["key"] for row in rows) == sorted(bucket.documents())
    letters = rows_of(f"{table}/_upriver/dead_letters", variables)
    assert sorted(one["key"] for one in letters) == [b"bad%d" % n for n in range(len(STEPS))]
    found = verify(spark, source=bucket.producer.source, table=table, storage_options=variables)
    assert (found.equal, found.differing) == (len(bucket.documents()), 0)


def test_a_change_log_has_every_change_once(
    spark: SparkSession, bucket: ModelledBucket, variables: dict[str, str]
) -> None:
    table = f"s3://{BUCKET}/changes"
    for number in range(2):
        bucket.write(0, b"again", b"%d" % number)
        pipeline = changelog(
            spark,
            source=bucket.producer.source,
            table=table,
            once=True,
            storage_options=variables,
        )
        assert pipeline.wait(PATIENCE)
    changes = read_table(spark, table, storage_options=variables)
    rows = [(row.vbucket, row.branch, row.seqno, row.op) for row in changes.collect()]
    assert len(set(rows)) == len(rows) == 22
    found = {bytes(row.key): bytes(row.value) for row in fold(changes).collect()}
    assert found == bucket.documents()
