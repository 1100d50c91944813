"""Couchbase's own client writes durably to three nodes, of which one fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from localcluster import LocalCluster, assert_copies_equal
from waiting import until

from upriver.producer.bootstrap.users import DEVELOPMENT_PASSWORD

pytest.importorskip("couchbase", reason="the couchbase package is not installed")

from couchbase import subdocument as sub
from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.collection import Collection
from couchbase.durability import DurabilityLevel, ServerDurability
from couchbase.exceptions import CouchbaseException
from couchbase.options import (
    ClusterOptions,
    InsertOptions,
    MutateInOptions,
    RemoveOptions,
    UpsertOptions,
)

LEVELS = [
    DurabilityLevel.MAJORITY,
    DurabilityLevel.MAJORITY_AND_PERSIST_TO_ACTIVE,
    DurabilityLevel.PERSIST_TO_MAJORITY,
]
PATIENCE = timedelta(seconds=300)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path / "c", nodes=3, replicas=2, vbuckets=8) as nodes:
        yield nodes


@pytest.fixture
def documents(nodes: LocalCluster) -> Iterator[Collection]:
    access = PasswordAuthenticator("anybody", DEVELOPMENT_PASSWORD)
    hosts = nodes.source.removesuffix("/default")
    cluster = Cluster(hosts, ClusterOptions(access))
    cluster.wait_until_ready(PATIENCE)
    yield cluster.bucket("default").default_collection()
    cluster.close()


def durably(kind: Callable[..., Any], level: DurabilityLevel) -> Any:
    return kind(durability=ServerDurability(level), timeout=timedelta(seconds=20))


def is_written(documents: Collection, key: str, value: Any, level: DurabilityLevel) -> bool:
    try:
        documents.upsert(key, value, durably(UpsertOptions, level))
    except CouchbaseException:
        return False
    return True


def test_what_was_written_durably_outlives_a_node(
    nodes: LocalCluster, documents: Collection
) -> None:
    for level in LEVELS:
        name = level.name
        until(partial(is_written, documents, name, {"n": 1}, level))
        documents.mutate_in(name, [sub.upsert("m", 2)], durably(MutateInOptions, level))
        for number in range(8):
            documents.insert(f"{name}{number}", number, durably(InsertOptions, level))
        documents.remove(f"{name}0", durably(RemoveOptions, level))
        assert not documents.exists(f"{name}0").exists
    nodes.kill("n1")
    nodes.fail_over("n1")
    for level in LEVELS:
        name = level.name
        assert documents.get(name).content_as[dict] == {"n": 1, "m": 2}
        assert [documents.get(f"{name}{n}").content_as[int] for n in range(1, 8)] == [*range(1, 8)]
        for number in range(8):
            key = f"{name}{number}"
            until(partial(is_written, documents, key, "again", level))
    assert_copies_equal(nodes)
