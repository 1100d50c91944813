"""Couchbase's own Python SDK on three nodes: management, replicas, and a failover."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from upriver.testing import TemporaryCluster

pytest.importorskip("couchbase", reason="the couchbase package is not installed")

from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.options import ClusterOptions

PATIENCE = timedelta(seconds=300)


@pytest.fixture(scope="module")
def nodes() -> Iterator[TemporaryCluster]:
    with TemporaryCluster(nodes=3, replicas=1, vbuckets=16) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def sdk(nodes: TemporaryCluster) -> Iterator[Cluster]:
    source = nodes.source.rpartition("/")[0]
    cluster = Cluster(source, ClusterOptions(PasswordAuthenticator("me", "password")))
    cluster.wait_until_ready(PATIENCE)
    yield cluster
    cluster.close()


def terse(port: int) -> dict[str, Any]:
    url = f"http://127.0.0.1:{port}/pools/default/b/default"
    with urllib.request.urlopen(url, timeout=60) as answer:
        told: dict[str, Any] = json.load(answer)
        return told


def test_every_node_lists_the_management_ports_and_one_uuid(nodes: TemporaryCluster) -> None:
    state = nodes.state
    assert len(state.bucket_uuid) == 32
    for index, node in enumerate(state.nodes):
        told = terse(node.http_port)
        assert told["uuid"] == state.bucket_uuid
        assert [entry["services"]["mgmt"] for entry in told["nodesExt"]] == [
            entry.http_port for entry in state.nodes
        ]
        assert told["nodesExt"][index]["thisNode"]


def test_collections_and_flush_by_any_node(nodes: TemporaryCluster, sdk: Cluster) -> None:
    bucket = sdk.bucket("default")
    manager = bucket.collections()
    for name in ("a", "b", "c", "d"):  # each by whichever node the client picks
        manager.create_collection("_default", name)
    (scope,) = manager.get_all_scopes()
    assert {entry.name for entry in scope.collections} >= {"_default", "a", "b", "c", "d"}
    documents = bucket.collection("c")
    for number in range(32):
        documents.upsert(f"k{number}", number)
    assert documents.get("k31").content_as[int] == 31
    sdk.buckets().flush_bucket("default")
    assert not any(documents.exists(f"k{number}").exists for number in range(32))


def test_every_node_knows_a_collection_when_its_creation_is_answered(
    nodes: TemporaryCluster,
) -> None:
    ports = [node.http_port for node in nodes.state.nodes]
    for number, asked in enumerate(ports):
        form = f"name=made{number}".encode()
        base = "/pools/default/buckets/default/scopes"
        with urllib.request.urlopen(
            f"http://127.0.0.1:{asked}{base}/_default/collections", form, timeout=60
        ) as answer:
            uid = json.load(answer)["uid"]
        for port in ports:
            # as a node asks another: what it knows itself
            request = urllib.request.Request(f"http://127.0.0.1:{port}{base}")
            request.add_header("x-upriver-passed-on", "1")
            with urllib.request.urlopen(request, timeout=60) as answer:
                assert json.load(answer)["uid"] == uid


def test_documents_after_a_failover(nodes: TemporaryCluster, sdk: Cluster) -> None:
    documents = sdk.bucket("default").default_collection()
    for number in range(32):
        documents.upsert(f"k{number}", number)
    assert documents.get_any_replica("k1").content_as[int] == 1
    nodes.kill("n3")
    nodes.fail_over("n3")
    for number in range(32):
        documents.upsert(f"k{number}", -number)
        assert documents.get(f"k{number}").content_as[int] == -number
