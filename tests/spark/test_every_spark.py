"""What every supported version of Spark must do: `make matrix` runs this file with each of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession
from sparkkit import Reading, documents, documents_of, fill, folded, name_of, row_of, stored, update

from upriver.errors import ConfigError
from upriver.spark import mirror, read_table, verify
from upriver.spark.functions.fold import fold
from upriver.spark.runtime.spark_versions import has_admission_control
from upriver.testing import TemporaryProducer

pytestmark = pytest.mark.story

VBUCKETS = 8


def drained(reading: Reading) -> list[Row]:
    """All rows, after a run of the query that read what there was."""
    with reading.running() as query:
        query.processAllAvailable()
    return reading.rows


def names_in(producer: TemporaryProducer) -> Counter[tuple[str, int, int, int]]:
    changes = stored(producer.bucket)
    return Counter((one.op.value, one.vbucket, 0, one.seqno) for one in changes)


def test_a_batch_has_every_row_and_a_frame_may_be_used_twice(spark: SparkSession) -> None:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        fill(producer, range(100))
        producer.delete(b"key-9", vbucket=1)
        frame = spark.read.format("dcp").load(producer.source)
        rows = {(row.vbucket, row.seqno): row.asDict() for row in frame.collect()}
        expected = [row_of(producer.bucket, change) for change in stored(producer.bucket)]
        assert rows == {(row["vbucket"], row["seqno"]): row for row in expected}
        assert frame.where("vbucket = 1").count() == sum(row["vbucket"] == 1 for row in expected)
        assert frame.where("vbucket = 2").union(frame).count() > len(expected)
        assert frame.count() == len(expected)
        assert documents_of(fold(frame)) == documents(producer.bucket)


def test_a_stream_with_a_limit_goes_on_after_restarts_and_replays(
    spark: SparkSession, tmp_path: Path
) -> None:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        fill(producer, range(200))
        reading = Reading(spark, producer.source, tmp_path, maxOffsetsPerTrigger=80)
        assert Counter(map(name_of, drained(reading))) == names_in(producer)
        assert len(reading.batches) == 3
        assert max(map(len, reading.batches.values())) <= 80
        number = reading.forget_commit()  # as if Spark had been killed in this batch
        lost = reading.batches.pop(number)
        fill(producer, range(200, 250))
        drained(reading)
        assert sorted(map(name_of, reading[number])) == sorted(map(name_of, lost))
        assert Counter(map(name_of, reading.rows)) == names_in(producer)
        assert folded(spark, reading.rows) == documents(producer.bucket)


def test_a_stream_from_latest_replays_its_first_batch(spark: SparkSession, tmp_path: Path) -> None:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        fill(producer, range(50))
        reading = Reading(spark, producer.source, tmp_path, startingOffsets="latest")
        assert drained(reading) == []
        reading.forget_commit()
        fill(producer, range(50, 80))
        new = Counter(row.vbucket for row in drained(reading))
        assert new == Counter(key % VBUCKETS for key in range(50, 80))


def test_available_now_reads_all_or_one_batch_of_an_old_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        reading = Reading(spark, producer.source, tmp_path / "whole")
        for count in (100, 150):
            fill(producer, range(count))
            reading.read()
            assert folded(spark, reading.rows) == documents(producer.bucket)
        limited = Reading(spark, producer.source, tmp_path / "some", maxOffsetsPerTrigger=80)
        for _ in range(1 if has_admission_control() else 4):  # 250 seqnos, of which 150 have rows
            limited.read()
        assert Counter(map(name_of, limited.rows)) == names_in(producer)


def test_a_failover_rolls_a_stream_back(spark: SparkSession, tmp_path: Path) -> None:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        fill(producer, range(160))
        reading = Reading(spark, producer.source, tmp_path)
        drained(reading)
        producer.fail_over(3, 12)
        update(producer, 3, 4)
        drained(reading)
        rollbacks = [(row.vbucket, row.seqno) for row in reading.rows if row.op == "rollback"]
        assert [vbucket for vbucket, _ in rollbacks] == [3]
        assert folded(spark, reading.rows) == documents(producer.bucket)


def test_the_sink_writes_batches_and_streams(spark: SparkSession, tmp_path: Path) -> None:
    with (
        TemporaryProducer(vbuckets=VBUCKETS) as producer,
        TemporaryProducer(vbuckets=VBUCKETS) as copy,
    ):
        fill(producer, range(100))
        wanted = ("op", "key", "value", "flags", "expiry")
        frame = spark.read.format("dcp").load(producer.source).select(*wanted)
        frame.write.format("dcp").mode("append").save(copy.source)
        stream = spark.readStream.format("dcp").load(producer.source).select(*wanted)
        sink = stream.writeStream.format("dcp").option("checkpointLocation", str(tmp_path))
        query = sink.option("connectionString", copy.source).start()
        try:
            query.processAllAvailable()
            producer.delete(b"key-9", vbucket=1)
            fill(producer, range(100, 130))
            query.processAllAvailable()
        finally:
            query.stop()
        held = {key: value for (_, _, _, key), value in documents(producer.bucket).items()}
        copied = {key: value for (_, _, _, key), value in documents(copy.bucket).items()}
        assert {key: copied[key] for key in held} == held
        fences = list(copied.keys() - held.keys())
        assert [key.startswith(b"_upriver:sink:") for key in fences] == [True]


def test_a_mirror_equals_its_bucket_after_a_failover(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "documents"
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        fill(producer, range(200))
        mirror(spark, source=producer.source, table=table, once=True).wait()
        producer.fail_over(2, 20)
        fill(producer, range(150, 260))
        mirror(spark, source=producer.source, table=table, once=True).wait()
        found = verify(spark, source=producer.source, table=str(table))
        assert found.verdict == "equal"
        assert found.equal == len(documents(producer.bucket))


def test_values_of_a_table_are_read_as_variants(spark: SparkSession, tmp_path: Path) -> None:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        producer.write(b"ann", b'{"name": "Ann", "tags": ["a", "b"]}', vbucket=0)
        producer.write(b"bob", b'{"name": 7}', vbucket=1)
        producer.write(b"bad", b"no JSON", vbucket=2)
        plain, columns = tmp_path / "plain", tmp_path / "columns"
        for table, schema in ((plain, None), (columns, "name string")):
            mirror(
                spark, source=producer.source, table=table, once=True, value_schema=schema
            ).wait()
    read = read_table(spark, plain, variant=True)
    assert read.schema["value"].dataType.typeName() == "variant"
    rows = read.selectExpr(
        "string(key) AS key",
        "try_variant_get(value, '$.name', 'string') AS name",
        "try_variant_get(value, '$.tags[1]', 'string') AS tag",
        "_corrupt_record AS bad",
    ).collect()
    assert {row.key: (row.name, row.tag, row.bad) for row in rows} == {
        "ann": ("Ann", "b", None),
        "bob": ("7", None, None),
        "bad": (None, None, b"no JSON"),
    }
    with pytest.raises(ConfigError, match="has no column value"):
        read_table(spark, columns, variant=True)
