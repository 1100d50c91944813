"""A store as a directory: made, opened, listed, locked, refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from storekit import QUIET, put, value

from upriver.errors import (
    ConfigError,
    Status,
    StoreClosed,
    StoreDamaged,
    StoreLocked,
    StoreRefusal,
    StoreTooNew,
)
from upriver.store import BucketSettings, Store, SyncMode


def test_a_store_keeps_its_buckets(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        assert store.buckets() == []
        put(store.create_bucket("one", QUIET), "k", "first")
        put(store.create_bucket("two", QUIET), "k", "second")
        assert store.buckets() == ["one", "two"]
    with Store(tmp_path, create=False) as store:
        assert store.buckets() == ["one", "two"]
        assert value(store.bucket("one"), "k") == "first"
        assert value(store.bucket("two"), "k") == "second"


def test_a_bucket_is_opened_once(store: Store) -> None:
    bucket = store.create_bucket("b", QUIET)
    assert store.bucket("b") is bucket
    bucket.close()
    again = store.bucket("b")
    assert again is not bucket
    assert not again.closed


def test_settings_are_kept_and_can_be_replaced(tmp_path: Path) -> None:
    chosen = BucketSettings(vbuckets=3, durability=SyncMode.RELAXED, purge_age=7)
    with Store(tmp_path) as store:
        store.create_bucket("b", chosen)
    with Store(tmp_path) as store:
        assert store.bucket("b").settings == chosen
    other = BucketSettings(vbuckets=3, history_age=1)
    with Store(tmp_path) as store:
        assert store.bucket("b", other).settings == other
    with Store(tmp_path) as store:
        assert store.bucket("b").settings == other
        store.bucket("b").close()
        with pytest.raises(ConfigError, match="was created with 3, which cannot be changed"):
            store.bucket("b", BucketSettings(vbuckets=4))


@pytest.mark.parametrize(
    "wrong",
    [
        {"vbuckets": 0},
        {"vbuckets": 1025},
        {"history_age": -1},
        {"history_bytes": -1},
        {"sync_interval": 0},
        {"group_changes": 0},
    ],
)
def test_settings_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        BucketSettings(**wrong)


@pytest.mark.parametrize("count", [1, 1024])
def test_any_number_of_vbuckets(store: Store, count: int) -> None:
    bucket = store.create_bucket("b", BucketSettings(vbuckets=count, maintenance_interval=0))
    put(bucket, "k", vbucket=count - 1)
    with pytest.raises(StoreRefusal, match=f"no vbucket {count}") as refused:
        put(bucket, "k", vbucket=count)
    assert refused.value.status is Status.NOT_MY_VBUCKET


def test_dropping_a_bucket_leaves_nothing(store: Store) -> None:
    bucket = store.create_bucket("b", QUIET)
    put(bucket, "k")
    store.drop_bucket("b")
    assert bucket.closed
    assert store.buckets() == []
    assert list((store.path / "buckets").iterdir()) == []
    assert store.create_bucket("b", QUIET).stats().items == 0


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "a b", "x" * 101, "naïve"])
def test_names_that_cannot_be(store: Store, name: str) -> None:
    with pytest.raises(StoreRefusal) as refused:
        store.create_bucket(name, QUIET)
    assert refused.value.status is Status.INVALID
    with pytest.raises(StoreRefusal) as unknown:
        store.bucket(name)
    assert unknown.value.status is Status.NO_BUCKET


def test_unknown_and_double_buckets(store: Store) -> None:
    for ask in (store.bucket, store.drop_bucket):
        with pytest.raises(StoreRefusal) as refused:
            ask("none")
        assert refused.value.status is Status.NO_BUCKET
    store.create_bucket("b", QUIET)
    with pytest.raises(StoreRefusal) as double:
        store.create_bucket("b", QUIET)
    assert double.value.status is Status.EXISTS


def test_what_a_crash_left_half_made_or_half_dropped_is_removed(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.create_bucket("b", QUIET)
    (tmp_path / "buckets" / ".making-c").mkdir()
    (tmp_path / "buckets" / ".going-d").mkdir()
    (tmp_path / "buckets" / ".going-d" / "file").write_text("x")
    with Store(tmp_path) as store:
        assert store.buckets() == ["b"]
    assert sorted(path.name for path in (tmp_path / "buckets").iterdir()) == ["b"]


def test_a_second_opening_is_refused_with_who_holds_it(tmp_path: Path) -> None:
    with (
        Store(tmp_path),
        pytest.raises(StoreLocked, match=f"process {os.getpid()} on") as refused,
    ):
        Store(tmp_path)
    assert refused.value.path == str(tmp_path)
    Store(tmp_path).close()


def test_a_store_of_a_later_release_is_refused(tmp_path: Path) -> None:
    Store(tmp_path).close()
    (tmp_path / "store.json").write_text(json.dumps({"format": 3}))
    with pytest.raises(StoreTooNew) as refused:
        Store(tmp_path)
    assert (refused.value.found, refused.value.supported) == (3, 2)
    assert json.loads((tmp_path / "store.json").read_text()) == {"format": 3}


def test_a_store_of_the_release_before_is_opened_and_closed_to_it(tmp_path: Path) -> None:
    Store(tmp_path).close()
    (tmp_path / "store.json").write_text(json.dumps({"format": 1}))
    Store(tmp_path).close()
    assert json.loads((tmp_path / "store.json").read_text()) == {"format": 2}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": "one"}', "{}"])
def test_an_unreadable_format_is_refused(tmp_path: Path, content: str) -> None:
    Store(tmp_path).close()
    (tmp_path / "store.json").write_text(content)
    with pytest.raises(StoreDamaged, match=r"store\.json"):
        Store(tmp_path)


def test_missing_parts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such directory"):
        Store(tmp_path / "nowhere", create=False)
    with Store(tmp_path / "store") as store:
        store.create_bucket("b", QUIET)
    home = tmp_path / "store" / "buckets" / "b"
    for file in ("settings.json", "data/CURRENT"):
        content = (home / file).read_bytes()
        (home / file).unlink()
        with Store(tmp_path / "store") as store, pytest.raises(StoreDamaged, match=file[-7:]):
            store.bucket("b")
        (home / file).write_bytes(content)
    (tmp_path / "store" / "store.json").unlink()
    with pytest.raises(StoreDamaged, match=r"store\.json is missing"):
        Store(tmp_path / "store")


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = Store(tmp_path)
    bucket = store.create_bucket("b", QUIET)
    store.close()
    store.close()
    for use in (
        lambda: put(bucket, "k"),
        lambda: bucket.write_many([]),
        lambda: value(bucket, "k"),
        lambda: bucket.open_reader(0),
        lambda: bucket.compact(),
        lambda: store.bucket("b"),
        lambda: store.create_bucket("c"),
    ):
        with pytest.raises(StoreClosed):
            use()


def test_closing_closes_forgotten_readers(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        bucket = store.create_bucket("b", QUIET)
        put(bucket, "k")
        reader = bucket.open_reader(0)
        assert bucket.stats().readers == 1
    with pytest.raises(StoreClosed):
        reader.read()
    with Store(tmp_path) as store:
        assert value(store.bucket("b"), "k") == "value"
