"""What goes by itself: tombstones, old history, and the room they took."""

from __future__ import annotations

import threading

from storekit import Clock, dump, key, put

from upriver.model import VBucketState
from upriver.store import Bucket, BucketSettings, DeleteDocument, SetDocument, Store

DAY = 24 * 3600


def test_tombstones_go_at_their_age_and_the_purge_seqno_rises(bucket: Bucket, clock: Clock) -> None:
    for name in ("a", "b", "c", "d"):
        put(bucket, name)
    bucket.write(DeleteDocument(0, key("a")))
    clock.advance(2 * DAY)
    bucket.write(DeleteDocument(0, key("b")))
    put(bucket, "e")
    bucket.compact()
    assert bucket.vbucket_stats(0).purge_seqno == 0
    clock.advance(DAY)
    bucket.compact()
    stats = bucket.vbucket_stats(0)
    assert (stats.purge_seqno, stats.tombstones, stats.items) == (5, 1, 3)
    assert [message.seqno for message in dump(bucket)] == [3, 4, 6, 7]
    clock.advance(2 * DAY)
    bucket.compact()
    assert bucket.vbucket_stats(0).purge_seqno == 6
    assert bucket.stats().tombstones == 0


def test_the_last_seqno_stays_so_that_snapshots_end(bucket: Bucket, clock: Clock) -> None:
    put(bucket, "a")
    bucket.write(DeleteDocument(0, key("a")))
    clock.advance(4 * DAY)
    bucket.compact()
    assert [message.seqno for message in dump(bucket)] == [2]
    put(bucket, "b")
    bucket.compact()
    assert [message.seqno for message in dump(bucket)] == [3]


def test_a_document_that_comes_back_has_a_higher_revision(
    bucket: Bucket, clock: Clock, store: Store
) -> None:
    for _ in range(5):
        put(bucket, "a")
    bucket.write(DeleteDocument(0, key("a")))
    put(bucket, "b")
    clock.advance(4 * DAY)
    bucket.compact()
    bucket.close()
    bucket = store.bucket("b")
    put(bucket, "a")
    assert bucket.meta(0, key("a")).rev == 7


def test_replicas_are_purged_too(bucket: Bucket, clock: Clock) -> None:
    put(bucket, "a")
    bucket.write(DeleteDocument(0, key("a")))
    put(bucket, "b")
    bucket.set_state(0, VBucketState.REPLICA)
    clock.advance(4 * DAY)
    bucket.compact()
    assert bucket.vbucket_stats(0).purge_seqno == 2


def test_many_tombstones_go_in_steps(bucket: Bucket, clock: Clock) -> None:
    names = [key(f"k{n}") for n in range(3500)]
    bucket.write_many([SetDocument(n % 2, name, b"") for n, name in enumerate(names)])
    bucket.write_many([DeleteDocument(n % 2, name) for n, name in enumerate(names)])
    clock.advance(4 * DAY)
    bucket.compact()
    assert bucket.stats().tombstones == 2
    assert bucket.stats().history_bytes == 0


def test_disk_use_stays_near_live_data(store: Store, clock: Clock) -> None:
    settings = BucketSettings(vbuckets=2, maintenance_interval=0, history_age=10)
    bucket = store.create_bucket("b", settings)
    documents = [SetDocument(n % 2, key(f"k{n}"), b"x" * 1000) for n in range(2000)]
    for _ in range(15):
        bucket.write_many(documents)
        clock.advance(100)
    bucket.compact()
    live = 2000 * 1100
    assert bucket.stats().disk_bytes < 3 * live
    assert bucket.verify() == []


def test_it_runs_by_itself(store: Store, clock: Clock) -> None:
    settings = BucketSettings(vbuckets=1, maintenance_interval=0.01, purge_age=5)
    bucket = store.create_bucket("b", settings)
    put(bucket, "a")
    bucket.write(DeleteDocument(0, key("a")))
    put(bucket, "b")
    purged = threading.Event()
    bucket.subscribe(lambda _: purged.set() if bucket.vbucket_stats(0).purge_seqno else None)
    clock.advance(10)
    assert purged.wait(60)
    assert bucket.stats().tombstones == 0
