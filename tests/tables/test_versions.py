"""Histories without Spark: which versions there are, where they lie, and how they end."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from tablekit import PATIENCE, ModelledBucket, require_history, rows_of

from upriver.errors import ConfigError
from upriver.files.storage import Storage
from upriver.tables.executors import ThisProcess
from upriver.tables.format import row_lookup
from upriver.tables.format.delta_log import read_snapshot
from upriver.tables.pipeline_settings import PipelineSettings
from upriver.tables.pipeline_start import place_of, start_pipeline
from upriver.tables.places import TablePlace
from upriver.tables.upkeep import compaction
from upriver.tables.upkeep.manual_maintenance import compact
from upriver.testing import TemporaryProducer

VBUCKETS = 4


@pytest.fixture
def bucket() -> Iterator[ModelledBucket]:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        yield ModelledBucket(producer)


def caught_up(bucket: ModelledBucket, table: Path, **options: Any) -> None:
    given = {"once": True, "retry_timeout": "1s", **options}
    settings = PipelineSettings.parse("history", bucket.producer.source, given)
    assert start_pipeline(ThisProcess(), settings, place_of(table, settings)).wait(PATIENCE)


def ends(table: Path) -> dict[tuple[str, bytes, int], tuple[int | None, str | None]]:
    """By collection, key and seqno, how versions ended."""
    rows = rows_of(table)
    found = {
        (row["collection"], row["key"], row["seqno"]): (row["_valid_to_seqno"], row["_ended_by"])
        for row in rows
    }
    assert len(found) == len(rows)
    return found


def test_a_history_that_is_kept_up_has_every_version(
    bucket: ModelledBucket, tmp_path: Path
) -> None:
    table = tmp_path / "versions"
    for turn in range(12):
        for vbucket in range(2):
            key = b"%d-%d" % (vbucket, turn % 3)
            if turn % 5 == 4:
                bucket.delete(vbucket, key) if bucket.has(vbucket, key) else None
            else:
                bucket.write(vbucket, key, b"%d" % turn)
        caught_up(bucket, table, compact_every=3)
        require_history(table, bucket, complete=True)
    # what a failover takes back goes, and what it had ended is current again; all else stays, also
    # what was ended meanwhile after the boundary from which the vbucket is read again
    kept = {row["seqno"] for row in rows_of(table) if row["vbucket"] == 0}
    bucket.fail_over(0, bucket.high(0) - 2)
    for number in range(3):
        bucket.write(0, b"0-%d" % number, b"after")
    caught_up(bucket, table)
    rows = require_history(table, bucket, complete=True)
    assert kept > {row["seqno"] for row in rows if row["vbucket"] == 0 and not row["branch"]}


def test_versions_that_come_and_go_in_one_batch(bucket: ModelledBucket, tmp_path: Path) -> None:
    """A stream that is open sees each; they arrive in one batch."""
    table = tmp_path / "versions"
    bucket.write(0, b"a", b"1")
    given = {"retry_timeout": "1s", "trigger": "1s"}
    settings = PipelineSettings.parse("history", bucket.producer.source, given)
    pipeline = start_pipeline(ThisProcess(), settings, place_of(table, settings))
    try:
        while pipeline.status().batches < 1:
            assert not pipeline.wait(0.01)
        for turn in range(40):
            bucket.write(0, b"a", b"%d" % turn)
            bucket.write(1, b"b", b"%d" % turn)
            bucket.delete(1, b"b")
        while not (pipeline.status().lag == 0 and pipeline.status().batches > 1):
            assert not pipeline.wait(0.01)
    finally:
        pipeline.stop()
    caught_up(bucket, table)
    rows = require_history(table, bucket)
    assert {row["_ended_by"] for row in rows if row["key"] == b"b"} <= {"mutation", "deletion"}


def test_dropped_and_flushed_collections_end_their_versions(
    bucket: ModelledBucket, tmp_path: Path
) -> None:
    producer, table = bucket.producer, tmp_path / "versions"
    shop = producer.bucket.create_scope("shop")
    orders = producer.bucket.create_collection(shop.id, "orders")
    first = producer.write(b"a", b"1", 0, orders.id).seqno
    other = producer.write(b"a", b"1", 0).seqno
    caught_up(bucket, table)
    second = producer.write(b"a", b"2", 0, orders.id).seqno
    caught_up(bucket, table)
    producer.bucket.drop_collection(orders.id)
    dropped = producer.write(b"x", b"1", 0).seqno - 1
    orders = producer.bucket.create_collection(shop.id, "orders")
    again = producer.write(b"a", b"3", 0, orders.id).seqno
    caught_up(bucket, table)
    assert ends(table) == {
        ("orders", b"a", first): (second, "mutation"),
        ("orders", b"a", second): (dropped, "dropped"),
        ("orders", b"a", again): (None, None),
        ("_default", b"a", other): (None, None),
        ("_default", b"x", dropped + 1): (None, None),
    }
    rows = {row["seqno"]: row for row in rows_of(table)}
    assert rows[second]["_valid_to"] >= rows[second]["_valid_from"]
    producer.bucket.drop_collection(orders.id)
    caught_up(bucket, table)
    assert ends(table)["orders", b"a", again][1] == "dropped"
    # a flushed bucket begins anew at seqno 0, like a failover that loses everything
    producer.bucket.flush()
    after = producer.write(b"new", b"1", 0).seqno
    caught_up(bucket, table)
    assert ends(table) == {("_default", b"new", after): (None, None)}


def test_collections_that_leave_the_table_end_at_its_position(
    bucket: ModelledBucket, tmp_path: Path
) -> None:
    producer, table = bucket.producer, tmp_path / "versions"
    shop = producer.bucket.create_scope("shop")
    carts = producer.bucket.create_collection(shop.id, "carts")
    orders = producer.bucket.create_collection(shop.id, "orders")
    cart = producer.write(b"c", b"1", 0, carts.id).seqno
    order = producer.write(b"o", b"1", 0, orders.id).seqno
    caught_up(bucket, table, collections="shop.carts,shop.orders")
    caught_up(bucket, table, collections="shop.orders", allow_change=True)
    expected = {
        ("carts", b"c", cart): (order, "dropped"),
        ("orders", b"o", order): (None, None),
    }
    assert ends(table) == expected
    # the next batches leave it alone, and it is read anew when it is wanted again
    newer = producer.write(b"o", b"2", 0, orders.id).seqno
    caught_up(bucket, table, collections="shop.orders")
    expected["orders", b"o", order] = (newer, "mutation")
    expected["orders", b"o", newer] = (None, None)
    assert ends(table) == expected


def test_ended_and_current_versions_lie_in_files_of_their_own(
    bucket: ModelledBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "_MOST_ALIKE", 3)
    table = tmp_path / "versions"

    def kinds() -> list[bool]:
        found = read_snapshot(Storage.parse(table))
        assert found is not None
        return sorted(file.closed for file in found.files.values())

    for turn in range(9):
        for key in range(5):
            bucket.write(key % VBUCKETS, b"k%d" % key, b"%d" % turn)
        caught_up(bucket, table, compact_every=3)
        require_history(table, bucket, complete=True)
    assert set(kinds()) == {False, True}
    compact(TablePlace.parse(table), seconds=86_400)
    assert kinds() == [False, True]
    require_history(table, bucket, complete=True)
    # another program puts them together: the next changes find what is current all the same
    DeltaTable(table).optimize.compact()
    assert kinds() == [False]
    for key in range(5):
        bucket.write(key % VBUCKETS, b"k%d" % key, b"newest")
    caught_up(bucket, table, compact_every=0)
    require_history(table, bucket, complete=True)
    bucket.delete(0, b"k0")
    caught_up(bucket, table, compact_every=1)
    compact(TablePlace.parse(table), seconds=86_400)
    require_history(table, bucket, complete=True)
    assert set(kinds()) == {False, True}


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "of another file"])
def test_copies_of_large_files_are_only_a_cache(
    bucket: ModelledBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setattr(row_lookup, "_SMALL", 0)
    table = tmp_path / "versions"
    for key in range(20):
        bucket.write(key % VBUCKETS, b"k%d" % key, b"old")
    caught_up(bucket, table, compact_every=0)
    assert not (table / row_lookup.FOLDER).exists(), "a first load makes none"
    bucket.write(0, b"k0", b"new")
    caught_up(bucket, table, compact_every=0)
    (copy,) = (table / row_lookup.FOLDER).iterdir()
    made = copy.stat()
    bucket.write(0, b"k4", b"new")
    caught_up(bucket, table, compact_every=0)
    assert copy.stat() == made, "it was not used again"
    if damage == "missing":
        copy.unlink()
    elif damage == "empty":
        copy.write_bytes(b"")
    elif damage == "cut":
        copy.write_bytes(copy.read_bytes()[:-100])
    else:
        bucket.write(0, b"k0", b"newer")
        caught_up(bucket, table, compact_every=0)
        (other,) = (one for one in (table / row_lookup.FOLDER).iterdir() if one != copy)
        os.replace(other, copy)
    for key in range(20):
        bucket.write(key % VBUCKETS, b"k%d" % key, b"last")
    caught_up(bucket, table, compact_every=0)
    require_history(table, bucket, complete=True)
    # what is gone from the table goes here too
    compact(TablePlace.parse(table), seconds=0)
    assert not list((table / row_lookup.FOLDER).iterdir())


def test_columns_are_added_and_never_changed(bucket: ModelledBucket, tmp_path: Path) -> None:
    table = tmp_path / "versions"
    options = {"value_schema": "infer"}

    def put(document: dict[str, Any]) -> None:
        bucket.write(0, b"a", json.dumps(document).encode())
        caught_up(bucket, table, **options)

    put({"n": 1})
    put({"n": 2, "city": "Rome"})
    put({"n": 2.5, "city": "Rome"})
    rows = sorted(rows_of(table), key=lambda row: row["seqno"])
    assert [(row["n"], row["city"], row["_rescued"]) for row in rows] == [
        (1, None, None),
        (2, "Rome", None),
        (None, "Rome", '{"n": 2.5}'),
    ]
    assert [row["_ended_by"] for row in rows] == ["mutation", "mutation", None]
    said = "its valueFormat is binary and here it is string, its valueSchema is infer and here it"
    with pytest.raises(ConfigError, match=said):
        caught_up(bucket, table, value_format="string", allow_change=True)
    settings = PipelineSettings.parse("mirror", bucket.producer.source, options)
    with pytest.raises(ConfigError, match=r"its kind is history and here it is mirror"):
        start_pipeline(ThisProcess(), settings, place_of(table, settings))


def test_a_table_for_each_collection(bucket: ModelledBucket, tmp_path: Path) -> None:
    table = tmp_path / "versions"
    for turn in range(3):
        bucket.write(0, b"a", b"%d" % turn)
        caught_up(bucket, table, table_per_collection=True)
    bucket.fail_over(0, bucket.high(0) - 1)
    caught_up(bucket, table, table_per_collection=True)
    rows = require_history(table / "_default._default", bucket, complete=True)
    assert len(rows) == 2
