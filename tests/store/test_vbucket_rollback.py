"""Going back: a vbucket as it was at an earlier seqno, or empty where that is too far."""

from __future__ import annotations

import pytest
from storekit import QUIET, Clock, dump, key, put, value

from upriver.errors import Status, StoreRefusal
from upriver.model import FailoverLog, Snapshot, VBucketState
from upriver.store import (
    AppendToDocument,
    Bucket,
    BucketSettings,
    Counter,
    DeleteDocument,
    SetDocument,
    Store,
    TouchDocument,
)
from upriver.store.writes.change_requests import ChangeRequest
from upriver.wire import messages as m


def test_every_seqno_in_the_window_comes_back_exactly(store: Store, clock: Clock) -> None:
    """Writes a history, remembers each state of it, and goes back through them all."""
    bucket = store.create_bucket("b", QUIET)
    bucket.set_state(0, VBucketState.ACTIVE)
    changes: list[ChangeRequest] = [
        SetDocument(0, key("a"), b"1"),
        SetDocument(0, key("b"), b"2", expiry=100),
        SetDocument(0, key("a"), b"3"),
        DeleteDocument(0, key("a")),
        SetDocument(0, key("c"), b"4", flags=8),
        TouchDocument(0, key("b"), 200),
        SetDocument(0, key("a"), b"5"),
        Counter(0, key("n"), 1, initial=7),
        AppendToDocument(0, key("c"), b"!"),
        Counter(0, key("n"), 1),
        DeleteDocument(0, key("c")),
        DeleteDocument(0, key("b")),
        SetDocument(0, key("c"), b"6"),
    ]
    states: list[list[m.Message]] = [[]]
    counts = [(0, 0, 0)]
    for change in changes:
        bucket.write(change)
        states.append(dump(bucket))
        stats = bucket.vbucket_stats(0)
        counts.append((stats.items, stats.tombstones, stats.history_bytes))
    for seqno in range(len(changes) - 1, 0, -2):
        assert bucket.rollback(0, seqno) == seqno
        assert dump(bucket) == states[seqno]
        stats = bucket.vbucket_stats(0)
        assert stats.high_seqno == seqno
        assert (stats.items, stats.tombstones, stats.history_bytes) == counts[seqno]
        assert bucket.verify() == []
        bucket.close()
        bucket = store.bucket("b")
        assert dump(bucket) == states[seqno]
    clock.advance(1000)
    bucket.expire()
    assert bucket.rollback(0, 0) == 0
    assert dump(bucket) == []
    assert bucket.verify() == []


def test_other_vbuckets_stay(bucket: Bucket) -> None:
    for vbucket in range(3):
        put(bucket, "a", "old", vbucket=vbucket)
        put(bucket, "a", "new", vbucket=vbucket)
    bucket.rollback(1, 1)
    assert [value(bucket, "a", vbucket=vbucket) for vbucket in range(3)] == ["new", "old", "new"]


def test_nothing_to_do(bucket: Bucket) -> None:
    put(bucket, "a")
    log = bucket.failover_log(0)
    assert bucket.rollback(0, 1) == 1
    assert bucket.rollback(0, 99) == 1
    assert bucket.failover_log(0) == log
    for wrong in (4, -1):
        with pytest.raises(StoreRefusal):
            bucket.rollback(wrong, 0)
    with pytest.raises(StoreRefusal) as negative:
        bucket.rollback(0, -1)
    assert negative.value.status is Status.INVALID


def test_beyond_the_window_it_goes_to_0(bucket: Bucket, clock: Clock) -> None:
    put(bucket, "a", "1")
    put(bucket, "a", "2")
    clock.advance(QUIET.history_age + 1)
    put(bucket, "a", "3")
    put(bucket, "b", "4")
    bucket.compact()
    assert bucket.vbucket_stats(0).history_floor == 2
    assert bucket.rollback(0, 3) == 3
    assert bucket.rollback(0, 2) == 2
    assert value(bucket, "a") == "2"
    assert bucket.rollback(0, 1) == 0
    stats = bucket.vbucket_stats(0)
    assert (stats.high_seqno, stats.items, stats.history_floor) == (0, 0, 0)
    assert put(bucket, "a") == 1


def test_inserts_need_no_history(bucket: Bucket, clock: Clock) -> None:
    """What was only added can be taken away for ever."""
    for number in range(10):
        put(bucket, f"k{number}")
    clock.advance(QUIET.history_age * 10)
    bucket.compact()
    assert bucket.vbucket_stats(0).history_bytes == 0
    assert bucket.rollback(0, 4) == 4
    assert [message.seqno for message in dump(bucket)] == [1, 2, 3, 4]


def test_purged_tombstones_are_beyond_the_window(store: Store, clock: Clock) -> None:
    bucket = store.create_bucket(
        "b", BucketSettings(vbuckets=1, maintenance_interval=0, purge_age=10)
    )
    put(bucket, "a")
    bucket.write(DeleteDocument(0, key("a")))
    put(bucket, "b")
    clock.advance(20)
    bucket.compact()
    assert bucket.vbucket_stats(0).purge_seqno == 2
    put(bucket, "c")
    assert bucket.rollback(0, 3) == 3
    assert bucket.rollback(0, 1) == 0
    assert bucket.vbucket_stats(0).purge_seqno == 0


def test_the_window_by_size(store: Store) -> None:
    settings = BucketSettings(vbuckets=2, maintenance_interval=0, history_bytes=5000)
    bucket = store.create_bucket("b", settings)
    for number in range(50):
        put(bucket, "a", "x" * 300)
        put(bucket, "b", "x" * 100, vbucket=1)
        del number
    assert bucket.stats().history_bytes > 20_000
    bucket.compact()
    assert 4000 < bucket.stats().history_bytes <= 5000
    assert bucket.verify() == []
    floor = bucket.vbucket_stats(0).history_floor
    assert 0 < floor < 49
    assert bucket.rollback(0, floor) == floor
    assert bucket.rollback(0, floor - 1) == 0


def test_an_active_vbucket_begins_a_new_branch(bucket: Bucket) -> None:
    first = bucket.failover_log(0).newest
    for number in range(5):
        put(bucket, f"k{number}")
    bucket.rollback(0, 3)
    log = bucket.failover_log(0)
    assert [entry.seqno for entry in log] == [3, 0]
    assert log.entries[1] == first
    assert log.newest.vbuuid != first.vbuuid


def test_a_replica_keeps_the_branches_that_are_left(bucket: Bucket) -> None:
    for number in range(5):
        put(bucket, f"k{number}")
    bucket.set_state(0, VBucketState.REPLICA)
    bucket.set_failover_log(0, FailoverLog.of((0xC, 4), (0xB, 2), (0xA, 0)))
    bucket.rollback(0, 3)
    assert bucket.failover_log(0) == FailoverLog.of((0xB, 2), (0xA, 0))
    assert bucket.replica_snapshot(0) == Snapshot(3, 3)
    bucket.set_failover_log(0, FailoverLog.of((0xC, 4), (0xB, 2)))
    bucket.rollback(0, 1)
    assert [entry.seqno for entry in bucket.failover_log(0)] == [1]


def test_readers_that_are_open_keep_what_they_have(bucket: Bucket) -> None:
    for number in range(5):
        put(bucket, f"k{number}")
    with bucket.open_reader(0) as reader:
        bucket.rollback(0, 2)
        assert sum(chunk.count for chunk in reader) == 5
    assert len(dump(bucket)) == 2
