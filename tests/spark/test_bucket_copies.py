"""From bucket to bucket: the target ends equal to the source, through failovers of the source."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from sparkkit import PATIENCE, names, stored

from upriver.errors import ConfigError
from upriver.model import Op
from upriver.spark.copying import copy
from upriver.spark.sink.row_edits import FENCE_PREFIX
from upriver.spark.source.restate import Restated
from upriver.testing import TemporaryProducer

#: A document's place, and all that a copy has of it.
Documents = dict[tuple[str, str, bytes], tuple[bytes, int, int, int, int]]


@pytest.fixture
def source() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=4) as producer:
        yield producer


@pytest.fixture
def target() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=8) as producer:
        yield producer


def documents(producer: TemporaryProducer) -> Documents:
    bucket = producer.bucket
    return {
        (*names(bucket, change.collection), change.key): (
            change.value,
            change.cas,
            change.rev,
            change.flags,
            change.time,
        )
        for change in stored(bucket)
        if change.op is Op.MUTATION and not change.key.startswith(FENCE_PREFIX)
    }


def copy_once(
    spark: SparkSession,
    source: TemporaryProducer,
    target: TemporaryProducer,
    checkpoint: Path,
    **options: str,
) -> None:
    query = copy(
        spark,
        source.source,
        target.source,
        checkpoint=checkpoint,
        once=True,
        source_options=options,
    )
    try:
        assert query.awaitTermination(PATIENCE), "the query goes on and on"
    finally:
        query.stop()


def lose(producer: TemporaryProducer, vbucket: int, changes: int) -> None:
    """A failover to a replica that has not got the last changes of a vbucket."""
    high = producer.bucket.vbucket_stats(vbucket).high_seqno
    producer.fail_over(vbucket, max(0, high - changes))


def test_a_copy_goes_on_where_a_rollback_row_had_stopped_it(
    spark: SparkSession, tmp_path: Path, source: TemporaryProducer, target: TemporaryProducer
) -> None:
    shop = source.bucket.create_scope("shop").id
    orders = source.bucket.create_collection(shop, "orders").id
    keys = [b"k%d" % number for number in range(40)]
    for key in keys:
        source.write(key, b'{"version":1}')
        source.write(key, b'{"order":1}', collection=orders, expiry=86_400)
    before = [source.bucket.vbucket_stats(vbucket).high_seqno for vbucket in range(4)]
    for key in keys[:20]:  # lost updates, deletions and new documents, in both collections
        source.write(key, b'{"version":2}')
        source.write(key, b'{"version":3}')
        source.delete(key, collection=orders)
        source.write(b"lost-" + key, b"{}", collection=orders)
        source.write(b"lost-" + key, b"{}")
        source.write(b"lost-" + key, b'{"again":1}')
    copy_once(spark, source, target, tmp_path, onRollback="emit")
    assert documents(target) == documents(source)
    for vbucket in range(3):
        source.fail_over(vbucket, before[vbucket])
    with pytest.raises(StreamingQueryException, match="set the source's option onRollback to rest"):
        copy_once(spark, source, target, tmp_path, onRollback="emit")
    assert documents(target) != documents(source)
    copy_once(spark, source, target, tmp_path)
    assert documents(target) == documents(source)
    # a document that only the lost branch had comes anew, with a lower revision
    for key in keys[:10]:
        source.write(b"lost-" + key, b'{"new":1}')
    later = source.bucket.create_collection(shop, "later").id  # the next start creates it
    source.write(b"k", b"{}", collection=later)
    copy_once(spark, source, target, tmp_path)
    assert documents(target) == documents(source)
    assert any(change.key.startswith(FENCE_PREFIX) for change in stored(target.bucket))


def test_random_histories_are_copied(
    spark: SparkSession, tmp_path: Path, source: TemporaryProducer, target: TemporaryProducer
) -> None:
    chance = random.Random(17)
    keys = [b"key-%d" % number for number in range(60)]
    for turn in range(2):
        for _ in range(60):
            key = chance.choice(keys)
            if chance.random() < 0.3 and ("_default", "_default", key) in documents(source):
                source.delete(key)
            else:
                source.write(key, b"%d" % chance.randrange(10**6))
        copy_once(spark, source, target, tmp_path, maxOffsetsPerTrigger="50")
        assert documents(target) == documents(source), turn
        for vbucket in range(4):
            if chance.random() < 0.6:
                lose(source, vbucket, chance.choice([0, 3, 10, 1000]))
        source.purge()
    copy_once(spark, source, target, tmp_path)
    assert documents(target) == documents(source)


def test_a_bucket_is_not_copied_into_itself(
    spark: SparkSession, tmp_path: Path, source: TemporaryProducer
) -> None:
    with pytest.raises(ConfigError, match="is the source itself"):
        copy_once(spark, source, source, tmp_path)


def test_a_restated_row_tells_which_documents_are_gone() -> None:
    told = Restated(vbucket=0, vbuckets=1, keys=frozenset({b"b", b"\xff"}), after=b"a", until=None)
    assert Restated.of_json(told.to_json()) == told
    assert [told.excludes(key) for key in (b"a", b"b", b"c", b"\xff")] == [
        False,
        False,
        True,
        False,
    ]
    elsewhere = Restated(vbucket=1, vbuckets=1024, keys=frozenset())
    assert not elsewhere.excludes(b"c")
    for wrong in (None, b"{}", '{"vbucket": 9, "vbuckets": 4, "keys": []}', b"[", b"x" * 2**23):
        with pytest.raises(Exception, match="DCP-BAD-ROW: a row with op restated"):
            Restated.of_json(wrong)
