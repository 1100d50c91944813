"""Nodes that are killed, stopped and cut off while others write: what was promised is kept."""

from __future__ import annotations

import random
import signal
import threading
import time
from pathlib import Path

import pytest
from chaoskit import (
    MAJORITY,
    SECONDS,
    SEED,
    DurableWriter,
    assert_kept,
    heal,
    misfortune,
    writing,
)
from clusterkit import PATIENCE
from localcluster import LocalCluster, MapClient, assert_copies_equal
from talk import Talk

from upriver.errors import Status
from upriver.wire import kv_messages as kv
from upriver.wire.frameinfo import Durability
from upriver.wire.protocol_enums import DurabilityLevel, Feature

VBUCKETS = 8


def test_what_a_majority_has_is_never_lost(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    with LocalCluster(tmp_path / "c", nodes=3, replicas=1, vbuckets=VBUCKETS) as cluster:
        over = threading.Event()
        writers = [DurableWriter(cluster, number, over) for number in range(3)]
        with writing(writers, over):
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                misfortune(cluster, chance)
                time.sleep(chance.uniform(0, 0.5))
            heal(cluster)
        assert_kept(cluster, writers)
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
            assert seen is not None
            assert seen.persisted_seqno >= done.seqno - 1  # where it was prepared
        done = client.set(b"k", b"v")
        (owner, copy) = client.map.copies(done.vbucket)
        stopped = next(n.name for n in cluster.state.nodes if n.port == copy.address.port)
        cluster.signal(stopped, signal.SIGSTOP)
        impatient = Durability(level=DurabilityLevel.MAJORITY, timeout_ms=200)
        request = kv.Set(
            vbucket=done.vbucket, key=b"k", value=b"w", collection=0, frames=(impatient,)
        )
        answer = client.ask_node(owner.address, request)
        assert answer is not None
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
