"""What `verify` finds out, and what it does not judge."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tablekit import ModelledBucket, caught_up

from upriver.errors import ConfigError
from upriver.model import VBucketState
from upriver.spark.tables.verify import verify
from upriver.testing import TemporaryProducer

VBUCKETS = 4


def test_differences_are_found_and_later_changes_are_not_judged(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = tmp_path / "documents"
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        bucket = ModelledBucket(producer)
        for number in range(20):
            bucket.write(number % VBUCKETS, b"k%d" % number, b"%d" % number)
        bucket.delete(0, b"k16")
        caught_up(spark, producer, table)
        with pytest.raises(ConfigError, match="its selection is"):
            verify(spark, source=producer.source, table=str(table), scope="_default")
        found = verify(spark, source=producer.source, table=str(table))
        assert (found.equal, found.differing, found.changed_later) == (19, 0, 0)
        # later on the producer: a change, a deletion, a new document, and a failover
        bucket.write(1, b"k1", b"later")
        bucket.delete(1, b"k5")
        bucket.write(1, b"new", b"later")
        bucket.fail_over(3, bucket.high(3) - 1)
        # and somebody has a hand in the table
        held = DeltaTable(table)
        held.delete("key = decode('6b30', 'hex')")  # k0
        held.update(
            updates={"value": "decode('ff', 'hex')"}, predicate="key = decode('6b34', 'hex')"
        )
        held.update(updates={"key": "decode('77', 'hex')"}, predicate="key = decode('6b32', 'hex')")
        found = verify(spark, source=producer.source, table=str(table))
        assert found.incomparable == (3,)
        assert found.changed_later == 3
        assert [(one.kind, one.key) for one in found.differences] == [
            ("missing", b"k0"),
            ("different", b"k4"),
            ("missing", b"k2"),
            ("extra", b"w"),
        ]
        assert (found.missing, found.extra, found.different) == (2, 1, 1)
        assert found.equal == 19 - 5 - 2 - 2 - 1


def test_a_failover_that_lost_nothing_is_followed_without_a_change(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = tmp_path / "documents"
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        bucket = ModelledBucket(producer)
        for number in range(20):
            bucket.write(number % VBUCKETS, b"k%d" % number, b"%d" % number)
        caught_up(spark, producer, table)
        producer.set_state(1, VBucketState.REPLICA)
        producer.set_state(1, VBucketState.ACTIVE)
        assert verify(spark, source=producer.source, table=str(table)).incomparable == (1,)
        caught_up(spark, producer, table)
        found = verify(spark, source=producer.source, table=str(table))
        assert (found.equal, found.differing, found.incomparable) == (20, 0, ())


def test_what_is_no_mirror_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with (
        TemporaryProducer(vbuckets=VBUCKETS) as producer,
        pytest.raises(ConfigError, match="is no mirror"),
    ):
        verify(spark, source=producer.source, table=str(tmp_path / "nothing"))
