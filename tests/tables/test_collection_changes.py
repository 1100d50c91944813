"""Mirrors while collections and scopes are created, dropped, made again, and a bucket flushed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tablekit import PATIENCE, becomes, current_versions, rows_of

from upriver.errors import ConfigError
from upriver.spark.verify_table import verify
from upriver.tables.executors import ThisProcess
from upriver.tables.pipeline import Pipeline
from upriver.tables.pipeline_settings import PipelineSettings
from upriver.tables.pipeline_start import place_of, start_pipeline
from upriver.testing import TemporaryProducer

VBUCKETS = 4
Found = dict[tuple[str, str, bytes], bytes]


@pytest.fixture
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        yield producer


def started(
    producer: TemporaryProducer, table: Path, *, kind: str = "mirror", **options: Any
) -> Pipeline:
    """A pipeline whose tasks run in this process."""
    settings = PipelineSettings.parse(kind, producer.source, options)
    return start_pipeline(ThisProcess(), settings, place_of(table, settings))


def caught_up(producer: TemporaryProducer, table: Path, **options: Any) -> Pipeline:
    pipeline = started(producer, table, once=True, **options)
    assert pipeline.wait(PATIENCE)
    return pipeline


def put(producer: TemporaryProducer, collection: int, count: int, value: bytes = b"{}") -> None:
    for number in range(count):
        producer.write(b"k%d" % number, value, number % VBUCKETS, collection)


def held(table: Path, kind: str = "mirror") -> Found:
    rows = rows_of(table)
    if kind == "history":
        rows = current_versions(rows)
    found = {(row["scope"], row["collection"], row["key"]): row["value"] for row in rows}
    assert len(found) == len(rows)
    return found


def counts(table: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for _, collection, _ in held(table):
        found[collection] = found.get(collection, 0) + 1
    return found


def test_what_is_dropped_or_flushed_leaves_the_mirror_in_one_commit(
    spark: SparkSession, producer: TemporaryProducer, tmp_path: Path
) -> None:
    table, bucket = tmp_path / "documents", producer.bucket
    put(producer, 0, 10)
    shop = bucket.create_scope("shop")
    orders = bucket.create_collection(shop.id, "orders")
    carts = bucket.create_collection(shop.id, "carts")
    put(producer, orders.id, 20)
    put(producer, carts.id, 8)
    caught_up(producer, table)
    assert counts(table) == {"_default": 10, "orders": 20, "carts": 8}
    # dropped and made again while nobody reads: only the table knows what the id was called
    bucket.drop_collection(orders.id)
    orders = bucket.create_collection(shop.id, "orders")
    put(producer, orders.id, 3, b"new")
    pipeline = caught_up(producer, table)
    assert counts(table) == {"_default": 10, "orders": 3, "carts": 8}
    assert (pipeline.status().lag, pipeline.status().lag_seconds) == (0, 0.0)
    compared = verify(spark, source=producer.source, table=str(table))
    assert (compared.verdict, compared.equal) == ("equal", 21)
    # written and dropped in one batch
    put(producer, orders.id, 30, b"newer")
    bucket.drop_collection(orders.id)
    version = DeltaTable(table).version()
    caught_up(producer, table)
    assert counts(table) == {"_default": 10, "carts": 8}
    assert DeltaTable(table).version() == version + 1
    pipeline = started(producer, table)
    try:
        bucket.drop_scope(shop.id)
        becomes(pipeline, lambda: counts(table), {"_default": 10})
        late = bucket.create_collection(0, "late")
        put(producer, late.id, 5)
        becomes(pipeline, lambda: counts(table), {"_default": 10, "late": 5})
        version = DeltaTable(table).version()
        bucket.flush()
        becomes(pipeline, lambda: held(table), dict[tuple[str, str, bytes], bytes]())
        assert DeltaTable(table).version() == version + 1
        producer.write(b"after", b"1", 0)
        becomes(pipeline, lambda: counts(table), {"_default": 1})
    finally:
        pipeline.stop()
    compared = verify(spark, source=producer.source, table=str(table))
    assert (compared.verdict, compared.equal) == ("equal", 1)


def test_a_table_that_deltalake_has_rewritten_still_loses_collections_and_goes_back(
    producer: TemporaryProducer, tmp_path: Path
) -> None:
    table, bucket = tmp_path / "documents", producer.bucket
    orders = bucket.create_collection(0, "orders")
    put(producer, orders.id, 8)
    caught_up(producer, table)
    put(producer, 0, 8, b"kept")
    caught_up(producer, table)
    before = [bucket.vbucket_stats(vbucket).high_seqno for vbucket in range(VBUCKETS)]
    DeltaTable(table).optimize.compact()  # its files have views instead of plain text
    caught_up(producer, table)
    put(producer, 0, 8, b"lost")
    caught_up(producer, table)
    for vbucket in range(VBUCKETS):
        producer.fail_over(vbucket, before[vbucket])
    caught_up(producer, table)
    assert set(held(table).values()) == {b"{}", b"kept"}
    DeltaTable(table).optimize.compact()
    bucket.drop_collection(orders.id)
    caught_up(producer, table)
    assert counts(table) == {"_default": 8}


def test_collections_of_a_mirror_are_followed_widened_and_narrowed(
    spark: SparkSession, producer: TemporaryProducer, tmp_path: Path
) -> None:
    table, bucket = tmp_path / "documents", producer.bucket
    put(producer, 0, 10)
    shop = bucket.create_scope("shop")
    orders = bucket.create_collection(shop.id, "orders")
    carts = bucket.create_collection(shop.id, "carts")
    put(producer, orders.id, 20)
    put(producer, carts.id, 8)
    with pytest.raises(ConfigError, match=r"there is no collection shop\.ordres"):
        caught_up(producer, table, collections="shop.ordres")
    caught_up(producer, table, collections="shop.orders")
    assert counts(table) == {"orders": 20}
    bucket.drop_collection(orders.id)
    caught_up(producer, table, collections="shop.orders")
    assert counts(table) == {}
    gone = verify(spark, source=producer.source, table=str(table), collections="shop.orders")
    assert gone.differing == 0
    orders = bucket.create_collection(shop.id, "orders")
    put(producer, orders.id, 3)
    caught_up(producer, table, collections="shop.orders")
    assert counts(table) == {"orders": 3}

    both = "shop.orders,shop.carts"
    with pytest.raises(ConfigError, match="--allow-change"):
        caught_up(producer, table, collections=both)
    pipeline = caught_up(producer, table, collections=both, allow_change=True)
    assert counts(table) == {"orders": 3, "carts": 8}
    assert (pipeline.status().rows, pipeline.status().lag) == (8, 0)  # only what is new was read
    assert caught_up(producer, table, collections=both).status().rows == 0
    assert caught_up(producer, table, allow_change=True).status().rows == 10
    assert counts(table) == {"_default": 10, "orders": 3, "carts": 8}
    # a vbucket that must go back finds no version of the table as it is now, and is read anew
    producer.fail_over(1, 0)
    producer.write(b"k1", b"after the failover", 1)
    caught_up(producer, table)
    compared = verify(spark, source=producer.source, table=str(table))
    assert compared.verdict == "equal"

    caught_up(producer, table, scope="shop", allow_change=True)
    pipeline = started(producer, table, scope="shop")
    try:
        bucket.drop_collection(carts.id)
        late = bucket.create_collection(shop.id, "late")
        put(producer, late.id, 5)
        becomes(pipeline, lambda: counts(table), {"orders": 2, "late": 5})
        bucket.drop_scope(shop.id)
        becomes(pipeline, lambda: held(table), dict[tuple[str, str, bytes], bytes]())
        shop = bucket.create_scope("shop")
        orders = bucket.create_collection(shop.id, "orders")
        put(producer, orders.id, 7)
        becomes(pipeline, lambda: counts(table), {"orders": 7})
    finally:
        pipeline.stop()
    compared = verify(spark, source=producer.source, table=str(table), scope="shop")
    assert (compared.verdict, compared.equal) == ("equal", 7)


@pytest.mark.parametrize("kind", ["mirror", "history"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("selection", [{}, {"scope": "a"}, {"collections": "a.x,b.y"}])
def test_random_histories_of_collections_end_equal(
    producer: TemporaryProducer, tmp_path: Path, seed: int, selection: dict[str, str], kind: str
) -> None:
    table, bucket = tmp_path / "documents", producer.bucket
    chance = random.Random(f"{seed} {selection}")
    model: dict[tuple[str, str], dict[bytes, bytes]] = {("_default", "_default"): {}}
    ids = {("_default", "_default"): 0}
    scopes = {name: bucket.create_scope(name).id for name in ("a", "b")}

    def create(scope: str, name: str) -> None:
        ids[scope, name] = bucket.create_collection(scopes[scope], name).id
        model[scope, name] = {}

    def write() -> None:
        name = chance.choice(sorted(model))
        for _ in range(chance.randrange(12)):
            number = chance.randrange(10)
            key, vbucket = b"k%d" % number, number % VBUCKETS
            if key in model[name] and chance.random() < 0.3:
                producer.delete(key, vbucket, ids[name])
                del model[name][key]
            else:
                value = b"%d" % chance.randrange(1000)
                producer.write(key, value, vbucket, ids[name])
                model[name][key] = value

    def change() -> None:
        scope, name = chance.choice(["a", "b"]), chance.choice(["x", "y"])
        if (scope, name) not in model:
            create(scope, name)
        else:
            bucket.drop_collection(ids.pop((scope, name)))
            del model[scope, name]

    def flush() -> None:
        bucket.flush()
        for documents in model.values():
            documents.clear()

    def is_chosen(scope: str, name: str) -> bool:
        if "scope" in selection:
            return scope == selection["scope"]
        return not selection or f"{scope}.{name}" in selection["collections"].split(",")

    for scope, name in (("a", "x"), ("b", "y")):
        create(scope, name)
    caught_up(producer, table, kind=kind, **selection)
    for _ in range(6):
        for _ in range(chance.randrange(5)):
            chance.choices([write, change, flush], [6, 4, 1])[0]()
        most = chance.choice([7, 1000])
        caught_up(producer, table, kind=kind, max_offsets_per_trigger=most, **selection)
        assert held(table, kind) == {
            (*name, key): value
            for name, documents in model.items()
            if is_chosen(*name)
            for key, value in documents.items()
        }
