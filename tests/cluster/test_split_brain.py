"""Two nodes that both believe to have a vbucket: only one of them answers writes."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaoskit import MAJORITY
from localcluster import (
    Found,
    LocalCluster,
    MapClient,
    assert_copies_equal,
    is_open,
    manager_pid,
    runs,
)
from talk import Talk
from waiting import until

from upriver.cluster.node_processes import Processes, cluster_process
from upriver.errors import ConfigError, ConnectionFailed, Status
from upriver.wire import kv_messages as kv
from upriver.wire.protocol_enums import Feature

VBUCKETS = 4


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """With a lease that a test can outlive."""
    with LocalCluster(tmp_path / "c", nodes=3, replicas=1, vbuckets=VBUCKETS, lease=3.0) as cluster:
        yield cluster


def connected(cluster: LocalCluster, name: str) -> Talk:
    """A client that goes on talking to one node, whatever the map says."""
    talk = Talk(cluster.address(name))
    talk.hello(Feature.SELECT_BUCKET)
    talk.ask(kv.SelectBucket(bucket="default"))
    return talk


def vbucket_of(cluster: LocalCluster, name: str) -> int:
    return next(vbucket for vbucket, row in enumerate(cluster.state.rows) if row[0] == name)


def answered(cluster: LocalCluster, request: kv.DocumentRequest) -> Status | None:
    """How n1 answers; None if it hangs up, as it does when its lease ends before the answer."""
    with connected(cluster, "n1") as talk:
        try:
            status: Status = talk.ask(request).status
        except ConnectionError:
            return None
    return status


def test_without_a_manager_nodes_refuse_writes_after_a_while(cluster: LocalCluster) -> None:
    vbucket = vbucket_of(cluster, "n1")
    write = kv.Set(vbucket=vbucket, key=b"k", value=b"v")
    until(lambda: answered(cluster, write) is Status.SUCCESS)
    cluster.kill_manager()
    until(lambda: answered(cluster, write) is Status.TEMPORARY_FAILURE)
    with connected(cluster, "n1") as talk:
        assert talk.ask(kv.Get(vbucket=vbucket, key=b"k")).value == b"v"
    cluster.start()
    until(lambda: answered(cluster, write) is Status.SUCCESS)


def test_a_node_whose_number_nobody_knows_is_not_taken_for_one_that_ended(
    cluster: LocalCluster,
) -> None:
    """As after a kill of the manager at the worst moment: there is no number to kill."""
    vbucket = vbucket_of(cluster, "n1")
    pid = Processes(cluster.directory).pid(cluster.state.node("n1"))
    assert pid is not None
    with connected(cluster, "n1") as talk:
        cluster.kill_manager()
        (cluster.data("n1") / "node.json").unlink()
        cluster.start()
        write = kv.Set(vbucket=vbucket, key=b"k", value=b"before")
        until(lambda: talk.ask(write).status is Status.SUCCESS)
        assert_copies_equal(cluster)
        cluster.fail_over("n1")
        assert runs(pid)  # it could not be ended
        assert cluster.status()["without_active"] == 0
        after = kv.Set(vbucket=vbucket, key=b"k", value=b"lost")
        assert talk.ask(after).status is Status.TEMPORARY_FAILURE
        with MapClient(cluster) as client:
            key = next(b"k%d" % n for n in range(99) if client.vbucket(b"k%d" % n) == vbucket)
            client.set(key, b"v")
            assert client.get(key) == b"v"
    os.kill(pid, signal.SIGKILL)
    cluster.recover("n1")
    assert_copies_equal(cluster)


def test_a_stopped_node_that_wakes_after_a_failover_acknowledges_nothing(
    cluster: LocalCluster,
) -> None:
    """What was sent to it while it was stopped is in its socket, renewals of its lease included."""
    cluster.kill_manager()
    cluster.start()  # one that did not start the node itself
    vbucket = vbucket_of(cluster, "n1")
    pid = Processes(cluster.directory).pid(cluster.state.node("n1"))
    assert pid is not None
    with connected(cluster, "n1") as talk:
        write = kv.Set(vbucket=vbucket, key=b"k", value=b"v", opaque=1)
        until(lambda: talk.ask(write).status is Status.SUCCESS)
        os.kill(pid, signal.SIGSTOP)
        (cluster.data("n1") / "node.json").unlink()  # so that nobody can kill it
        talk.send(*[kv.Set(vbucket=vbucket, key=b"k", value=b"w", opaque=7)] * 10)
        cluster.fail_over("n1")
        os.kill(pid, signal.SIGCONT)
        for _ in range(10):
            assert talk.read().status is Status.TEMPORARY_FAILURE
    os.kill(pid, signal.SIGKILL)


def test_a_node_that_an_earlier_manager_started_is_found_and_ended(cluster: LocalCluster) -> None:
    cluster.kill_manager()
    pid = Processes(cluster.directory).pid(cluster.state.node("n2"))
    assert pid is not None
    cluster.start()
    cluster.fail_over("n2")
    assert not runs(pid)
    assert not is_open(cluster.state.node("n2").port)


def test_epochs_rise_with_every_manager_and_are_in_the_maps(cluster: LocalCluster) -> None:
    first = cluster.status()["epoch"]
    cluster.kill_manager()
    cluster.start()
    assert cluster.status()["epoch"] == first + 1
    with connected(cluster, "n1") as talk:
        assert b'"revEpoch":%d,' % (first + 1) in talk.ask(kv.GetClusterConfig()).value
    assert (cluster.data("n1") / "epoch").read_text() == f"{first + 1}\n"


def is_served(cluster: LocalCluster) -> bool:
    """Whether every vbucket has an active copy; a manager that does not listen yet says no."""
    try:
        return not cluster.status()["without_active"]
    except ConnectionFailed:
        return False


def test_of_two_managers_of_a_directory_the_older_one_ends(cluster: LocalCluster) -> None:
    older, epoch = manager_pid(cluster), cluster.status()["epoch"]
    (cluster.directory / "manager.lock").unlink()  # which kept a second one from starting
    cluster_process("manager_main", cluster.directory, cluster.directory / "manager.log")
    until(lambda: not runs(older))
    until(lambda: cluster.state.epoch == epoch + 1 and is_served(cluster))
    with MapClient(cluster) as client:
        client.set(b"k", b"v", (MAJORITY,))


def test_the_manager_of_a_copied_directory_takes_nobodys_nodes(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """It has the same secret, but what it would take for the end of a node is not."""
    shutil.copytree(cluster.directory, tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "nodes")
    copy = Found(tmp_path / "copy")
    (copy.directory / "manager.json").unlink()
    epoch = cluster.status()["epoch"]
    try:
        with pytest.raises(ConfigError, match="cannot listen"):
            copy.start()
        until(lambda: "is not n1 of this cluster" in str(copy.status()["nodes"]))
        assert all(node["active"] == 0 for node in copy.status()["nodes"])
    finally:
        copy.stop()
    assert cluster.status()["epoch"] == epoch
    with MapClient(cluster) as client:
        client.set(b"k", b"v", (MAJORITY,))
    assert (cluster.data("n1") / "epoch").read_text() == f"{epoch}\n"


def test_managers_and_nodes_end_when_their_directory_is_gone(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "c", nodes=2, replicas=1, vbuckets=VBUCKETS)
    cluster.start()
    nodes = [Processes(cluster.directory).pid(node) for node in cluster.state.nodes]
    pids = [manager_pid(cluster), *nodes]
    assert all(pid is not None and runs(pid) for pid in pids)
    shutil.rmtree(cluster.directory)
    until(lambda: not any(runs(pid) for pid in pids if pid is not None))
