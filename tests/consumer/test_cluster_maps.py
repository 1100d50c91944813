"""Cluster maps as servers of every age hand them out, and as none should."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upriver.consumer.topology.cluster_map import ClusterMap, Network, vbucket_of
from upriver.consumer.transport.connection_string import Address
from upriver.errors import ConfigError, RemoteProtocolError, UpriverError
from upriver.producer.bootstrap.cluster_config import ClusterConfig as ServedMap
from upriver.producer.bootstrap.cluster_config import NodeAddress, bucket_json

REACHED = Address("db.example", 11210)


def parse(document: Any, *, tls: bool = False, network: Network = "auto") -> ClusterMap:
    return ClusterMap.parse(json.dumps(document), reached=REACHED, tls=tls, network=network)


def addresses(document: Any, **options: Any) -> list[str]:
    return [str(node.address) for node in parse(document, **options).nodes]


def listed(host: str | None, *, this: bool = False, **services: Any) -> dict[str, Any]:
    """A node of nodesExt; ``external`` is its address for outsiders."""
    external = services.pop("external", None)
    return {
        "services": services,
        **({"hostname": host} if host is not None else {}),
        **({"thisNode": True} if this else {}),
        **({"alternateAddresses": {"external": external}} if external else {}),
    }


def document(
    servers: list[str], nodes: list[dict[str, Any]] | None = None, rows: Any = None
) -> dict[str, Any]:
    return {
        "rev": 7,
        "revEpoch": 2,
        "name": "b",
        "uuid": "u",
        "nodeLocator": "vbucket",
        **({} if nodes is None else {"nodesExt": nodes}),
        "vBucketServerMap": {
            "serverList": servers,
            "vBucketMap": rows or [[index, -1] for index in range(len(servers))],
        },
    }


# ---- what a map says ---------------------------------------------------------------------


def test_a_map_of_ours_is_read_as_it_was_meant() -> None:
    nodes = (
        NodeAddress("one", 1, 2, 3),
        NodeAddress("fe80::2", 4, 5),
        NodeAddress("three", None, 6),
    )
    rows = ((0, 1), (1, -1), (-1, 2), (2, 0))
    served = ServedMap(rev=9, epoch=3, nodes=nodes, this_node=1, rows=rows, replicas=1)
    cluster = ClusterMap.parse(
        bucket_json(served, "b", uuid="abc"), reached=Address("fe80::2", 5), tls=True
    )
    assert (cluster.rev, cluster.epoch, cluster.bucket, cluster.bucket_uuid) == (9, 3, "b", "abc")
    assert [str(node.address) for node in cluster.nodes] == ["one:2", "[fe80::2]:5", "three:6"]
    assert cluster.vbuckets == rows
    assert cluster.sender == cluster.nodes[1]
    assert [cluster.owner(vbucket) for vbucket in range(4)] == [
        cluster.nodes[0],
        cluster.nodes[1],
        None,
        cluster.nodes[2],
    ]
    assert cluster.copies(0) == cluster.nodes[:2]
    assert cluster.copies(1) == (cluster.nodes[1],)
    assert cluster.copies(2) == (cluster.nodes[2],)


@pytest.mark.parametrize(
    ("newer", "older"), [((1, 8), (1, 7)), ((2, 1), (1, 9)), ((1, 0), (0, 9_000))]
)
def test_a_newer_map_has_a_higher_epoch_or_revision(
    newer: tuple[int, int], older: tuple[int, int]
) -> None:
    first, second = (
        parse({**document(["h:1"]), "revEpoch": epoch, "rev": rev}) for epoch, rev in (newer, older)
    )
    assert first.is_newer_than(second)
    assert not second.is_newer_than(first)
    assert not first.is_newer_than(first)


def test_vbuckets_of_keys() -> None:
    # as the vendor's clients have it for buckets of 1024
    assert vbucket_of(b"hello", 1024) == 528
    assert {vbucket_of(str(n).encode(), 4) for n in range(50)} == {0, 1, 2, 3}


# ---- how its nodes are reached -----------------------------------------------------------


def test_the_only_node_is_where_it_was_reached() -> None:
    for single in (
        document(["172.17.0.2:11210"], [listed("172.17.0.2", kv=11210)]),
        document(["$HOST:11210"], [listed(None, kv=11210), listed("index", mgmt=8091)]),
        document(["172.17.0.2:11210"]),
    ):
        for tls in (False, True):
            cluster = parse(single, tls=tls)
            assert [node.address for node in cluster.nodes] == [REACHED]
            assert cluster.sender == cluster.nodes[0]


def test_a_node_that_has_no_data_yet_does_not_become_the_only_one() -> None:
    joining = document(["old:1"], [listed("old", kv=1), listed("new", kv=2, this=True)])
    joining["nodes"] = [{"hostname": "old:8091"}]
    cluster = parse(joining)
    assert [str(node.address) for node in cluster.nodes] == ["old:1"]
    assert cluster.sender is None


def test_nodes_without_data_are_not_counted() -> None:
    nodes = [
        listed("query", mgmt=8091, n1ql=8093),
        listed("one", kv=11210, kvSSL=11207),
        listed("two", kv=11210, kvSSL=11207),
    ]
    mixed = document(["one:11210", "two:11210"], nodes)
    assert addresses(mixed) == ["one:11210", "two:11210"]
    assert addresses(mixed, tls=True) == ["one:11207", "two:11207"]


def test_names_go_before_places() -> None:
    nodes = [listed("new", kv=1, kvSSL=2), listed("old", kv=3, kvSSL=4)]
    assert addresses(document(["old:3", "new:1"], nodes), tls=True) == ["old:4", "new:2"]


def test_a_server_known_by_another_name_is_found_by_its_place() -> None:
    nodes = [
        listed("query", mgmt=8091),
        listed(None, kv=1, kvSSL=2, this=True),
        listed("two", kv=1, kvSSL=3),
        listed("joining", kv=1, kvSSL=4),
    ]
    renamed = document(["10.0.0.1:1", "two:1"], nodes)
    cluster = parse(renamed, tls=True)
    assert [str(node.address) for node in cluster.nodes] == ["db.example:2", "two:3"]
    assert cluster.sender == cluster.nodes[0]


def test_the_host_used_stands_for_where_we_came_in() -> None:
    nodes = [listed("$HOST", kv=1), listed(None, kv=2)]
    assert addresses(document(["$HOST:1", "$HOST:2"], nodes)) == ["db.example:1", "db.example:2"]


def test_old_servers_have_nothing_but_the_server_list() -> None:
    old = document(["One:1", "[FE80::2]:2", "$HOST:11210"])
    cluster = parse(old)
    assert [str(node.address) for node in cluster.nodes] == [
        "one:1",
        "[fe80::2]:2",
        "db.example:11210",
    ]
    assert cluster.sender == cluster.nodes[2]
    with pytest.raises(ConfigError, match="no TLS port of the node One:1"):
        parse(old, tls=True)


def test_ipv6_hosts_are_written_with_and_without_brackets() -> None:
    nodes = [listed("fd63::1", kv=1, kvSSL=3), listed("fd63::2", kv=2, kvSSL=4)]
    cluster = document(["[fd63::1]:1", "[fd63::2]:2"], nodes)
    assert addresses(cluster, tls=True) == ["[fd63::1]:3", "[fd63::2]:4"]


def test_a_node_without_tls() -> None:
    nodes = [listed("one", kv=1, kvSSL=2), listed("two", kv=1)]
    with pytest.raises(ConfigError, match="the node two has no TLS port for data"):
        parse(document(["one:1", "two:1"], nodes), tls=True)


# ---- addresses for outsiders -------------------------------------------------------------


def outside(host: str, **ports: int) -> dict[str, Any]:
    return {"hostname": host, **({"ports": ports} if ports else {})}


SHARED = document(
    ["10.0.0.1:11210", "10.0.0.2:11210"],
    [
        listed("10.0.0.1", kv=11210, external=outside("db.example", kv=32775, kvSSL=32776)),
        listed("10.0.0.2", kv=11210, external=outside("db.example", kv=32799, kvSSL=32800)),
    ],
)
INSIDE = ["10.0.0.1:11210", "10.0.0.2:11210"]


def test_outsiders_get_the_addresses_for_them() -> None:
    assert addresses(SHARED) == ["db.example:32775", "db.example:32799"]
    assert addresses(SHARED, tls=True) == ["db.example:32776", "db.example:32800"]
    assert addresses(SHARED, network="default") == INSIDE
    came_inside = ClusterMap.parse(
        json.dumps(SHARED), reached=Address("10.0.0.2", 11210), tls=False
    )
    assert [str(node.address) for node in came_inside.nodes] == INSIDE
    assert came_inside.sender == came_inside.nodes[1]
    by_another_name = ClusterMap.parse(json.dumps(SHARED), reached=Address("x", 1), tls=False)
    assert [str(node.address) for node in by_another_name.nodes] == INSIDE


def test_an_address_that_is_the_same_inside_is_told_by_its_port() -> None:
    nodes = [
        listed("db.example", kv=11210, external=outside("db.example", kv=32775)),
        listed("10.0.0.2", kv=11210, external=outside("db.example", kv=32799)),
    ]
    both = document(["db.example:11210", "10.0.0.2:11210"], nodes)
    assert addresses(both) == ["db.example:11210", "10.0.0.2:11210"]
    forwarded = ClusterMap.parse(json.dumps(both), reached=Address("db.example", 32799), tls=False)
    assert [node.address.port for node in forwarded.nodes] == [32775, 32799]


def test_an_address_for_outsiders_without_ports_has_the_same_ones() -> None:
    nodes = [listed(f"n{n}", kv=7, external=outside(f"out{n}")) for n in range(2)]
    assert addresses(document(["n0:7", "n1:7"], nodes), network="external") == ["out0:7", "out1:7"]


def test_a_node_that_outsiders_cannot_reach() -> None:
    nodes = [listed("one", kv=1, external=outside("db.example", kv=5)), listed("two", kv=2)]
    with pytest.raises(ConfigError, match="the node two has no external address"):
        parse(document(["one:1", "two:2"], nodes))
    nodes[1] = listed("two", kv=2, external=outside("db.example", mgmt=8091))
    with pytest.raises(ConfigError, match=r"the node db\.example has no plain port"):
        parse(document(["one:1", "two:2"], nodes))


def managements(found: Any, **options: Any) -> list[str]:
    return [str(node.management) for node in parse(found, **options).nodes]


def test_nodes_have_a_management_port_of_the_network_in_use() -> None:
    out = {
        n: outside("db.example", kv=n, kvSSL=n + 10, mgmt=n + 20, mgmtSSL=n + 30) for n in (1, 2)
    }
    ports: dict[str, Any] = {"kv": 11210, "kvSSL": 11207, "mgmt": 8091, "mgmtSSL": 18091}
    nodes = [listed(f"n{n}", **ports, external=out[n]) for n in (1, 2)]
    both = document(["n1:11210", "n2:11210"], nodes)
    assert managements(both) == ["db.example:21", "db.example:22"]
    assert managements(both, tls=True) == ["db.example:31", "db.example:32"]
    assert managements(both, network="default") == ["n1:8091", "n2:8091"]
    assert managements(both, network="default", tls=True) == ["n1:18091", "n2:18091"]
    without = [
        listed(f"n{n}", kv=11210, mgmt=8091, external=outside("db.example", kv=n)) for n in (1, 2)
    ]
    assert managements(document(["n1:11210", "n2:11210"], without)) == ["None", "None"]


def test_the_only_node_is_managed_where_it_was_reached() -> None:
    nodes = [listed("172.17.0.2", kv=11210, mgmt=8091), listed("index", mgmt=9091)]
    assert managements(document(["172.17.0.2:11210"], nodes)) == ["db.example:8091"]
    assert managements(document(["172.17.0.2:11210"], nodes), tls=True) == ["None"]
    assert managements(document(["172.17.0.2:11210"])) == ["None"]


# ---- nonsense ----------------------------------------------------------------------------


def changed(**members: Any) -> dict[str, Any]:
    return {**document(["a:1", "b:2"], [listed("a", kv=1), listed("b", kv=2)]), **members}


def rows(*found: Any, servers: Any = ("a:1", "b:2")) -> dict[str, Any]:
    return changed(vBucketServerMap={"serverList": servers, "vBucketMap": list(found)})


@pytest.mark.parametrize(
    "found",
    [
        None,
        [],
        "text",
        {},
        changed(vBucketServerMap=None),
        changed(vBucketServerMap={}),
        changed(rev="7"),
        changed(rev=-1),
        changed(rev=True),
        changed(revEpoch=1.5),
        changed(name=3),
        changed(uuid="x" * 1000),
        changed(nodes={}),
        changed(nodesExt={}),
        changed(nodesExt=[3]),
        changed(nodesExt=[listed("a", kv="11210")]),
        changed(nodesExt=[listed("a", kv=65_536)]),
        changed(nodesExt=[listed("a b", kv=1)]),
        changed(nodesExt=[listed("a", kv=1, external=[1])]),
        changed(nodesExt=[{"services": 1}]),
        changed(nodesExt=[{}] * 5000),
        rows(),
        rows([]),
        rows(0),
        rows([0], [2]),
        rows([-2]),
        rows([0.0]),
        rows([True]),
        rows([0] * 17),
        rows([0], servers="a:1"),
        rows([0], servers=[1]),
        rows([0], servers=["a:1"] * 5000),
        rows(*[[0]] * 65_537),
        document(["a", "b:1"]),
        document(["a:1", "b:99999"]),
        document(["a:1", "c d:1"]),
    ],
)
def test_nonsense_is_refused_in_a_few_words(found: Any) -> None:
    with pytest.raises(RemoteProtocolError, match="the cluster map cannot be understood") as caught:
        parse(found)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("text", [b"", b"\xff\xfe\xff", b"[" * 100_000, b" " * (9 << 20)])
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="the cluster map cannot be understood"):
        ClusterMap.parse(text, reached=REACHED, tls=False)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@st.composite
def almost_maps(draw: st.DrawFn) -> Any:
    """A good map in which something is replaced by anything."""
    found = json.loads(json.dumps(draw(st.sampled_from([SHARED, document(["a:1", "b:2"])]))))
    place = found
    while isinstance(place, dict | list) and place:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = draw(st.sampled_from(keys))
        if draw(st.booleans()) or not isinstance(place[key], dict | list):
            place[key] = draw(anything)
            break
        place = place[key]
    return found


@given(almost_maps(), st.booleans(), st.sampled_from(["auto", "default", "external"]))
def test_a_map_that_is_almost_right_is_read_or_refused(
    found: Any, tls: bool, network: Network
) -> None:
    try:
        cluster = parse(found, tls=tls, network=network)
    except UpriverError:
        return
    for vbucket in range(len(cluster.vbuckets)):
        assert len(cluster.copies(vbucket)) <= len(cluster.vbuckets[vbucket])
        assert cluster.owner(vbucket) in (None, *cluster.nodes)
