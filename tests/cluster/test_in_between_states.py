"""Commands in states in between: every one ends, and says what is wrong and what to do."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from localcluster import LocalCluster, MapClient, assert_copies_equal, is_open
from waiting import until

from upriver.cluster import control_socket
from upriver.errors import ConfigError, UpriverError

VBUCKETS = 8
#: Seconds after which a command is taken for one that never ends.
ENDLESS = 300


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path / "c", nodes=3, replicas=1, vbuckets=VBUCKETS) as cluster:
        with MapClient(cluster) as client:
            for number in range(200):
                client.set(b"k%d" % number, bytes(1000))
        assert_copies_equal(cluster)
        yield cluster


def command(cluster: LocalCluster, name: str, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "upriver", "cluster", name),
            *("--data", str(cluster.directory), *more),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """What came of a command, which must end."""
    try:
        said, shown = process.communicate(timeout=ENDLESS)
    finally:
        process.kill()
    return process.returncode, said, shown


class Aside:
    """A command that another comes into the way of."""

    def __init__(self, cluster: LocalCluster, name: str, node: str = "") -> None:
        self.error: UpriverError | None = None
        self.begun = threading.Event()
        self._lines = control_socket.call(cluster.directory, name, node)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self.begun.wait(ENDLESS)

    def _run(self) -> None:
        try:
            for _ in self._lines:
                self.begun.set()
        except UpriverError as error:
            self.error = error
        self.begun.set()

    def join(self) -> None:
        self._thread.join(ENDLESS)
        assert not self._thread.is_alive()


def whole(cluster: LocalCluster) -> bool:
    return bool(cluster.run("status")["without_active"] == 0)


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
def test_a_node_that_is_lost_during_a_rebalance_is_failed_over(
    cluster: LocalCluster, how: signal.Signals
) -> None:
    cluster.run("add-node")
    moving = command(cluster, "rebalance")
    assert moving.stderr is not None
    assert "vbuckets moved" in moving.stderr.readline()
    cluster.signal("n4", how)
    moving.send_signal(signal.SIGINT)  # the manager goes on without anybody who listens
    ended(moving)
    code, said, shown = ended(command(cluster, "failover", "n4"))
    assert code == 0, shown
    assert "failed over" in said
    assert not is_open(cluster.state.node("n4").port)  # nobody has started it again
    until(lambda: whole(cluster))
    cluster.run("recover", "n4")
    cluster.run("rebalance")
    assert_copies_equal(cluster)


def test_a_failover_while_another_node_hangs_says_what_is_missing(cluster: LocalCluster) -> None:
    cluster.signal("n3", signal.SIGSTOP)
    code, said, shown = ended(command(cluster, "failover", "n1"))
    assert code == 0, shown
    assert "no active copy now: bring back n3, or fail over what is lost" in said
    code, _, shown = ended(command(cluster, "rebalance"))
    assert code == 1
    assert shown == "error: n3 does not answer: fail over what is lost, or wait for it\n"
    cluster.signal("n3", signal.SIGCONT)
    until(lambda: whole(cluster))
    cluster.run("recover", "n1")
    assert_copies_equal(cluster)


def test_a_node_that_cannot_come_up_holds_up_nobody_else(cluster: LocalCluster) -> None:
    (cluster.directory / "nodes" / "n4").write_text("in the way")
    adding = Aside(cluster, "add-node")
    told = cluster.run("status")
    assert told["silent"] == ["n4"]
    assert told["under_way"] == "adding of a node (0 of 1 nodes added)"
    code, _, shown = ended(command(cluster, "failover", "n2"))
    assert code == 0, shown
    adding.join()
    assert isinstance(adding.error, ConfigError)
    assert "adding of a node was aborted for the failover of n2" in str(adding.error)
    cluster.run("failover", "n4")  # which has nothing
    cluster.run("remove-node", "n4")
    cluster.run("recover", "n2")
    cluster.run("rebalance")
    assert whole(cluster)


def test_a_node_that_never_came_up_is_failed_over(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "c", nodes=3, replicas=1, vbuckets=VBUCKETS)
    port = cluster.state.node("n2").port
    with socket.create_server(("127.0.0.1", port)):
        cluster.start_unready()
        try:
            code, _, shown = ended(command(cluster, "failover", "n2"))
            assert code == 0, shown
            until(lambda: whole(cluster))
        finally:
            cluster.run("stop")


def test_a_command_that_was_interrupted_is_given_again(cluster: LocalCluster) -> None:
    cluster.run("add-node")
    for _ in range(3):
        moving = command(cluster, "rebalance")
        assert moving.stderr is not None
        moving.stderr.readline()
        moving.send_signal(signal.SIGINT)
        ended(moving)
    code, said, shown = ended(command(cluster, "rebalance"))
    assert code == 0, shown
    assert said.count(f"{VBUCKETS // 4} active") == 4
    assert_copies_equal(cluster)


def test_off_a_terminal_nothing_is_said_twice(cluster: LocalCluster) -> None:
    cluster.run("failover", "n2")
    code, _, shown = ended(command(cluster, "recover", "n2"))
    assert code == 0, shown
    lines = shown.splitlines()
    assert lines[-1].endswith("vbuckets recovered")
    assert all(one != other for one, other in pairwise(lines))


def test_a_manager_that_is_stopped_is_named(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = json.loads((cluster.directory / "manager.json").read_text())["pid"]
    monkeypatch.setattr(control_socket, "_SILENCE_SECONDS", 0.5)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(ConfigError, match=f"does not answer: continue its process {pid}"):
            cluster.run("status")
    finally:
        os.kill(pid, signal.SIGCONT)
        monkeypatch.undo()
    assert whole(cluster)
