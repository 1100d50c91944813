"""From bucket to bucket: the target ends equal to the source, through failovers of the source."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from sparkkit import PATIENCE, ended, names, stored
from waiting import until

from upriver.batches.restate import Restated
from upriver.batches.spilled_keys import LiveKeys, remainder
from upriver.consumer.transport.connection_string import Source
from upriver.consumer.writing.documents import Documents
from upriver.errors import ConfigError, StoreRefusal
from upriver.model import Op
from upriver.spark.bucket_copy import copy
from upriver.spark.sink.row_edits import FENCE_PREFIX
from upriver.testing import TemporaryProducer

#: A document's place, and all that a copy has of it.
Found = dict[tuple[str, str, bytes], tuple[bytes, int, int, int, int]]


@pytest.fixture
def source() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=4) as producer:
        yield producer


@pytest.fixture
def target() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=8) as producer:
        yield producer


def documents(producer: TemporaryProducer) -> Found:
    bucket = producer.bucket
    found: Found = {}
    for change in stored(bucket):
        if change.op is Op.MUTATION and not change.key.startswith(FENCE_PREFIX):
            with suppress(StoreRefusal):  # its collection is being dropped
                place = names(bucket, change.collection)
                version = change.value, change.cas, change.rev, change.flags, change.time
                found[*place, change.key] = version
    return found


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
        anew=options.pop("anew", "") == "true",
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


def put(producer: TemporaryProducer, collection: int, value: bytes, *keys: bytes) -> None:
    for key in keys:
        producer.write(key, value, collection=collection)


def test_collections_are_created_and_dropped_in_the_copy_too(
    spark: SparkSession, tmp_path: Path, source: TemporaryProducer, target: TemporaryProducer
) -> None:
    bucket, keys = source.bucket, [b"k%d" % number for number in range(12)]
    shop = bucket.create_scope("shop").id
    orders, carts = (bucket.create_collection(shop, name).id for name in ("orders", "carts"))
    theirs = target.bucket.create_collection(0, "theirs").id  # never of the source
    target.write(b"k", b"{}", collection=theirs)
    for _ in range(3):
        put(source, orders, b"old", *keys)
    put(source, carts, b"{}", *keys)

    def is_equal() -> bool:
        found = {name: one for name, one in documents(target).items() if name[1] != "theirs"}
        return found == documents(source)

    query = copy(spark, source.source, target.source, checkpoint=tmp_path)
    try:
        until(is_equal, unless=ended(query))
        late = bucket.create_collection(shop, "late").id
        put(source, late, b"late", *keys)
        until(is_equal, unless=ended(query))
        bucket.drop_collection(carts)  # the name is never used again
        until(is_equal, unless=ended(query))
        assert names_of(target) == names_of(source) | {"_default.theirs"}
        bucket.drop_collection(orders)  # and made again at once, with fewer documents
        orders = bucket.create_collection(shop, "orders").id
        put(source, orders, b"new", *keys[:3])
        until(is_equal, unless=ended(query))
    finally:
        query.stop()
    # the same while nothing is copied
    bucket.drop_collection(orders)
    orders = bucket.create_collection(shop, "orders").id
    put(source, orders, b"newest", *keys[2:6])
    bucket.drop_collection(late)
    copy_once(spark, source, target, tmp_path)
    assert is_equal()
    assert ("_default", "theirs", b"k") in documents(target)
    assert names_of(target) == names_of(source) | {"_default.theirs"}


def names_of(producer: TemporaryProducer) -> set[str]:
    with Documents(Source.parse(producer.source)) as opened:
        return {".".join(name) for name in opened.collections.live_names().values()}


def test_a_chain_of_copies_goes_back_with_its_first_bucket_and_with_the_second(
    spark: SparkSession, tmp_path: Path, source: TemporaryProducer, target: TemporaryProducer
) -> None:
    keys = [b"k%d" % number for number in range(30)]
    with TemporaryProducer(vbuckets=2) as last:

        def copied(**options: Any) -> None:
            copy_once(spark, source, target, tmp_path / "1", **options)
            copy_once(spark, target, last, tmp_path / "2")

        put(source, 0, b"first", *keys)
        source.delete(keys[0])
        before = [source.bucket.vbucket_stats(vbucket).high_seqno for vbucket in range(4)]
        put(source, 0, b"lost", b"lost-new", *keys[:20])
        put(source, 0, b"lost too", *keys[:10])
        source.delete(keys[25])
        copied()
        assert documents(last) == documents(target) == documents(source)
        # what the first goes back to is older than what the others have
        for vbucket in range(4):
            source.fail_over(vbucket, before[vbucket])
        copied()
        assert documents(last) == documents(target) == documents(source)
        put(source, 0, b"after", b"lost-new", *keys[5:15])
        copied()
        assert documents(last) == documents(target) == documents(source)
        # the second loses what was written into it, which only a new start of the first copy mends
        put(source, 0, b"new", b"one more", *keys[10:20])
        source.delete(keys[28])
        copied()
        for vbucket in range(8):
            lose(target, vbucket, 2)
        copied()
        assert documents(last) == documents(target) != documents(source)
        copied(anew="true")
        assert documents(last) == documents(target) == documents(source)


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
    odd = Restated(vbucket=0, vbuckets=1, keys=frozenset(), part=1, parts=2)
    assert Restated.of_json(odd.to_json()) == odd
    keys = [b"%d" % number for number in range(100)]
    assert [key for key in keys if odd.excludes(key)] == [k for k in keys if remainder(k, 2) == 1]
    elsewhere = Restated(vbucket=1, vbuckets=1024, keys=frozenset())
    assert not elsewhere.excludes(b"c")
    for wrong in (None, b"{}", '{"vbucket": 9, "vbuckets": 4, "keys": []}', b"[", b"x" * 2**23):
        with pytest.raises(Exception, match="DCP-BAD-ROW: a row with op restated"):
            Restated.of_json(wrong)


def test_live_keys_are_the_same_in_memory_and_in_files() -> None:
    dice = random.Random(5)
    model: dict[str, set[bytes]] = {"a": set(), "b": set(), "empty": set()}
    small, large = LiveKeys(most=50), LiveKeys()
    for _ in range(3_000):
        place, key = dice.choice("ab"), b"key-%d" % dice.randrange(400)
        lives = dice.random() < 0.7
        for keys in (small, large):
            keys.add(place, key, lives=lives)
        model[place].add(key) if lives else model[place].discard(key)
        if dice.random() < 0.001:
            small.forget("b")
            large.forget("b")
            model["b"].clear()
    for place, expected in model.items():
        parts = list(small.take(place))
        assert set().union(*(part.keys for part in parts)) == expected
        assert sum(len(part.keys) for part in parts) == len(expected)
        assert all(remainder(key, p.parts) == p.part for p in parts for key in p.keys)
        assert (len(parts) > 1) == (place != "empty")
        (whole,) = large.take(place)
        assert whole.keys == expected
    small.close()
