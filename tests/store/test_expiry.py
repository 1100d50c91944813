"""Documents whose time has come: gone for readers at once, and expirations for streams."""

from __future__ import annotations

import threading

import pytest
from storekit import Clock, dump, key, put

from upriver.errors import Status, StoreRefusal
from upriver.model import VBucketState
from upriver.store import (
    AddDocument,
    AppendToDocument,
    Bucket,
    BucketSettings,
    Counter,
    RecordKind,
    ReplaceDocument,
    SetDocument,
    Store,
    TouchDocument,
)
from upriver.wire import messages as m

K = key("k")
DAYS_30 = 30 * 24 * 3600


def missing(bucket: Bucket) -> bool:
    try:
        bucket.get(0, K)
    except StoreRefusal as refusal:
        return refusal.status is Status.NOT_FOUND
    return False


@pytest.mark.parametrize(
    ("asked", "stored"),
    [
        (0, 0),
        (1, 1_700_000_001),
        (DAYS_30 - 1, 1_700_000_000 + DAYS_30 - 1),
        (DAYS_30, 1_700_000_000 + DAYS_30),  # as memcached has it
        (DAYS_30 + 1, DAYS_30 + 1),
        (1_800_000_000, 1_800_000_000),
        (2**32 - 1, 2**32 - 1),
    ],
)
def test_relative_up_to_thirty_days_absolute_above(bucket: Bucket, asked: int, stored: int) -> None:
    bucket.write(SetDocument(0, K, b"", expiry=asked))
    assert bucket.meta(0, K).time == stored


def test_on_access(bucket: Bucket, clock: Clock) -> None:
    bucket.write(SetDocument(0, K, b"v", expiry=10))
    clock.advance(9)
    assert not missing(bucket)
    moved = threading.Event()
    bucket.subscribe(lambda _: moved.set())
    clock.advance(1)
    assert missing(bucket)
    assert moved.wait(60)
    expiration = dump(bucket)[-1]
    assert isinstance(expiration, m.Expiration)
    assert (expiration.seqno, expiration.rev, expiration.delete_time) == (2, 2, clock.seconds)
    assert bucket.stats().tombstones == 1
    assert missing(bucket)


def test_by_the_pager(bucket: Bucket, clock: Clock) -> None:
    changes = [SetDocument(n % 4, key(f"k{n}"), b"", expiry=1 + n) for n in range(20)]
    bucket.write_many(changes)
    put(bucket, "stays")
    clock.advance(10)
    bucket.expire()
    expired = [one for n in range(4) for one in dump(bucket, n) if isinstance(one, m.Expiration)]
    assert {one.key for one in expired} == {b"k%d" % n for n in range(10)}
    stats = bucket.stats()
    assert (stats.items, stats.tombstones) == (11, 10)
    bucket.expire()
    assert bucket.stats() == stats


def test_only_the_version_that_expires(bucket: Bucket, clock: Clock) -> None:
    bucket.write(SetDocument(0, K, b"", expiry=5))
    bucket.write(TouchDocument(0, K, 50))
    bucket.write(SetDocument(0, key("j"), b"", expiry=5))
    bucket.write(SetDocument(0, key("j"), b""))
    clock.advance(20)
    bucket.expire()
    assert bucket.stats().items == 2
    bucket.write(TouchDocument(0, K, 0))
    clock.advance(1000)
    bucket.expire()
    assert bucket.stats().items == 2


def test_writers_find_nothing_there(bucket: Bucket, clock: Clock) -> None:
    for change, status in (
        (ReplaceDocument(0, K, b""), Status.NOT_FOUND),
        (AppendToDocument(0, K, b""), Status.NOT_STORED),
        (TouchDocument(0, K, 9), Status.NOT_FOUND),
        (Counter(0, K, 1), Status.NOT_FOUND),
    ):
        bucket.write(SetDocument(0, K, b"5", expiry=1))
        clock.advance(2)
        with pytest.raises(StoreRefusal) as refused:
            bucket.write(change)
        assert refused.value.status is status
    bucket.write(AddDocument(0, K, b"new"))
    assert bucket.get(0, K).value == b"new"
    assert bucket.stats().items == 1


def test_replicas_wait_for_their_active_copy(bucket: Bucket, clock: Clock) -> None:
    bucket.write(SetDocument(0, K, b"", expiry=1))
    bucket.set_state(0, VBucketState.REPLICA)
    clock.advance(2)
    bucket.expire()
    assert bucket.vbucket_stats(0).items == 1
    with pytest.raises(StoreRefusal):
        bucket.get(0, K, replica=True)
    bucket.set_state(0, VBucketState.ACTIVE)
    bucket.expire()
    assert bucket.meta(0, K).kind == RecordKind.EXPIRATION


def test_more_than_one_step(bucket: Bucket, clock: Clock) -> None:
    bucket.write_many([SetDocument(0, key(f"k{n}"), b"", expiry=1 + n % 3) for n in range(2500)])
    clock.advance(5)
    bucket.expire()
    stats = bucket.stats()
    assert (stats.items, stats.tombstones) == (0, 2500)


def test_the_pager_runs_by_itself(store: Store, clock: Clock) -> None:
    bucket = store.create_bucket("p", BucketSettings(vbuckets=1, maintenance_interval=0.01))
    bucket.write(SetDocument(0, K, b"", expiry=1))
    moved = threading.Event()
    bucket.subscribe(lambda _: moved.set())
    clock.advance(2)
    assert moved.wait(60)
    assert bucket.meta(0, K).kind == RecordKind.EXPIRATION
