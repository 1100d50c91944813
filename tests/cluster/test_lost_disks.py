"""Nodes that come back with an empty disk or an older one: what others have is not wiped."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from chaoskit import MAJORITY
from localcluster import LocalCluster, MapClient, assert_copies_equal, is_open
from waiting import until

from upriver.cluster.node_processes import Processes

VBUCKETS = 8
DOCUMENTS = {b"k%d" % number: b"v%d" % number for number in range(300)}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """With documents of which every one was acknowledged as being on a majority."""
    with LocalCluster(tmp_path / "c", nodes=3, replicas=1, vbuckets=VBUCKETS) as cluster:
        yield cluster


def write(cluster: LocalCluster, documents: dict[bytes, bytes] = DOCUMENTS) -> None:
    with MapClient(cluster) as client:
        for key, value in documents.items():
            client.set(key, value, (MAJORITY,))


def assert_all_there(cluster: LocalCluster, documents: dict[bytes, bytes] = DOCUMENTS) -> None:
    with MapClient(cluster) as client:
        assert {key: client.get(key) for key in documents} == documents
    assert_copies_equal(cluster)


def gone(cluster: LocalCluster, name: str) -> None:
    """Kills a node, with nobody there to start it again."""
    port = cluster.state.node(name).port
    cluster.signal(name, signal.SIGKILL)
    until(lambda: not is_open(port))


@pytest.mark.parametrize("lost", ["", "store", "store/buckets/default"])
def test_a_node_with_an_empty_disk_is_filled_and_wipes_nobody(
    cluster: LocalCluster, lost: str
) -> None:
    write(cluster)
    cluster.run("stop")
    shutil.rmtree(cluster.data("n1") / lost)
    cluster.start()
    assert_all_there(cluster)
    assert {node["state"] for node in cluster.status()["nodes"]} == {"up"}
    cluster.rebalance()
    assert_all_there(cluster)


def test_a_node_that_is_killed_and_emptied_under_its_manager_is_filled(
    cluster: LocalCluster,
) -> None:
    write(cluster)
    pid = Processes(cluster.directory).pid(cluster.state.node("n1"))
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    shutil.rmtree(cluster.data("n1"))
    os.kill(pid, signal.SIGCONT)  # the process lives on without its files, until it looks
    until(lambda: (cluster.data("n1") / "store").exists())
    until(lambda: cluster.status()["without_active"] == 0)
    assert_all_there(cluster)


def test_an_older_disk_gives_way_to_the_newer_copies(cluster: LocalCluster, tmp_path: Path) -> None:
    half = dict(list(DOCUMENTS.items())[:150])
    write(cluster, half)
    cluster.run("stop")
    shutil.copytree(cluster.data("n1"), tmp_path / "backup")
    cluster.start()
    write(cluster)
    cluster.run("stop")
    shutil.rmtree(cluster.data("n1"))
    shutil.copytree(tmp_path / "backup", cluster.data("n1"))
    cluster.start()
    assert_all_there(cluster)


@contextmanager
def kept_down(cluster: LocalCluster, name: str) -> Iterator[None]:
    """Something else has a node's port."""
    with socket.create_server(("127.0.0.1", cluster.state.node(name).port)):
        yield


def test_a_vbucket_stays_down_while_the_node_that_has_more_is_away(cluster: LocalCluster) -> None:
    write(cluster)
    cluster.run("stop")
    shutil.rmtree(cluster.data("n1"))
    with kept_down(cluster, "n2"):
        cluster.start_unready()
        shared = [row for row in cluster.state.rows if set(row) == {"n1", "n2"}]
        assert shared  # only these have to wait
        until(
            lambda: (
                any(
                    problem.endswith("n2 may have more and does not answer")
                    for problem in cluster.status()["problems"]
                )
                and cluster.status()["silent"] == ["n2"]
            )
        )
        told = {node["name"]: node for node in cluster.status()["nodes"]}
        assert told["n1"]["active"] == 0
        assert cluster.status()["without_active"] >= len(shared)
    until(lambda: not cluster.status()["without_active"])
    cluster.start()
    assert_all_there(cluster)


def test_two_of_three_copies_are_not_enough_to_choose_from(tmp_path: Path) -> None:
    """The third may be the one that made up the majority."""
    with LocalCluster(tmp_path / "c", nodes=3, replicas=2, vbuckets=4) as cluster:
        active, lacking, other = cluster.state.rows[0]
        assert active is not None
        assert lacking is not None
        assert other is not None
        assert_copies_equal(cluster)
        cluster.pause(lacking)
        written = {}
        with MapClient(cluster) as client:
            for number in range(200):
                key = b"k%d" % number
                if cluster.state.rows[client.vbucket(key)][0] == active:
                    client.set(key, b"v", (MAJORITY,))
                    written[key] = b"v"
        assert written
        cluster.pause(other)
        cluster.resume(lacking)
        cluster.fail_over(active)
        told = cluster.status()
        assert any(f"{other} may have more and does not answer" in x for x in told["problems"])
        cluster.resume(other)
        until(lambda: not cluster.status()["without_active"])
        assert_all_there(cluster, written)


def test_the_manager_is_killed_while_a_new_disk_is_filled(cluster: LocalCluster) -> None:
    write(cluster)
    cluster.kill_manager()
    gone(cluster, "n1")
    shutil.rmtree(cluster.data("n1"))
    cluster.start_unready()
    cluster.kill_manager()
    cluster.start()
    assert_all_there(cluster)
