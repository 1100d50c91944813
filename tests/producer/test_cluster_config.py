"""The cluster map as the parsers of real clients read it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from upriver.errors import ConfigError
from upriver.producer.bootstrap.cluster_config import (
    CAPABILITIES,
    ClusterConfig,
    NodeAddress,
    bucket_json,
    cluster_json,
)

HERE = NodeAddress("127.0.0.1", 11210)
ONE = ClusterConfig(rev=1, nodes=(HERE,), rows=((0,),) * 64)
THREE = ClusterConfig(
    rev=7,
    epoch=2,
    nodes=(
        NodeAddress("a.example", 11210, tls_port=11207, http_port=8091),
        NodeAddress("b.example", 11210, http_port=8091),
        NodeAddress("::1", 11212),
    ),
    this_node=1,
    rows=((0, 1), (1, 2), (2, -1), (-1, 0)),
    replicas=1,
)


def bucket(cluster_map: ClusterConfig, **options: Any) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(bucket_json(cluster_map, "default", **options))
    return loaded


def test_the_smallest_map() -> None:
    assert bucket(ONE, uuid="0123") == {
        "rev": 1,
        "revEpoch": 1,
        "nodesExt": [{"services": {"kv": 11210}, "thisNode": True, "hostname": "127.0.0.1"}],
        "name": "default",
        "uuid": "0123",
        "nodeLocator": "vbucket",
        "bucketType": "membase",
        "collectionsManifestUid": "0",
        "bucketCapabilities": list(CAPABILITIES),
        "nodes": [{"hostname": "127.0.0.1:11210", "ports": {"direct": 11210}, "thisNode": True}],
        "vBucketServerMap": {
            "hashAlgorithm": "CRC",
            "numReplicas": 0,
            "serverList": ["127.0.0.1:11210"],
            "vBucketMap": [[0]] * 64,
        },
    }


def test_several_nodes_stand_in_the_same_order_everywhere() -> None:
    document = bucket(THREE)
    assert [node.get("thisNode") for node in document["nodesExt"]] == [None, True, None]
    assert [node.get("thisNode") for node in document["nodes"]] == [None, True, None]
    assert [node["hostname"] for node in document["nodesExt"]] == ["a.example", "b.example", "::1"]
    assert [node["hostname"] for node in document["nodes"]] == [
        "a.example:8091",
        "b.example:8091",
        "[::1]:11212",
    ]
    assert document["vBucketServerMap"] == {
        "hashAlgorithm": "CRC",
        "numReplicas": 1,
        "serverList": ["a.example:11210", "b.example:11210", "[::1]:11212"],
        "vBucketMap": [[0, 1], [1, 2], [2, -1], [-1, 0]],
    }


def test_only_what_is_served_is_listed() -> None:
    assert [node["services"] for node in bucket(THREE)["nodesExt"]] == [
        {"kv": 11210, "kvSSL": 11207, "mgmt": 8091},
        {"kv": 11210, "mgmt": 8091},
        {"kv": 11212},
    ]


def test_a_server_with_nothing_but_tls() -> None:
    document = bucket(
        ClusterConfig(rev=1, nodes=(NodeAddress("h", None, tls_port=7),), rows=((0,),))
    )
    assert document["nodesExt"][0]["services"] == {"kvSSL": 7}
    assert document["vBucketServerMap"]["serverList"] == ["h:0"]
    assert document["nodes"] == [{"hostname": "h:7", "ports": {"direct": 0}, "thisNode": True}]


def test_a_node_that_listens_everywhere_leaves_its_address_to_the_client() -> None:
    document = bucket(ClusterConfig(rev=1, nodes=(NodeAddress("", 11210),), rows=((0,),)))
    assert document["nodesExt"] == [{"services": {"kv": 11210}, "thisNode": True}]
    assert document["vBucketServerMap"]["serverList"] == ["$HOST:11210"]


def test_without_a_bucket_there_are_only_nodes() -> None:
    document = json.loads(cluster_json(THREE))
    assert document == {name: bucket(THREE)[name] for name in ("rev", "revEpoch", "nodesExt")}
    assert json.loads(cluster_json(ClusterConfig(rev=1, nodes=(HERE,))))["rev"] == 1


def test_the_texts_that_java_dcp_client_looks_for() -> None:
    text = bucket_json(THREE, "default").decode()
    assert re.search(r'"rev"\s*:\s*(-?\d+)', text)[1] == "7"  # type: ignore[index]
    assert re.search(r'"revEpoch"\s*:\s*(-?\d+)', text)[1] == "2"  # type: ignore[index]
    assert '"nodeLocator"' in text
    assert '"nodeLocator"' not in cluster_json(THREE).decode()


def test_what_belongs_to_the_bucket() -> None:
    assert bucket(ONE, manifest_uid=0x1AB)["collectionsManifestUid"] == "1ab"
    assert bucket(ONE, capabilities=("dcp",))["bucketCapabilities"] == ["dcp"]
    names = [json.loads(bucket_json(ONE, name))["uuid"] for name in ("beer", "beer", "travel")]
    assert names[0] == names[1] != names[2]
    assert all(re.fullmatch("[0-9a-f]{32}", name) for name in names)


def test_a_document_is_made_once_for_a_version() -> None:
    first = bucket_json(ONE, "default")
    assert bucket_json(ClusterConfig(rev=1, nodes=(HERE,), rows=((0,),) * 64), "default") is first
    assert bucket_json(ClusterConfig(rev=2, nodes=(HERE,), rows=((0,),) * 64), "default") != first
    assert bucket_json(ONE, "default", manifest_uid=1) != first
    assert bucket_json(ONE, "other") != first


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rev": 0}, "positive"),
        ({"epoch": 0}, "positive"),
        ({"nodes": ()}, "no node 0"),
        ({"this_node": 1}, "no node 1"),
        ({"nodes": (HERE, HERE)}, "twice"),
        ({"nodes": (HERE, NodeAddress("", 1))}, "no hostname"),
        ({"rows": ((0,), ())}, "which are not 1"),
        ({"rows": ((0, 0),)}, "which are not 1"),
        ({"rows": ((1,),)}, "not all on nodes"),
        ({"rows": ((-2,),)}, "not all on nodes"),
    ],
)
def test_maps_that_make_no_sense(wrong: dict[str, Any], message: str) -> None:
    right: dict[str, Any] = {"rev": 1, "nodes": (HERE,), "rows": ((0,),)}
    with pytest.raises(ConfigError, match=message):
        ClusterConfig(**right | wrong)


def test_a_bucket_without_vbuckets_and_a_node_without_ports() -> None:
    with pytest.raises(ConfigError, match="no vbuckets"):
        bucket_json(ClusterConfig(rev=1, nodes=(HERE,)), "default")
    with pytest.raises(ConfigError, match="no port"):
        NodeAddress("127.0.0.1", None)
