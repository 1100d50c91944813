"""Histories in Spark: a failover with lost writes, killed drivers, and what `verify` finds."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tablekit import PATIENCE, ModelledBucket, require_history
from test_killed_drivers import kill_a_driver

from upriver.errors import ConfigError
from upriver.spark.pipelines import history
from upriver.spark.repair_table import repair
from upriver.spark.table_reader import read_table
from upriver.spark.verify_table import verify
from upriver.tables.pipeline_settings import PipelineSettings
from upriver.testing import TemporaryProducer

VBUCKETS = 4


def caught_up(spark: SparkSession, bucket: ModelledBucket, table: Path, **more: Any) -> None:
    pipeline = history(spark, source=bucket.producer.source, table=table, once=True, **more)
    assert pipeline.wait(PATIENCE)


def test_a_history_survives_lost_writes_and_killed_drivers(
    spark: SparkSession, tmp_path: Path
) -> None:
    table, dice = tmp_path / "versions", random.Random(1)
    options = {"kind": "history", "compact_every": 2}
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        bucket = ModelledBucket(producer)

        def write(value: bytes) -> None:
            for number in range(20):
                bucket.write(number % VBUCKETS, b"k%d" % number, value)

        for value in (b"first", b"second", b"third"):
            write(value)
            caught_up(spark, bucket, table, compact_every=2)
        require_history(table, bucket, complete=True)
        point = bucket.high(0)
        write(b"lost")
        bucket.delete(0, b"k16")
        caught_up(spark, bucket, table, compact_every=2)
        require_history(table, bucket)
        bucket.fail_over(0, point)
        # the batch that undoes it is killed before its commit, and another one after it
        for step, more in (("files", ["spark"]), ("commit", [])):
            bucket.write(0, b"k0", step.encode())
            kill_a_driver(producer, str(table), options, step, dice, *more)
        write(b"last")
        caught_up(spark, bucket, table, compact_every=2)
        rows = require_history(table, bucket)
        assert not [row for row in rows if row["vbucket"] == 0 and row["value"] == b"lost"]
        found = verify(spark, source=producer.source, table=str(table))
        assert (found.verdict, found.equal, found.changed_later) == ("equal", 20, 0)
        then = read_table(spark, table).where(
            "vbucket = 0 AND _valid_from_seqno <= 5 AND coalesce(_valid_to_seqno > 5, true)"
        )
        assert [bytes(row["value"]) for row in then.collect()] == [b"first"] * 5


def test_versions_that_do_not_fit_are_found_and_cannot_be_repaired(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = tmp_path / "versions"
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        bucket = ModelledBucket(producer)
        for turn in range(3):
            for number in range(6):
                bucket.write(0, b"k%d" % number, b"%d" % turn)
            caught_up(spark, bucket, table, compact_every=0)
        bucket.delete(0, b"k5")
        caught_up(spark, bucket, table, compact_every=0)
        require_history(table, bucket, complete=True)
        assert verify(spark, source=producer.source, table=str(table)).verdict == "equal"

        def of(number: int, turn: int) -> str:
            return f"key = decode('6b3{number}', 'hex') AND value = decode('3{turn}', 'hex')"

        held = DeltaTable(table)
        held.delete(of(0, 1))
        held.update(updates={"_valid_to_seqno": "_valid_to_seqno + 1"}, predicate=of(1, 0))
        held.update(updates={"_valid_to": "_valid_from"}, predicate=of(2, 0))
        held.update(updates={"_valid_to_seqno": "NULL"}, predicate=of(3, 1))
        held.update(updates={"value": "decode('ff', 'hex')"}, predicate=of(4, 2))
        held.update(updates={"_ended_by": "'mutation'"}, predicate=of(5, 2))
        found = verify(spark, source=producer.source, table=str(table))
        assert [(one.kind, one.key) for one in found.differences] == [
            *(("broken", b"k0"), ("broken", b"k1"), ("broken", b"k2")),
            *(("doubled", b"k3"), ("different", b"k4"), ("broken", b"k5")),
        ]
        assert (found.equal, found.broken) == (0, 4)
        with pytest.raises(ConfigError, match="is a history, and the bucket does not have older"):
            repair(spark, source=producer.source, table=str(table))
        with pytest.raises(Exception, match="a history has a row for each change"):
            read_table(spark, table, read_change_feed=True, starting_version=1).count()
        with pytest.raises(ConfigError, match="keepDeleted"):
            PipelineSettings.parse("history", producer.source, {"keep_deleted": True})
