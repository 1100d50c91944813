"""Many writers, one group: who is told what, and when."""

from __future__ import annotations

import threading
from concurrent.futures import wait
from pathlib import Path

import pytest
from storekit import QUIET, key, put

from upriver.errors import Status, StoreClosed, StoreRefusal
from upriver.store import (
    AddDocument,
    Applied,
    Bucket,
    BucketSettings,
    Counter,
    Outcome,
    SetDocument,
    Store,
    SyncMode,
)
from upriver.store.writes import operations


def test_futures_tell_each_its_own(bucket: Bucket) -> None:
    futures = [
        bucket.submit([SetDocument(0, key(f"k{n}"), b""), AddDocument(0, key(f"k{n}"), b"")])
        for n in range(50)
    ]
    wait(futures)
    for number, future in enumerate(futures):
        done, refused = future.result()
        assert isinstance(done, Applied)
        assert done.seqno == number + 1
        assert isinstance(refused, StoreRefusal)
        assert refused.status is Status.EXISTS


def test_many_threads(bucket: Bucket) -> None:
    def work() -> None:
        for _ in range(50):
            bucket.write(Counter(1, key("n"), 1, initial=1))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bucket.get(1, key("n")).value == b"400"
    assert bucket.vbucket_stats(1).high_seqno == 400


def test_groups_form_while_one_is_written(bucket: Bucket) -> None:
    first_is_there, go_on = threading.Event(), threading.Event()
    groups: list[dict[int, int]] = []

    def listen(moved: object) -> None:
        groups.append(dict(moved))  # type: ignore[call-overload]
        first_is_there.set()
        go_on.wait(60)

    bucket.subscribe(listen)
    first = bucket.submit([SetDocument(0, key("a"), b"")])
    assert first_is_there.wait(60)
    rest = [bucket.submit([SetDocument(n % 3, key(f"b{n}"), b"")]) for n in range(9)]
    go_on.set()
    wait([first, *rest])
    assert groups == [{0: 1}, {0: 4, 1: 3, 2: 3}]


def test_listeners_hear_of_what_can_be_read(bucket: Bucket) -> None:
    heard: list[int] = []

    def listen(moved: object) -> None:
        with bucket.open_reader(0) as reader:
            heard.append(reader.snapshot.end)

    end = bucket.subscribe(listen)
    put(bucket, "a")
    put(bucket, "b")
    end()
    put(bucket, "c")
    assert heard == [1, 2]


def test_a_listener_that_fails_hurts_nobody(
    bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("no")

    bucket.subscribe(fail)
    assert put(bucket, "a") == 1
    assert "a listener" in caplog.text


def test_a_refused_group_moves_nothing(bucket: Bucket) -> None:
    heard: list[object] = []
    bucket.subscribe(heard.append)
    outcome = bucket.write_many([SetDocument(9, key("a"), b"")])
    assert isinstance(outcome[0], StoreRefusal)
    assert heard == []


def test_a_cancelled_submission_is_left_out(bucket: Bucket) -> None:
    busy, go_on = threading.Event(), threading.Event()

    def listen(_: object) -> None:
        busy.set()
        go_on.wait(60)

    bucket.subscribe(listen)
    first = bucket.submit([SetDocument(0, key("a"), b"")])
    assert busy.wait(60)
    unwanted = bucket.submit([SetDocument(0, key("b"), b"")])
    assert unwanted.cancel()
    go_on.set()
    first.result()
    assert put(bucket, "c") == 2


def test_closing_commits_what_was_submitted(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        bucket = store.create_bucket("b", QUIET)
        futures = [bucket.submit([SetDocument(0, key(f"k{n}"), b"")]) for n in range(100)]
    assert all(isinstance(future.result()[0], Applied) for future in futures)
    with pytest.raises(StoreClosed):
        bucket.submit([])
    with Store(tmp_path) as store:
        assert store.bucket("b").stats().items == 100


def test_an_error_in_the_middle_of_a_group_takes_all_of_it_back(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(bucket, "a")
    broken = dict(operations._RULES)

    def explode(*_: object) -> Applied:
        raise ZeroDivisionError

    broken[AddDocument] = explode
    monkeypatch.setattr(operations, "_RULES", broken)
    with pytest.raises(ZeroDivisionError):
        bucket.write_many(
            [
                SetDocument(0, key("b"), b""),
                SetDocument(1, key("b"), b""),
                AddDocument(0, key("c"), b""),
            ]
        )
    future = bucket.submit([SetDocument(0, key("b"), b""), AddDocument(0, key("c"), b"")])
    with pytest.raises(ZeroDivisionError):
        future.result()
    assert (bucket.stats().items, bucket.vbucket_stats(1).high_seqno) == (1, 0)
    assert put(bucket, "d") == 2


def test_relaxed_answers_before_the_sync_and_says_what_is_persisted(store: Store) -> None:
    settings = BucketSettings(
        vbuckets=2, maintenance_interval=0, durability=SyncMode.RELAXED, sync_interval=3600
    )
    bucket = store.create_bucket("r", settings)
    outcomes: list[Outcome] = bucket.write_many(
        [SetDocument(0, key("a"), b""), SetDocument(0, key("b"), b"")]
    )
    assert len(outcomes) == 2
    stats = bucket.vbucket_stats(0)
    assert (stats.high_seqno, stats.persisted_seqno) == (2, 0)
    bucket._core.sync()
    put(bucket, "c")
    assert bucket.vbucket_stats(0).persisted_seqno == 2
    bucket._core.sync()
    assert bucket.vbucket_stats(0).persisted_seqno == 3


def test_relaxed_is_synced_by_itself(store: Store) -> None:
    settings = BucketSettings(
        vbuckets=1, maintenance_interval=0, durability=SyncMode.RELAXED, sync_interval=0.001
    )
    bucket = store.create_bucket("r", settings)
    put(bucket, "a")
    deadline = threading.Event()
    for _ in range(10_000):
        if bucket.vbucket_stats(0).persisted_seqno == 1:
            return
        deadline.wait(0.001)
    raise AssertionError("it was not synced")


def test_durable_is_persisted_when_it_is_answered(bucket: Bucket) -> None:
    put(bucket, "a")
    assert bucket.vbucket_stats(0).persisted_seqno == 1
