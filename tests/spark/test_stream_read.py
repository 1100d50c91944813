"""Streaming a bucket into Spark: exactly the changes, batch by batch, whatever the query's life."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from sparkkit import Reading, documents, ended, fill, folded, name_of, row_of, stored, update
from waiting import until

from upriver.consumer import Consumer
from upriver.testing import TemporaryProducer

VBUCKETS = 8


def names_in(producer: TemporaryProducer) -> set[tuple[str, int, int, int]]:
    return {
        (change.op.value, change.vbucket, 0, change.seqno) for change in stored(producer.bucket)
    }


def names_of(reading: Reading) -> list[tuple[str, int, int, int]]:
    return [name_of(row) for row in reading.rows]


# ---- exactly the rows --------------------------------------------------------------------


def test_limited_batches_add_up_to_every_row_once(spark: SparkSession, tmp_path: Path) -> None:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        fill(producer, range(400))
        producer.delete(b"key-9", vbucket=1)
        reading = Reading(spark, producer.source, tmp_path, maxOffsetsPerTrigger=150)
        rows = {(row.vbucket, row.seqno): row.asDict() for row in reading.read()}
        expected = [row_of(producer.bucket, change) for change in stored(producer.bucket)]
        assert len(reading.rows) == len(expected)
        assert rows == {(r["vbucket"], r["seqno"]): r for r in expected}
        sizes = [len(batch) for batch in reading.batches.values()]
        assert len(sizes) == 3
        assert max(sizes) <= 150
        assert folded(spark, reading.rows) == documents(producer.bucket)

        assert reading.read() == []
        update(producer, 3, 20)
        again = reading.read()
        assert [(row.vbucket, row.op, row.branch) for row in again] == [(3, "mutation", 0)] * 20


def test_a_limit_of_bytes_is_about_kept(spark: SparkSession, tmp_path: Path) -> None:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        fill(producer, range(800), b"x" * 4000)
        reading = Reading(spark, producer.source, tmp_path, maxBytesPerTrigger="1m")
        reading.read()
        assert Counter(names_of(reading)) == Counter(names_in(producer))
        sizes = [sum(len(row.value) for row in batch) for batch in reading.batches.values()]
        assert len(sizes) >= 3
        assert max(sizes) < 2 * 2**20


def test_live_writes_arrive_while_the_query_runs(spark: SparkSession, tmp_path: Path) -> None:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        reading = Reading(spark, producer.source, tmp_path)
        with reading.running(processingTime="100 milliseconds") as query:
            for start in range(0, 300, 100):
                fill(producer, range(start, start + 100))
                until(lambda: len(reading.rows) >= start + 100, unless=ended(query))  # noqa: B023
        assert Counter(names_of(reading)) == Counter(names_in(producer))
        assert len(reading.batches) >= 3


# ---- where it starts ---------------------------------------------------------------------


def test_latest_reads_nothing_old_and_everything_new(spark: SparkSession, tmp_path: Path) -> None:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        fill(producer, range(0, 400, VBUCKETS))  # all in vbucket 0; the others are empty
        old = names_in(producer)
        reading = Reading(spark, producer.source, tmp_path, startingOffsets="latest")
        assert reading.read() == []
        # the query has ended before the first change, and what comes now is new
        fill(producer, range(100))
        reading.read()
        assert Counter(names_of(reading)) == Counter(names_in(producer) - old)
        fill(producer, range(1000, 1100))
        reading.read()
        assert Counter(names_of(reading)) == Counter(names_in(producer) - old)


def test_latest_of_an_empty_bucket_reads_all_that_comes(
    spark: SparkSession, tmp_path: Path
) -> None:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        reading = Reading(
            spark, producer.source, tmp_path, startingOffsets="latest", vbuckets="0-3"
        )
        assert reading.read() == []
        fill(producer, range(80))
        reading.read()
        expected = {name for name in names_in(producer) if name[1] < 4}
        assert Counter(names_of(reading)) == Counter(expected)


def test_a_checkpoint_of_a_consumer_is_a_start(spark: SparkSession, tmp_path: Path) -> None:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        fill(producer, range(100))
        with Consumer(producer.source, end="now") as consumer:
            assert len(list(consumer)) == 100
            checkpoint = consumer.position()
        old = names_in(producer)
        fill(producer, range(100, 150))
        options = {"startingOffsets": checkpoint.to_json()}
        reading = Reading(spark, producer.source, tmp_path, **options)
        reading.read()
        assert Counter(names_of(reading)) == Counter(names_in(producer) - old)


# ---- restarts ----------------------------------------------------------------------------


def test_a_restart_may_have_another_number_of_tasks(spark: SparkSession, tmp_path: Path) -> None:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        reading = Reading(spark, producer.source, tmp_path)
        for tasks in (1, 5):
            fill(producer, range(6000 * tasks, 6000 * tasks + 6000))
            reading.options["numPartitions"] = tasks
            reading.read()
        assert Counter(names_of(reading)) == Counter(names_in(producer))


def test_a_batch_that_was_not_finished_is_the_same_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        fill(producer, range(200))
        reading = Reading(spark, producer.source, tmp_path, maxOffsetsPerTrigger=100)
        reading.read()
        before = sorted(map(name_of, reading.rows))
        number = reading.forget_commit()
        lost = reading.batches.pop(number)
        fill(producer, range(200, 300))
        reading.read()
        assert sorted(map(name_of, reading[number])) == sorted(map(name_of, lost))
        new = {name for name in names_in(producer) if name not in before}
        assert Counter(names_of(reading)) == Counter(before) + Counter(new)


def test_offsets_of_a_thousand_vbuckets_are_small(spark: SparkSession, tmp_path: Path) -> None:
    with TemporaryProducer(vbuckets=1024) as producer:
        reading = Reading(spark, producer.source, tmp_path)
        with reading.running() as query:
            for count in range(1024, 7 * 1024, 1024):  # each batch is a place to go back to
                fill(producer, range(count - 1024, count))
                until(lambda: len(reading.rows) == count, unless=ended(query))  # noqa: B023
        assert reading.offset_file().stat().st_size < 100 * 1024
        gone_back = range(0, 1024, 8)
        for vbucket in gone_back:
            producer.fail_over(vbucket, 5)
        reading.read()
        assert reading.offset_file().stat().st_size < 100 * 1024
        rolled_back = [row.vbucket for row in reading.rows if row.op == "rollback"]
        assert sorted(rolled_back) == list(gone_back)
        assert folded(spark, reading.rows) == documents(producer.bucket)


# ---- what is refused ---------------------------------------------------------------------


def failure(reading: Reading) -> str:
    with pytest.raises(StreamingQueryException) as caught:
        reading.read()
    return str(caught.value)


def test_offsets_of_another_bucket_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    with TemporaryProducer(vbuckets=2) as producer:
        fill(producer, range(10))
        reading = Reading(spark, producer.source, tmp_path)
        assert len(reading.read()) == 10
        with TemporaryProducer(vbuckets=2, bucket="elsewhere") as elsewhere:
            reading.source = elsewhere.source
            told = failure(reading)
        assert "belongs to another source: its bucket is 'default'" in told
        assert "new checkpoint location" in told

        reading.source = producer.source
        file = reading.offset_file()
        head, stored_offset = file.read_text().rsplit("\n", 1)
        (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
        for member, strange in (("bucket_uuid", "another"), ("vbuckets", 4)):
            offset = json.loads(stored_offset) | {member: strange}
            file.write_text(f"{head}\n{json.dumps(offset)}")
            assert f"its {member} is {strange!r} and here it is" in failure(reading)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endingOffsets": json.dumps({"0": 1})}, "endingOffsets has no meaning for a stream"),
        ({"maxOfsetsPerTrigger": "1"}, "maxOffsetsPerTrigger"),
    ],
)
def test_options_that_no_stream_has_are_refused(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], message: str
) -> None:
    with TemporaryProducer(vbuckets=1) as producer, pytest.raises(Exception, match=message):
        Reading(spark, producer.source, tmp_path, **options).read()
