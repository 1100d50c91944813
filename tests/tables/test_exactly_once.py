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
    becomes,
    becomes_equal,
    caught_up,
    crashed,
    documents_of,
    rows_of,
    running_changelog,
    running_mirror,
)

from upriver.errors import ConfigError
from upriver.spark.functions.fold import fold
from upriver.spark.table_reader import read_table
from upriver.spark.verify_table import verify
from upriver.tables import pipeline_tables
from upriver.tables.upkeep import compaction
from upriver.testing import TemporaryProducer

VBUCKETS = 4
#: How many random schedules, and the seed of the first: more when somebody has the time.
SCHEDULES = int(os.environ.get("UPRIVER_SCHEDULES", "2"))
SEED = int(os.environ.get("UPRIVER_CHAOS_SEED", "1"))


@pytest.fixture
def bucket() -> Iterator[ModelledBucket]:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        yield ModelledBucket(producer)


STEPS = ("read", "files", "commit", "table", "compaction files", "compaction commit", "checkpoint")


@pytest.mark.story
def test_a_crash_after_any_step_loses_and_doubles_nothing(
    spark: SparkSession, bucket: ModelledBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_tables, "CHECKPOINT_EVERY", 3)
    monkeypatch.setattr(compaction, "_MOST_ALIKE", 2)
    table = tmp_path / "documents"
    options = {"value_schema": "n int", "compact_every": 1}
    for number, step in enumerate(STEPS):
        for key in range(6):
            bucket.write(key % VBUCKETS, b"k%d" % key, b'{"n":%d}' % number)
        bucket.write(0, b"bad%d" % number, b"no JSON")
        assert f"died after {step}" in crashed(spark, bucket.producer, table, step, **options)
    bucket.delete(1, b"k1")
    caught_up(spark, bucket.producer, table, **options)
    rows = rows_of(table)
    assert len(rows) == len(bucket.documents())
    assert {row["key"]: row["n"] for row in rows} == {
        key: None if key.startswith(b"bad") else len(STEPS) - 1 for key in bucket.documents()
    }
    letters = rows_of(table / "_upriver" / "dead_letters")
    assert sorted(one["key"] for one in letters) == [b"bad%d" % n for n in range(len(STEPS))]
    found = verify(spark, source=bucket.producer.source, table=str(table))
    assert (found.equal, found.differing) == (len(bucket.documents()), 0)


def test_a_crash_between_the_tables_of_collections_is_mended(
    spark: SparkSession, bucket: ModelledBucket, tmp_path: Path
) -> None:
    table = tmp_path / "documents"
    other = bucket.producer.bucket.create_collection(0, "other")
    options = {"table_per_collection": True}
    for number, step in enumerate(("commit", "table", "files")):
        bucket.write(0, b"k", b"%d" % number)
        bucket.producer.write(b"k", b"%d" % number, 1, other.id)
        crashed(spark, bucket.producer, table, step, **options)
    # after this crash a commit says what is to do, and no table has it
    crashed(spark, bucket.producer, table, "commit", **options)
    with pytest.raises(ConfigError, match="start the pipeline once more"):
        verify(spark, source=bucket.producer.source, table=str(table))
    caught_up(spark, bucket.producer, table, **options)
    names = ("_default._default", "_default.other")
    assert [[row["value"] for row in rows_of(table / name)] for name in names] == [[b"2"], [b"2"]]
    found = verify(spark, source=bucket.producer.source, table=str(table))
    assert (found.equal, found.differing) == (2, 0)


@pytest.mark.parametrize("seed", range(SEED, SEED + SCHEDULES))
def test_random_schedules_end_equal(
    spark: SparkSession,
    bucket: ModelledBucket,
    tmp_path: Path,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Writes, deletions and failovers at any moment, with batches that cut them anywhere.

    The mirror is what the bucket has, and what a change log of the same history folds to.
    """
    monkeypatch.setattr(pipeline_tables, "CHECKPOINT_EVERY", 4)
    monkeypatch.setattr(compaction, "_MOST_ALIKE", 3)
    table = tmp_path / "documents"
    dice = random.Random(seed)
    written = 0
    options = {
        "max_offsets_per_trigger": dice.choice([3, 7, 1000]),
        "compact_every": 2,
        "merge_on_read": dice.random() < 0.7,
        "keep_versions": dice.choice(["0s", "24h"]),
        # a branch that two failovers have taken away does not come back
        "retry_timeout": "1s",
    }
    changes = tmp_path / "changes"
    with (
        running_mirror(spark, bucket.producer, table, **options) as pipeline,
        running_changelog(spark, bucket.producer, changes, retry_timeout="1s") as logging,
    ):
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
        becomes(logging, lambda: logging.lag() == 0, True)
    folded = fold(read_table(spark, changes)).collect()
    assert {bytes(row.key): bytes(row.value) for row in folded} == documents_of(table)
    found = verify(spark, source=bucket.producer.source, table=str(table))
    assert (found.equal, found.differing) == (len(bucket.documents()), 0)
    assert documents_of(table) == bucket.documents()
