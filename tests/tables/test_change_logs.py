"""Change logs of a real producer, and care for tables that are in use."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tablekit import (
    PATIENCE,
    ModelledBucket,
    becomes_equal,
    documents_of,
    running_mirror,
)

from upriver.errors import ConfigError
from upriver.spark.functions.fold import fold
from upriver.spark.pipelines import changelog, mirror
from upriver.spark.table_reader import read_table
from upriver.spark.verify_table import verify
from upriver.tables.places import TablePlace
from upriver.tables.upkeep import version_retention
from upriver.tables.upkeep.manual_maintenance import compact
from upriver.testing import TemporaryProducer

VBUCKETS = 4


@pytest.fixture
def bucket() -> Iterator[ModelledBucket]:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        for number in range(20):
            key = b"k%d" % number
            producer.write(key, b"%d" % number, number % VBUCKETS)
        modelled = ModelledBucket(producer)
        for vbucket in range(VBUCKETS):
            modelled.write(vbucket, b"m%d" % vbucket, b"1")
        yield modelled


def test_every_change_is_there_once_and_folds_to_the_documents(
    spark: SparkSession, bucket: ModelledBucket, tmp_path: Path
) -> None:
    table = tmp_path / "changes"

    def caught_up() -> None:
        source = bucket.producer.source
        pipeline = changelog(spark, source=source, table=table, once=True)
        assert pipeline.wait(PATIENCE)

    caught_up()
    point = bucket.high(0)
    bucket.write(0, b"lost", b"1")
    bucket.delete(1, b"m1")
    caught_up()
    bucket.fail_over(0, point)
    bucket.write(0, b"m0", b"2")
    caught_up()
    changes = read_table(spark, table)
    rows = [(row.vbucket, row.branch, row.seqno, row.op) for row in changes.collect()]
    assert len(set(rows)) == len(rows)
    assert {op for *_, op in rows} == {"mutation", "deletion", "rollback"}
    found = {bytes(row.key): bytes(row.value) for row in fold(changes).collect()}
    assert len(found) == 20 + len(bucket.documents())
    assert bucket.documents().items() <= found.items()
    with pytest.raises(ConfigError, match="is a change log"):
        verify(spark, source=bucket.producer.source, table=str(table))


def test_tables_are_compacted_under_a_running_pipeline(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "documents"
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        bucket = ModelledBucket(producer)
        with running_mirror(spark, producer, table, compact_every=2) as pipeline:
            for number in range(6):
                bucket.write(number % VBUCKETS, b"k%d" % number, b"%d" % number)
                bucket.write(0, b"hot", b"%d" % number)
                compact(TablePlace.parse(table), seconds=0)
                becomes_equal(pipeline, bucket, table)
        # the pipeline may have compacted all that there is; this is a file that it has not
        bucket.write(0, b"hot", b"last")
        mirror(spark, source=producer.source, table=table, once=True, compact_every=0).wait()
        # what a batch wrote that met a compaction is named by no commit, and goes after a while
        monkeypatch.setattr(version_retention, "_IN_FLIGHT", timedelta(0))
        (done,) = compact(TablePlace.parse(table), seconds=0)
        assert (done.files_before > 1, done.files_after) == (True, 1)
        left = {path.name for path in table.rglob("*.parquet") if "_delta_log" not in path.parts}
        assert len(left) == 1, "what no version needs is still there"
        assert not list((table / "_dv").iterdir())
        assert documents_of(table) == bucket.documents()
        assert DeltaTable(table).version() > 0
        found = verify(spark, source=producer.source, table=str(table))
        assert (found.equal, found.differing) == (7, 0)
