"""Attacks on a cluster's data: lost disks, killed managers, strangers, forged acknowledgements.

They stand on the kit of the cluster's tests. Where a node is left alone, a client's gets from it
are measured meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from chaoskit import MAJORITY, DurableWriter, assert_kept, heal, misfortune, writing
from clusterkit import sign_in
from localcluster import Found, LocalCluster, MapClient, manager_pid, runs
from serverkit import SECRET, ServerProcess, users_file
from talk import Talk
from waiting import until

from upriver.cluster import cluster_start
from upriver.cluster.node_processes import Processes
from upriver.consumer.transport.access import Access
from upriver.consumer.transport.connection_string import Address, Source
from upriver.errors import ConfigError, Status
from upriver.model import NO_END
from upriver.producer.bootstrap.users import Role
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.frameinfo import Durability
from upriver.wire.protocol_enums import DurabilityLevel, Feature

from .report import Failed, Row

__all__ = ["ATTACKS"]

Attack = Callable[[Path, Row, float], None]


def connected(cluster: LocalCluster, name: str, user: str = "") -> Talk:
    """A client that goes on talking to one node, whatever the map says."""
    talk = Talk(cluster.address(name))
    talk.hello(Feature.SELECT_BUCKET, Feature.ALT_REQUEST)
    if user:
        sign_in(talk, Access(user=user, password=SECRET))
    talk.ask(kv.SelectBucket(bucket="default"))
    return talk


def vbucket_of(cluster: LocalCluster, name: str) -> int:
    return next(vbucket for vbucket, row in enumerate(cluster.state.rows) if row[0] == name)


def resident_mib(cluster: LocalCluster, name: str) -> float:
    pid = Processes(cluster.directory).pid(cluster.state.node(name))
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    return 0.0


@contextmanager
def watching(cluster: LocalCluster, name: str, row: Row) -> Iterator[None]:
    """Measures gets of a vbucket that a node has, which nothing is done to."""
    over = threading.Event()
    delays: list[float] = []
    vbucket = vbucket_of(cluster, name)
    talk = connected(cluster, name)
    row.before = resident_mib(cluster, name)

    def watch() -> None:
        with talk:
            while not over.is_set():
                started = time.perf_counter()
                talk.ask(kv.Get(vbucket=vbucket, key=b"watched"))
                delays.append((time.perf_counter() - started) * 1000)
                time.sleep(0.005)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        row.gets = delays
        row.most = row.after = resident_mib(cluster, name)


def lost_disks(home: Path, row: Row, seconds: float) -> None:
    written: dict[bytes, bytes] = {}
    end, rounds = time.monotonic() + seconds, 0
    with LocalCluster(home / "c", nodes=3, replicas=1, vbuckets=8) as cluster:
        with watching(cluster, "n3", row):
            while not rounds or time.monotonic() < end:
                rounds += 1
                with MapClient(cluster) as client:
                    for number in range(100):
                        key = b"k%d-%d" % (rounds, number)
                        client.set(key, b"v", (MAJORITY,))
                        written[key] = b"v"
                pid = Processes(cluster.directory).pid(cluster.state.node("n1"))
                assert pid is not None
                os.kill(pid, signal.SIGSTOP)
                shutil.rmtree(cluster.data("n1"))
                os.kill(pid, signal.SIGKILL)
                until(lambda: (cluster.data("n1") / "store").exists())
                until(lambda: not cluster.status()["without_active"])
                until(lambda: {node["state"] for node in cluster.status()["nodes"]} == {"up"})
        with MapClient(cluster) as client:
            lost = sum(client.get(key) != value for key, value in written.items())
    row.did = f"{rounds} times the disk of n1 gone; {len(written)} documents at majority"
    if lost:
        raise Failed(f"{lost} of {len(written)} acknowledged documents are lost")


def split_brain(home: Path, row: Row, seconds: float) -> None:
    """As after a kill of the manager between starting a node and knowing its number."""
    with LocalCluster(home / "c", nodes=3, replicas=1, vbuckets=4, lease=3.0) as cluster:
        vbucket = vbucket_of(cluster, "n1")
        pid = Processes(cluster.directory).pid(cluster.state.node("n1"))
        assert pid is not None
        with connected(cluster, "n1") as talk:
            write = kv.Set(vbucket=vbucket, key=b"k", value=b"v")
            until(lambda: talk.ask(write).status is Status.SUCCESS)
            with watching(cluster, "n3", row):
                cluster.kill_manager()
                (cluster.data("n1") / "node.json").unlink()
                cluster.start()
                cluster.fail_over("n1")
                after = talk.ask(write).status
            os.kill(pid, signal.SIGKILL)
        cluster.recover("n1")
    row.did = "manager killed, its node failed over while that lives"
    if after is Status.SUCCESS:
        raise Failed("the node that was failed over acknowledged a write")


def stranger(home: Path, row: Row, seconds: float) -> None:
    with ServerProcess(home / "stranger") as server:
        source = Source((Address("127.0.0.1", server.port),), "default")
        with Talk(source) as talk:
            talk.ask(kv.Set(vbucket=1, key=b"mine", value=b"untouched"))
        cluster_start.create(home / "c", nodes=1, replicas=0, vbuckets=4, port=server.port)
        made = Found(home / "c")
        refusal = ""
        try:
            made.start()
        except ConfigError as refused:
            refusal = str(refused)
        made.run("stop")
        with Talk(source) as talk:
            states = [talk.ask(kv.GetVBucket(vbucket=vbucket)).state for vbucket in range(4)]
            value = talk.ask(kv.Get(vbucket=1, key=b"mine")).value
    row.did = "another server on a node's port"
    if f"cannot listen on 127.0.0.1:{server.port}" not in refusal:
        raise Failed(f"start said: {refusal or 'that all is well'}")
    if value != b"untouched" or any(state.name != "ACTIVE" for state in states):
        raise Failed("the other server was changed")


def forged_durability(home: Path, row: Row, seconds: float) -> None:
    people = {"reader": (Role.READ_STREAM,), "writer": (Role.WRITE_DATA, Role.READ_DATA)}
    users = users_file(home, people)
    with LocalCluster(home / "c", nodes=2, replicas=1, vbuckets=2, users=users) as cluster:
        active, copy = cluster.state.rows[0]
        assert active is not None
        assert copy is not None
        reader, writer = (connected(cluster, active, name) for name in ("reader", "writer"))
        with reader, writer:
            write = kv.Set(vbucket=0, key=b"k", value=b"v", frames=(MAJORITY,))
            until(lambda: writer.ask(write).status is Status.SUCCESS)
            cluster.pause(copy)
            reader.open("replication:forged")
            reader.control("consumer_name", copy)
            reader.control("acknowledge_seqnos", "true")
            reader.send(m.StreamRequest(vbucket=0, start=0, end=NO_END, opaque=77))
            reader.read_until(m.Mutation)
            forged = m.SeqnoAcknowledged(vbucket=0, opaque=77, prepared_seqno=2**40)
            reader.send(forged, kv.Noop(opaque=78))
            while reader.read().opaque != 78:
                pass
            impatient = Durability(level=DurabilityLevel.MAJORITY, timeout_ms=500)
            late = writer.ask(kv.Set(vbucket=0, key=b"k", value=b"w", frames=(impatient,)))
            cluster.resume(copy)
    row.did = "a reader acknowledges what the paused copy has not got"
    if late.status is Status.SUCCESS:
        raise Failed("the write succeeded")


def directory_gone(home: Path, row: Row, seconds: float) -> None:
    cluster = LocalCluster(home / "c", nodes=2, replicas=1, vbuckets=4)
    cluster.start()
    nodes = [Processes(cluster.directory).pid(node) for node in cluster.state.nodes]
    pids = [pid for pid in (manager_pid(cluster), *nodes) if pid is not None]
    shutil.rmtree(cluster.directory)
    row.did = "the directory of a running cluster is removed"
    until(lambda: not any(runs(pid) for pid in pids))


def chaos(home: Path, row: Row, seconds: float) -> None:
    over, chance = threading.Event(), random.Random()
    happened = 0
    with LocalCluster(home / "c", nodes=3, replicas=1, vbuckets=16) as cluster:
        writers = [DurableWriter(cluster, number, over) for number in range(2)]
        with writing(writers, over):
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                misfortune(cluster, chance)
                happened += 1
            heal(cluster)
        assert_kept(cluster, writers)
    promised = sum(len(writer.promised) for writer in writers)
    row.did = f"{happened} kills, stops, cuts and failovers; {promised} durable writes are there"


def killed_server(home: Path, row: Row, seconds: float) -> None:
    """kill -9 in the middle of writes; what was acknowledged is there."""
    kills, written = 0, 0
    end = time.monotonic() + seconds
    while not kills or time.monotonic() < end:
        with ServerProcess(home / "data") as server, Talk(server) as talk:
            for number in range(written):
                if talk.ask(kv.Get(key=b"k%d" % number)).status is not Status.SUCCESS:
                    raise Failed(f"document {number} of {written} is lost after {kills} kills")
            for _ in range(200):
                talk.ask(kv.Set(key=b"k%d" % written, value=b"{}"))
                written += 1
            talk.send(*[kv.Set(key=b"torn", value=bytes(10_000), quiet=True)] * 50)
            server.kill()
            kills += 1
    row.did = f"{kills} kills, {written} acknowledged writes"


ATTACKS: dict[str, Attack] = {
    "lost disks": lost_disks,
    "split brain": split_brain,
    "stranger on a port": stranger,
    "forged durability": forged_durability,
    "directory of a cluster gone": directory_gone,
    "cluster under misfortune": chaos,
    "kill -9 of a server": killed_server,
}
