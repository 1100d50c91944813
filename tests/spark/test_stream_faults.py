"""A streaming query whose bucket fails over, is purged or goes away: nothing lost or repeated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from sparkkit import (
    Reading,
    behind_a_proxy,
    documents,
    ended,
    fill,
    folded,
    name_of,
    stored,
    update,
)
from waiting import until

from upriver.model import VBucketState
from upriver.spark.runtime.spark_versions import has_admission_control
from upriver.testing import ChaosProxy, Faults, TemporaryProducer

VBUCKETS = 4


def rollbacks(rows: list[Row]) -> list[tuple[int, int, int]]:
    return [(row.vbucket, row.branch, row.seqno) for row in rows if row.op == "rollback"]


def high(producer: TemporaryProducer, vbucket: int) -> int:
    return producer.bucket.vbucket_stats(vbucket).high_seqno


def failure(reading: Reading) -> str:
    with pytest.raises(StreamingQueryException) as caught:
        reading.read()
    return str(caught.value)


@pytest.fixture
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        yield producer


# ---- failovers ---------------------------------------------------------------------------


@pytest.mark.story
def test_failovers_between_batches_are_rows_and_the_fold_is_right(
    spark: SparkSession, tmp_path: Path, producer: TemporaryProducer
) -> None:
    reading = Reading(spark, producer.source, tmp_path, maxOffsetsPerTrigger=60)
    fill(producer, range(160))
    reading.read()
    for turn in range(3):
        producer.fail_over(1, high(producer, 1) - 7)
        producer.fail_over(2, high(producer, 2))  # nothing is lost, and nothing is taken back
        fill(producer, range(1000 + turn * 100, 1050 + turn * 100))
        update(producer, turn, 5)
        rows = reading.read()
        assert [vbucket for vbucket, _, _ in rollbacks(rows)] == [1]
        assert all(row.branch == turn + 1 for row in rows if row.vbucket == 1)
        assert all(row.branch == 0 for row in rows if row.vbucket != 1)
    assert folded(spark, reading.rows) == documents(producer.bucket)


def test_a_failover_that_lost_nothing_has_nothing_read_again(
    spark: SparkSession, tmp_path: Path, producer: TemporaryProducer
) -> None:
    reading = Reading(spark, producer.source, tmp_path)
    fill(producer, range(160))
    reading.read()
    for vbucket in range(VBUCKETS):
        producer.fail_over(vbucket, high(producer, vbucket))
    fill(producer, range(160, 163))
    rows = reading.read()
    if has_admission_control():  # others do not ask for a last batch without rows
        assert [row.op for row in rows] == ["mutation"] * 3
    assert folded(spark, reading.rows) == documents(producer.bucket)


def test_a_batch_is_replayed_after_a_failover(
    spark: SparkSession, tmp_path: Path, producer: TemporaryProducer
) -> None:
    reading = Reading(spark, producer.source, tmp_path)
    fill(producer, range(80))
    reading.read()
    update(producer, 0, 10)
    update(producer, 1, 10)
    reading.read()
    # the last batch was planned on a branch that is gone when it is read again
    reading.batches.pop(reading.forget_commit())
    producer.fail_over(0, high(producer, 0) - 5)
    producer.fail_over(1, 15)
    update(producer, 0, 3)
    reading.read()
    assert folded(spark, reading.rows) == documents(producer.bucket)


def test_a_failover_in_the_middle_of_a_batch_is_made_up_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    with stopped_in_the_middle(spark, tmp_path) as (producer, proxy, reading, query):
        for vbucket in range(VBUCKETS):
            producer.fail_over(vbucket, high(producer, vbucket) - 10 * vbucket)
        fill(producer, range(100))
        proxy.resume()
        until(lambda: bool(reading.batches), unless=ended(query))
        query.stop()
        reading.read()
        assert {row.vbucket for row in reading.rows if row.branch} >= {1, 2, 3}
        assert folded(spark, reading.rows) == documents(producer.bucket)


@pytest.mark.parametrize("option", ["onRollback", "failOnDataLoss"])
def test_who_wants_no_rollback_is_told_instead(
    spark: SparkSession, tmp_path: Path, producer: TemporaryProducer, option: str
) -> None:
    wish = {"onRollback": "fail"} if option == "onRollback" else {"failOnDataLoss": "true"}
    reading = Reading(spark, producer.source, tmp_path, **wish)
    fill(producer, range(40))
    reading.read()
    producer.fail_over(1, 6)
    if option == "onRollback":
        assert "DCP-ROLLBACK vb=1 from=10 to=0" in failure(reading)
        return
    # changes that were never on disk elsewhere are no loss of data: the history is known
    assert rollbacks(reading.read()) == [(1, 1, 0)]
    delete_and_purge(producer)
    fill(producer, range(200, 280))
    assert "DCP-DATA-LOSS vb=0" in failure(reading)


# ---- what the server has forgotten -------------------------------------------------------


def delete_and_purge(producer: TemporaryProducer) -> None:
    """Deletes what was read, and takes the tombstones away before anybody sees them."""
    producer.delete(b"key-0", vbucket=0)
    fill(producer, range(VBUCKETS * 100, VBUCKETS * 101))
    producer.purge()
    assert producer.bucket.vbucket_stats(0).purge_seqno


@pytest.mark.parametrize("batches", [1, 2], ids=["in the task", "in the plan"])
def test_purged_deletions_lead_back_to_the_beginning(
    spark: SparkSession, tmp_path: Path, producer: TemporaryProducer, batches: int
) -> None:
    reading = Reading(spark, producer.source, tmp_path)
    for batch in range(batches):
        fill(producer, range(batch * 40, batch * 40 + 40))
        reading.read()
    delete_and_purge(producer)
    assert rollbacks(reading.read()) == [(0, 1, 0)]
    assert (0, "_default", "_default", b"key-0") not in documents(producer.bucket)
    assert folded(spark, reading.rows) == documents(producer.bucket)


def test_offsets_of_an_earlier_bucket_of_the_same_name_are_refused(
    spark: SparkSession, tmp_path: Path, producer: TemporaryProducer
) -> None:
    reading = Reading(spark, producer.source, tmp_path)
    fill(producer, range(40))
    reading.read()
    with TemporaryProducer(vbuckets=VBUCKETS) as anew:
        reading.source = anew.source
        told = failure(reading)
    assert "the checkpoint belongs to another source: its bucket_uuid" in told


# ---- networks ----------------------------------------------------------------------------


@contextmanager
def stopped_in_the_middle(
    spark: SparkSession, checkpoint: Path
) -> Iterator[tuple[TemporaryProducer, ChaosProxy, Reading, StreamingQuery]]:
    """A query in the middle of a batch, with a network that stands still until it is resumed."""
    with behind_a_proxy(vbuckets=VBUCKETS) as (producer, proxy):
        fill(producer, range(1000), b"x" * 4000)
        # small windows and a slow network, so that there is time to stop it
        proxy.to_client.faults = Faults(delay=0.01)
        reading = Reading(spark, producer.source, checkpoint, flowControlBuffer="16k")
        with reading.running() as query:
            until(lambda: proxy.counts.bytes_to_client > 200_000, unless=ended(query))
            proxy.stall()
            assert not reading.batches
            proxy.to_client.faults = Faults()
            yield producer, proxy, reading, query


def test_a_server_that_restarts_in_the_middle_of_a_batch_is_waited_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    with stopped_in_the_middle(spark, tmp_path) as (producer, proxy, reading, query):
        proxy.target = None
        producer.restart()
        proxy.resume()
        before = proxy.counts.unreachable
        until(lambda: proxy.counts.unreachable > before, unless=ended(query))
        proxy.target = (producer.host, producer.port)
        until(lambda: bool(reading.batches), unless=ended(query))
        query.stop()
        reading.read()
        assert rows_are_those_of(reading, producer)


def test_a_server_that_comes_late_is_waited_for(spark: SparkSession, tmp_path: Path) -> None:
    with behind_a_proxy(vbuckets=VBUCKETS) as (producer, proxy):
        fill(producer, range(100))
        proxy.target = None
        reading = Reading(spark, producer.source, tmp_path)
        with reading.running() as query:
            until(lambda: proxy.counts.unreachable > 1, unless=ended(query))
            proxy.target = (producer.host, producer.port)
            until(lambda: len(reading.rows) == 100, unless=ended(query))
            # and so is one that goes while there is nothing to do
            proxy.target = None
            proxy.cut()
            before = proxy.counts.unreachable
            fill(producer, range(100, 200))
            until(lambda: proxy.counts.unreachable > before, unless=ended(query))
            proxy.target = (producer.host, producer.port)
            until(lambda: len(reading.rows) == 200, unless=ended(query))
        assert rows_are_those_of(reading, producer)


def test_a_server_that_never_comes_ends_the_query(spark: SparkSession, tmp_path: Path) -> None:
    with behind_a_proxy(vbuckets=VBUCKETS) as (producer, proxy):
        proxy.target = None
        told = failure(Reading(spark, producer.source, tmp_path, retryTimeout="1s"))
        assert f"{proxy.host}:{proxy.port}" in told


def test_connections_that_are_cut_all_the_time_lose_and_repeat_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    with behind_a_proxy(vbuckets=VBUCKETS) as (producer, proxy):
        fill(producer, range(1000), b"x" * 2000)
        proxy.to_client.faults = Faults(cut_every=100_000)
        reading = Reading(
            spark, producer.source, tmp_path, maxOffsetsPerTrigger=600, numPartitions=2
        )
        reading.read()
        assert proxy.counts.cuts > 5
        assert rows_are_those_of(reading, producer)


def test_vbuckets_that_nobody_serves_do_not_stop_the_others(
    spark: SparkSession, tmp_path: Path, producer: TemporaryProducer
) -> None:
    reading = Reading(spark, producer.source, tmp_path)
    fill(producer, range(40))
    with reading.running() as query:
        until(lambda: len(reading.rows) == 40, unless=ended(query))
        producer.set_state(3, VBucketState.DEAD)
        update(producer, 1, 10)
        until(lambda: len(reading.rows) == 50, unless=ended(query))
        producer.set_state(3, VBucketState.ACTIVE)
        update(producer, 3, 10)
        until(lambda: len(reading.rows) >= 60, unless=ended(query))
    reading.read()
    assert folded(spark, reading.rows) == documents(producer.bucket)


def rows_are_those_of(reading: Reading, producer: TemporaryProducer) -> bool:
    """Whether every change was read once; only where nothing was changed after it was read."""
    expected = {(c.op.value, c.vbucket, 0, c.seqno) for c in stored(producer.bucket)}
    return Counter(map(name_of, reading.rows)) == Counter(expected)
