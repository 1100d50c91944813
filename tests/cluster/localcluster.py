"""A whole cluster of processes for tests, and a client that follows its map."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from clusterkit import PATIENCE
from talk import Talk
from waiting import until

from upriver.cluster.node_processes import Processes, cluster_process
from upriver.consumer.topology.cluster_map import ClusterMap, vbucket_of
from upriver.consumer.transport.connection_string import Address, Source
from upriver.errors import ConnectionFailed, Status
from upriver.testing import TemporaryCluster
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.frameinfo import FrameInfo
from upriver.wire.protocol_enums import Feature

#: What may pass in a cluster in which something is being moved or was lost.
PASSING = {
    Status.TEMPORARY_FAILURE,
    Status.NOT_MY_VBUCKET,
    Status.SYNC_WRITE_IN_PROGRESS,  # also of an attempt whose answer was lost
    Status.SYNC_WRITE_RECOMMIT_IN_PROGRESS,
}


class LocalCluster(TemporaryCluster):
    """A cluster in a directory of the test's."""

    def __init__(self, directory: Path, **options: Any) -> None:
        super().__init__(directory=directory, **{"vbuckets": 64, **options})

    def start_unready(self) -> None:
        """Starts the manager, and waits for nothing but that it takes commands."""
        cluster_process("manager_main", self.directory, self.directory / "manager.log")

        def answers() -> bool:
            try:
                self.run("status")
            except ConnectionFailed:
                return False
            return True

        until(answers)

    def data(self, name: str) -> Path:
        """Where a node keeps everything."""
        return self.directory / "nodes" / name

    def address(self, name: str) -> Source:
        return Source((Address("127.0.0.1", self.state.node(name).port),), "default")

    def signal(self, name: str, number: signal.Signals) -> None:
        """Sends a signal to a node, if it runs."""
        Processes(self.directory).send(self.state.node(name), number)

    def kill_manager(self) -> None:
        """Kills the manager as nothing else can be killed."""
        pid = manager_pid(self)
        os.kill(pid, signal.SIGKILL)
        until(lambda: not runs(pid))


class Found(LocalCluster):
    """A cluster that something else wrote down."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()
        self._writer = self._passing = None


def manager_pid(cluster: LocalCluster) -> int:
    return int(subprocess.check_output(["pgrep", "-f", f"manager_main {cluster.directory}"]))


def runs(pid: int) -> bool:
    """Whether a process of that number has not ended, as a zombie has."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


@dataclass(frozen=True)
class Written:
    """A write that was acknowledged."""

    vbucket: int
    vbuuid: int
    seqno: int
    cas: int


class MapClient:
    """Finds vbuckets by the map, learns newer ones, and tries again what may pass."""

    def __init__(self, cluster: LocalCluster, patience: float = PATIENCE) -> None:
        self._cluster = cluster
        self._patience = patience
        self._talks: dict[Address, Talk] = {}
        self._map: ClusterMap | None = None

    def close(self) -> None:
        for talk in self._talks.values():
            talk.socket.close()
        self._talks.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    @property
    def map(self) -> ClusterMap:
        while self._map is None:
            for node in self._cluster.state.members:
                self._ask_map(Address("127.0.0.1", node.port))
        return self._map

    def vbucket(self, key: bytes) -> int:
        return vbucket_of(key, len(self.map.vbuckets))

    def set(self, key: bytes, value: bytes, frames: tuple[FrameInfo, ...] = ()) -> Written:
        vbucket = self.vbucket(key)
        answer = self.ask(
            vbucket, kv.Set(vbucket=vbucket, key=key, value=value, collection=0, frames=frames)
        )
        assert answer.status is Status.SUCCESS, answer
        return Written(vbucket, answer.vbuuid, answer.seqno, answer.cas)

    def get(self, key: bytes) -> bytes | None:
        vbucket = self.vbucket(key)
        answer = self.ask(vbucket, kv.Get(vbucket=vbucket, key=key, collection=0))
        if answer.status is Status.NOT_FOUND:
            return None
        value: bytes = answer.value
        return value

    def ask(self, vbucket: int, request: m.Request) -> Any:
        """Asks the active copy, until there is an answer that lasts."""
        limit = time.monotonic() + self._patience
        while True:
            owner = self.map.owner(vbucket)
            answer = None if owner is None else self.ask_node(owner.address, request)
            if answer is not None and answer.status not in PASSING:
                return answer
            assert time.monotonic() < limit, f"{request} was not answered: {answer}"
            if answer is not None and answer.status is Status.NOT_MY_VBUCKET and answer.value:
                assert owner is not None
                self._learn(answer.value, owner.address)
            elif answer is None:
                self._map = None
            time.sleep(0.01)

    def ask_node(self, address: Address, request: m.Request) -> Any | None:
        """An answer of one node, or None if it does not give any."""
        try:
            talk = self._talks.get(address)
            if talk is None:
                talk = self._talks[address] = Talk(Source((address,), "default"))
                talk.socket.settimeout(2)
                talk.hello(
                    Feature.COLLECTIONS,
                    Feature.MUTATION_SEQNO,
                    Feature.SELECT_BUCKET,
                    Feature.ALT_REQUEST,
                )
                talk.ask(kv.SelectBucket(bucket="default"))
            return talk.ask(request)
        except (OSError, AssertionError):
            lost = self._talks.pop(address, None)
            if lost is not None:
                lost.socket.close()
            return None

    def _ask_map(self, address: Address) -> None:
        answer = self.ask_node(address, kv.GetClusterConfig())
        if answer is not None and answer.status is Status.SUCCESS:
            self._learn(answer.value, address)
        else:
            time.sleep(0.01)

    def _learn(self, raw: bytes, address: Address) -> None:
        newer = ClusterMap.parse(raw, reached=address, tls=False)
        if self._map is None or newer.is_newer_than(self._map):
            self._map = newer


def stored(cluster: LocalCluster, name: str, vbucket: int) -> list[tuple[Any, ...]]:
    """Every change that a node has of a vbucket, whatever it is there, by seqno."""
    with Talk(cluster.address(name)) as talk:
        talk.hello(Feature.COLLECTIONS, Feature.XATTR, Feature.SNAPPY, Feature.JSON)
        talk.open(f"look {time.monotonic_ns()}")
        talk.control("enable_noop", "true")
        seqnos = dict(talk.ask(kv.GetAllSeqnos()).seqnos)
        if not seqnos.get(vbucket):
            return []
        talk.send(m.StreamRequest(vbucket=vbucket, start=0, end=seqnos[vbucket], opaque=9))
        messages = talk.read_until(m.StreamEnd)
        kinds = (m.Mutation, m.Deletion)
        return [
            (type(x), x.seqno, x.key, x.value, x.rev, x.cas)
            for x in messages
            if isinstance(x, kinds)
        ]


def assert_copies_equal(cluster: LocalCluster, patience: float = PATIENCE) -> None:
    """Every copy of every vbucket becomes the same as its active one."""
    rows = cluster.state.rows
    limit = time.monotonic() + patience
    for vbucket, row in enumerate(rows):
        assert row[0] is not None
        while True:
            copies = [stored(cluster, node, vbucket) for node in row if node is not None]
            if all(copy == copies[0] for copy in copies):
                break
            assert time.monotonic() < limit, f"vbucket {vbucket} differs: {row}"
            time.sleep(0.05)


def is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
