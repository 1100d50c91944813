"""Crashes in every gap, replays, and random schedules: nothing twice, nothing lost."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tablekit import (
    ModelledBucket,
    becomes_equal,
    caught_up,
    crashed,
    documents_of,
    history_of,
    rows_of,
    running_mirror,
)

from upriver.errors import ConfigError
from upriver.spark.tables.verify import verify
from upriver.testing import TemporaryProducer

VBUCKETS = 4
#: How many random schedules, and the seed of the first: more when somebody has the time.
SCHEDULES = int(os.environ.get("UPRIVER_SCHEDULES", "2"))
SEED = int(os.environ.get("UPRIVER_CHAOS_SEED", "1"))


@pytest.fixture
def bucket() -> Iterator[ModelledBucket]:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        yield ModelledBucket(producer)


def newest(directory: Path) -> Path:
    return max(
        (path for path in directory.iterdir() if path.name.isdecimal()),
        key=lambda path: int(path.name),
    )


def test_a_crash_after_any_step_and_a_replay_lose_and_double_nothing(
    spark: SparkSession, bucket: ModelledBucket, tmp_path: Path
) -> None:
    table = tmp_path / "documents"
    schema = "n int"
    options = {"value_schema": schema}
    for number, step in enumerate(("log", "dead letters", "table", "mirror")):
        for key in range(6):
            bucket.write(key % VBUCKETS, b"k%d" % key, b'{"n":%d}' % number)
        bucket.write(0, b"bad%d" % number, b"no JSON")
        assert f"died after {step}" in crashed(spark, bucket.producer, table, step, **options)
    # the last batch is done, and Spark does not know it
    caught_up(spark, bucket.producer, table, **options)
    newest(table / "_upriver" / "checkpoint" / "commits").unlink()
    bucket.delete(1, b"k1")
    caught_up(spark, bucket.producer, table, **options)
    history = history_of(table)
    assert set(history.values()) == {1}
    assert ("deletion", 1, 0, bucket.high(1), b"k1") in history
    assert {row["key"]: row["n"] for row in rows_of(table)} == {
        key: None if key.startswith(b"bad") else 3 for key in bucket.documents()
    }
    letters = rows_of(table / "_upriver" / "dead_letters")
    assert sorted(one["key"] for one in letters) == [b"bad%d" % n for n in range(4)]


def test_a_checkpoint_that_plans_a_known_batch_anew_is_refused(
    spark: SparkSession, bucket: ModelledBucket, tmp_path: Path
) -> None:
    table = tmp_path / "documents"
    bucket.write(0, b"a", b"1")
    caught_up(spark, bucket.producer, table)
    checkpoint = table / "_upriver" / "checkpoint"
    newest(checkpoint / "commits").unlink()
    newest(checkpoint / "offsets").unlink()
    bucket.write(0, b"b", b"2")
    with pytest.raises(ConfigError, match="the checkpoint was restored or changed"):
        caught_up(spark, bucket.producer, table)


@pytest.mark.parametrize("seed", range(SEED, SEED + SCHEDULES))
def test_random_schedules_end_equal(
    spark: SparkSession, bucket: ModelledBucket, tmp_path: Path, seed: int
) -> None:
    """Writes, deletions and failovers at any moment, with batches that cut them anywhere."""
    table = tmp_path / "documents"
    dice = random.Random(seed)
    written = 0
    limit = dice.choice([3, 7, 1000])
    options = {
        "max_offsets_per_trigger": limit,
        "compact_every": 5,
        # a branch that two failovers have taken away does not come back
        "retry_timeout": "1s",
    }
    with running_mirror(spark, bucket.producer, table, **options) as pipeline:
        for _ in range(5):
            for _ in range(dice.randrange(1, 25)):
                vbucket = dice.randrange(VBUCKETS)
                key = b"%d-%d" % (vbucket, dice.randrange(6))
                chance = dice.random()
                if chance < 0.12:
                    lost = dice.randrange(1, 8)
                    bucket.fail_over(vbucket, max(0, bucket.high(vbucket) - lost))
                elif chance < 0.3 and bucket.has(vbucket, key):
                    bucket.delete(vbucket, key)
                else:
                    written += 1
                    bucket.write(vbucket, key, b"%d" % written)
                pipeline.wait(dice.choice([0, 0, 0.02]))
            if dice.random() < 0.7:
                becomes_equal(pipeline, bucket, table)
        becomes_equal(pipeline, bucket, table)
    assert set(history_of(table).values()) <= {1}
    found = verify(spark, source=bucket.producer.source, table=str(table))
    assert (found.equal, found.differing) == (len(bucket.documents()), 0)
    assert documents_of(table) == bucket.documents()
