"""Nodes that are killed, stopped and cut off while others write: what was promised is kept.

Seeded. It goes on for some seconds, or for as many as UPRIVER_CHAOS_SECONDS says.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest
from clusterkit import PATIENCE
from localcluster import LocalCluster, MapClient, assert_copies_equal, eventually
from talk import Talk

from upriver.errors import ConfigError, Status, UpriverError
from upriver.wire import kv
from upriver.wire.frameinfo import Durability
from upriver.wire.names import DurabilityLevel, Feature

SECONDS = float(os.environ.get("UPRIVER_CHAOS_SECONDS", "15"))
SEED = int(os.environ.get("UPRIVER_CHAOS_SEED", "1"))
MAJORITY = Durability(level=DurabilityLevel.MAJORITY, timeout_ms=5000)
VBUCKETS = 8


class DurableWriter(threading.Thread):
    """Writes one document after the other; what is said to be on a majority must be there."""

    def __init__(self, cluster: LocalCluster, number: int, over: threading.Event) -> None:
        super().__init__()
        self.promised: dict[bytes, int] = {}
        self.error: BaseException | None = None
        self._number = number
        self._client = MapClient(cluster, patience=PATIENCE * 4)
        self._over = over

    def run(self) -> None:
        count = 0
        try:
            while not self._over.is_set():
                count += 1
                key = b"w%d-%d" % (self._number, count)
                vbucket = self._client.vbucket(key)
                request = kv.Set(
                    vbucket=vbucket,
                    key=key,
                    value=b"%d" % count,
                    collection=0,
                    frames=(MAJORITY,),
                )
                answer = self._client.ask(vbucket, request)
                if answer.status is Status.SUCCESS:
                    self.promised[key] = count
                else:
                    unknown = {Status.SYNC_WRITE_AMBIGUOUS, Status.DURABILITY_IMPOSSIBLE}
                    assert answer.status in unknown, answer
        except BaseException as error:
            self.error = error
        finally:
            self._client.close()


def misfortune(cluster: LocalCluster, chance: random.Random) -> None:
    """Something bad happens to one of the nodes, or to the manager, and is put right again."""
    node = chance.choice([node.name for node in cluster.state.members])
    pause = chance.uniform(0.05, 0.8)
    match chance.choice(["kill", "stop", "manager", "failover", "cut off", "rebalance"]):
        case "kill":
            cluster.signal(node, signal.SIGKILL)
            time.sleep(pause)
        case "stop":
            cluster.signal(node, signal.SIGSTOP)
            time.sleep(pause)
            cluster.signal(node, signal.SIGCONT)
        case "manager":  # and with it every link between two nodes
            cluster.kill_manager()
            time.sleep(pause)
            cluster.start()
        case "failover":
            try:
                cluster.run("failover", node)
            except ConfigError:
                return  # it has the only copy of something
            time.sleep(pause)
            cluster.run("recover", node)
        case "cut off":  # what the node takes now nobody copies, and then it is given up
            cluster.kill_manager()
            time.sleep(pause)
            cluster.signal(node, signal.SIGSTOP)
            cluster.start_unready()
            with contextlib.suppress(ConfigError):
                cluster.run("failover", node)
                cluster.run("recover", node)
            cluster.signal(node, signal.SIGCONT)
        case _:
            with contextlib.suppress(UpriverError):  # a node was away; it can be begun again
                cluster.run("rebalance")


def heal(cluster: LocalCluster) -> None:
    for node in cluster.state.nodes:
        cluster.signal(node.name, signal.SIGCONT)
    cluster.start()
    for node in cluster.state.nodes:
        if node.failed:
            cluster.run("recover", node.name)
    eventually(lambda: not cluster.run("status")["without_active"], PATIENCE * 2)


def test_what_a_majority_has_is_never_lost(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    with LocalCluster(tmp_path / "c", nodes=3, replicas=1, vbuckets=VBUCKETS) as cluster:
        over = threading.Event()
        writers = [DurableWriter(cluster, number, over) for number in range(3)]
        for writer in writers:
            writer.start()
        try:
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                misfortune(cluster, chance)
                time.sleep(chance.uniform(0, 0.5))
            heal(cluster)
            promised = [len(writer.promised) for writer in writers]
            for writer, before in zip(writers, promised, strict=True):
                eventually(lambda w=writer, n=before: len(w.promised) > n or w.error is not None)
        finally:
            over.set()
            for writer in writers:
                writer.join(PATIENCE * 5)
        for writer in writers:
            if writer.error is not None:
                raise writer.error
        with MapClient(cluster) as client:
            for writer in writers:
                assert writer.promised
                for key, count in writer.promised.items():
                    assert client.get(key) == b"%d" % count, f"{key!r} is lost"
        assert_copies_equal(cluster, PATIENCE * 2)


def test_a_write_is_answered_when_another_node_has_it(tmp_path: Path) -> None:
    with (
        LocalCluster(tmp_path / "c", nodes=2, replicas=1, vbuckets=4) as cluster,
        MapClient(cluster) as client,
    ):
        for number in range(20):
            done = client.set(b"k%d" % number, b"v", (MAJORITY,))
            copy = client.map.copies(done.vbucket)[1]
            seen = client.ask_node(
                copy.address, kv.ObserveSeqno(vbucket=done.vbucket, vbuuid=done.vbuuid)
            )
            assert seen.persisted_seqno >= done.seqno
        done = client.set(b"k", b"v")
        (owner, copy) = client.map.copies(done.vbucket)
        stopped = next(n.name for n in cluster.state.nodes if n.port == copy.address.port)
        cluster.signal(stopped, signal.SIGSTOP)
        impatient = Durability(level=DurabilityLevel.MAJORITY, timeout_ms=200)
        request = kv.Set(
            vbucket=done.vbucket, key=b"k", value=b"w", collection=0, frames=(impatient,)
        )
        answer = client.ask_node(owner.address, request)
        assert answer.status is Status.SYNC_WRITE_AMBIGUOUS
        assert client.set(b"k", b"x").seqno > done.seqno  # others need not wait
        cluster.run("failover", stopped)
        answer = client.ask(done.vbucket, request)
        assert answer.status is Status.DURABILITY_IMPOSSIBLE  # there is no other copy now


def test_couchbases_own_client_writes_durably(tmp_path: Path) -> None:
    pytest.importorskip("couchbase", reason="the couchbase package is not installed")
    from couchbase.auth import PasswordAuthenticator
    from couchbase.cluster import Cluster
    from couchbase.durability import DurabilityLevel as Level
    from couchbase.durability import ServerDurability
    from couchbase.options import ClusterOptions, UpsertOptions

    with LocalCluster(tmp_path / "c", nodes=2, replicas=1, vbuckets=4) as cluster:
        with Talk(cluster.address("n1")) as talk:
            accepted = talk.ask(
                kv.Hello(agent="x", features=(Feature.ALT_REQUEST, Feature.SYNC_REPLICATION))
            )
            assert Feature.SYNC_REPLICATION in accepted.features
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in cluster.state.nodes)
        client = Cluster(
            f"couchbase://{hosts}", ClusterOptions(PasswordAuthenticator("anybody", "password"))
        )
        try:
            documents = client.bucket("default").default_collection()
            for number in range(10):
                durable = UpsertOptions(durability=ServerDurability(Level.PERSIST_TO_MAJORITY))
                documents.upsert(f"d{number}", number, durable)
                assert documents.get(f"d{number}").content_as[int] == number
        finally:
            client.close()
