"""The Python SDK of Couchbase manages buckets and collections and runs transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from upriver.testing import TemporaryProducer

pytest.importorskip("couchbase", reason="the couchbase package is not installed")

from couchbase import exceptions as errors
from couchbase import subdocument as sub
from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.durability import DurabilityLevel, ServerDurability
from couchbase.management.buckets import BucketSettings, CreateBucketSettings
from couchbase.management.collections import UpdateCollectionSettings
from couchbase.options import ClusterOptions, UpsertOptions

PATIENCE = timedelta(seconds=300)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with TemporaryProducer(vbuckets=64) as producer:
        source = f"couchbase://127.0.0.1:{producer.port}"
        cluster = Cluster(source, ClusterOptions(PasswordAuthenticator("me", "password")))
        cluster.wait_until_ready(PATIENCE)
        yield cluster
        cluster.close()


def test_every_service_answers_a_ping(cluster: Cluster) -> None:
    cluster.bucket("default")
    told = cluster.ping().endpoints
    assert {service.value for service in told} == {"key_value", "management"}
    assert all(endpoint.state.value == "ok" for reports in told.values() for endpoint in reports)


def test_buckets(cluster: Cluster) -> None:
    buckets = cluster.buckets()
    assert buckets.get_bucket("default").num_replicas == 0
    wanted = CreateBucketSettings(name="two", ram_quota_mb=100, flush_enabled=True, num_replicas=0)
    buckets.create_bucket(wanted)
    with pytest.raises(errors.BucketAlreadyExistsException):
        buckets.create_bucket(wanted)
    assert {bucket.name for bucket in buckets.get_all_buckets()} == {"default", "two"}
    assert buckets.get_bucket("two").ram_quota_mb == 100
    documents = cluster.bucket("two").default_collection()
    documents.upsert("k", 1)
    buckets.flush_bucket("two")
    assert not documents.exists("k").exists
    buckets.update_bucket(BucketSettings(name="two", flush_enabled=False))
    with pytest.raises(errors.BucketNotFlushableException):
        buckets.flush_bucket("two")
    buckets.drop_bucket("two")
    with pytest.raises(errors.BucketNotFoundException):
        buckets.get_bucket("two")


def test_collections(cluster: Cluster) -> None:
    bucket = cluster.bucket("default")
    manager = bucket.collections()
    manager.create_scope("shop")
    manager.create_collection("shop", "items")
    refused: list[tuple[type[Exception], Callable[..., Any], tuple[str, ...]]] = [
        (errors.ScopeAlreadyExistsException, manager.create_scope, ("shop",)),
        (errors.CollectionAlreadyExistsException, manager.create_collection, ("shop", "items")),
        (errors.ScopeNotFoundException, manager.create_collection, ("none", "items")),
        (errors.ScopeNotFoundException, manager.drop_scope, ("none",)),
        (errors.CollectionNotFoundException, manager.drop_collection, ("shop", "none")),
        (errors.InvalidArgumentException, manager.create_scope, ("_reserved",)),
    ]
    for error, call, arguments in refused:
        with pytest.raises(error):
            call(*arguments)
    documents = bucket.scope("shop").collection("items")
    documents.upsert("k", {"n": 1})
    manager.update_collection("shop", "items", UpdateCollectionSettings(timedelta(seconds=100)))
    assert documents.get("k").content_as[dict] == {"n": 1}
    shop = next(scope for scope in manager.get_all_scopes() if scope.name == "shop")
    assert [one.max_expiry for one in shop.collections] == [timedelta(seconds=100)]
    manager.drop_collection("shop", "items")
    manager.drop_scope("shop")
    assert [scope.name for scope in manager.get_all_scopes()] == ["_default"]


def test_durable_writes_without_replicas(cluster: Cluster) -> None:
    documents = cluster.bucket("default").default_collection()
    for level in (DurabilityLevel.MAJORITY, DurabilityLevel.PERSIST_TO_MAJORITY):
        durable = UpsertOptions(durability=ServerDurability(level), timeout=PATIENCE)
        assert documents.upsert("durable", level.value, durable).cas
    assert documents.get_any_replica("durable").content_as[int] == level.value


def test_what_the_server_knows_of_a_document(cluster: Cluster) -> None:
    documents = cluster.bucket("default").default_collection()
    documents.upsert("known", {"n": 1})
    documents.mutate_in(
        "known",
        [sub.upsert("mine.cas", sub.MutationMacro.cas(), xattr=True, create_parents=True)],
    )
    found = documents.lookup_in(
        "known",
        [
            sub.get("$document.value_crc32c", xattr=True),
            sub.get("$XTOC", xattr=True),
            sub.get("$vbucket.HLC.mode", xattr=True),
            sub.get("mine.cas", xattr=True),
        ],
    )
    assert found.content_as[str](0).startswith("0x")
    assert found.content_as[list](1) == ["mine"]
    assert found.content_as[str](2) == "real"
    cas = bytes.fromhex(found.content_as[str](3).removeprefix("0x"))
    assert int.from_bytes(cas, "little") == found.cas


def test_a_transaction_is_seen_whole(cluster: Cluster) -> None:
    documents = cluster.bucket("default").default_collection()
    documents.upsert("account", {"euros": 10})
    documents.upsert("closed", {"euros": 0})
    with suppress(errors.DocumentNotFoundException):
        documents.remove("receipt")

    def pay(attempt: Any) -> None:
        account = attempt.get(documents, "account")
        attempt.replace(account, {"euros": account.content_as[dict]["euros"] - 3})
        attempt.insert(documents, "receipt", {"euros": 3})
        attempt.remove(attempt.get(documents, "closed"))
        # nobody else sees it yet
        assert documents.get("account").content_as[dict] == {"euros": 10}
        assert not documents.exists("receipt").exists

    assert cluster.transactions.run(pay).unstaging_complete
    assert documents.get("account").content_as[dict] == {"euros": 7}
    assert documents.get("receipt").content_as[dict] == {"euros": 3}
    assert not documents.exists("closed").exists


def test_a_transaction_that_fails_leaves_nothing(cluster: Cluster) -> None:
    documents = cluster.bucket("default").default_collection()
    documents.upsert("account", {"euros": 10})

    def fail(attempt: Any) -> None:
        attempt.replace(attempt.get(documents, "account"), {"euros": 0})
        attempt.insert(documents, "never", {})
        raise ZeroDivisionError

    with pytest.raises(errors.TransactionFailed):
        cluster.transactions.run(fail)
    assert documents.get("account").content_as[dict] == {"euros": 10}
    assert not documents.exists("never").exists
