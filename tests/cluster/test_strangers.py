"""Somebody else's server on a node's port: it is told nothing, and the cluster says so."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from chaoskit import MAJORITY
from clusterkit import sign_in
from localcluster import Found, LocalCluster, MapClient
from serverkit import SECRET, ServerProcess, users_file
from talk import Talk
from waiting import until

from upriver.cluster import cluster_start
from upriver.consumer.transport.access import Access
from upriver.consumer.transport.connection_string import Address, Source
from upriver.errors import ConfigError, Status
from upriver.model import NO_END, VBucketState
from upriver.producer.bootstrap.users import Role
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.frameinfo import Durability
from upriver.wire.protocol_enums import DurabilityLevel, Feature


def upriver(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "upriver", *arguments], capture_output=True, text=True, timeout=300
    )


def told_by(port: int) -> tuple[bytes, list[VBucketState], bytes]:
    """A document of a server, the states of its vbuckets, and its map."""
    with Talk(Source((Address("127.0.0.1", port),), "default")) as talk:
        talk.hello(Feature.SELECT_BUCKET)
        talk.ask(kv.SelectBucket(bucket="default"))
        states = [talk.ask(kv.GetVBucket(vbucket=vbucket)).state for vbucket in range(4)]
        document = talk.ask(kv.Get(vbucket=1, key=b"mine")).value
        return document, states, talk.ask(kv.GetClusterConfig()).value


def test_a_stranger_on_the_port_is_left_alone_and_named(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "stranger") as stranger:
        with Talk(Source((Address("127.0.0.1", stranger.port),), "default")) as talk:
            talk.ask(kv.Set(vbucket=1, key=b"mine", value=b"untouched"))
        before = told_by(stranger.port)
        cluster = tmp_path / "c"
        cluster_start.create(cluster, nodes=1, replicas=0, vbuckets=4, port=stranger.port)
        made = Found(cluster)
        try:
            refused = upriver("cluster", "start", "--data", str(cluster))
            assert refused.returncode == 1
            where = f"127.0.0.1:{stranger.port}"
            assert f"n1 cannot listen on {where}: Address already in use" in refused.stderr
            assert "upriver cluster stop" in refused.stderr
            shown = upriver("cluster", "status", "--data", str(cluster)).stdout
            assert "not answering" in shown
            assert f"cannot listen on {where}" in shown
            assert told_by(stranger.port) == before
            log = (cluster / "manager.log").read_text()
            assert f"what listens on {where} is not n1 of this cluster" in log
            starts = (cluster / "nodes" / "n1" / "node.log").read_text().count("cannot listen")
            assert 2 <= starts <= 12  # each pause is twice the one before
            stranger.kill()
            # and once the port is free the node comes up by itself
            until(lambda: made.status()["without_active"] == 0)
        finally:
            made.run("stop")


def test_a_node_of_another_cluster_is_a_stranger_too(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "mine", nodes=1, replicas=0, vbuckets=4) as mine:
        port = mine.state.node("n1").port
        cluster_start.create(tmp_path / "other", nodes=1, replicas=0, vbuckets=4, port=port)
        other = Found(tmp_path / "other")
        before = told_by(port)
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            other.start()
        other.stop()
        assert told_by(port) == before


# ---- forged acknowledgements -------------------------------------------------------------


def test_a_reader_cannot_forge_durability(tmp_path: Path) -> None:
    users = users_file(
        tmp_path, {"reader": (Role.READ_STREAM,), "writer": (Role.WRITE_DATA, Role.READ_DATA)}
    )
    with LocalCluster(tmp_path / "c", nodes=2, replicas=1, vbuckets=2, users=users) as cluster:
        vbucket, (active, copy) = 0, cluster.state.rows[0]
        assert active is not None
        assert copy is not None
        reader, writer = (signed_in(cluster, active, name) for name in ("reader", "writer"))
        with reader, writer:
            write = kv.Set(vbucket=vbucket, key=b"k", value=b"v", frames=(MAJORITY,))
            until(lambda: writer.ask(write).status is Status.SUCCESS)
            cluster.pause(copy)
            reader.open("replication:forged")
            assert reader.control("consumer_name", copy).status is Status.SUCCESS
            assert reader.control("acknowledge_seqnos", "true").status is Status.SUCCESS
            reader.send(m.StreamRequest(vbucket=vbucket, start=0, end=NO_END, opaque=77))
            reader.read_until(m.Mutation)
            forged = m.SeqnoAcknowledged(vbucket=vbucket, opaque=77, prepared_seqno=2**40)
            reader.send(forged, kv.Noop(opaque=78))
            while reader.read().opaque != 78:
                pass  # from here on it was heard
            impatient = Durability(level=DurabilityLevel.MAJORITY, timeout_ms=500)
            late = kv.Set(vbucket=vbucket, key=b"k", value=b"w", frames=(impatient,))
            assert writer.ask(late).status is Status.SYNC_WRITE_AMBIGUOUS
            cluster.resume(copy)
            until(lambda: writer.ask(write).status is Status.SUCCESS)


def signed_in(cluster: LocalCluster, node: str, user: str) -> Talk:
    talk = Talk(cluster.address(node))
    talk.hello(Feature.SELECT_BUCKET, Feature.ALT_REQUEST)
    sign_in(talk, Access(user=user, password=SECRET))
    talk.ask(kv.SelectBucket(bucket="default"))
    return talk


# ---- files and names ---------------------------------------------------------------------


def test_everything_of_a_cluster_is_for_its_owner_only(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        with LocalCluster(tmp_path / "c", nodes=2, replicas=1, vbuckets=4) as cluster:
            with MapClient(cluster) as client:
                client.set(b"k", b"v", (MAJORITY,))
            for path in (cluster.directory, *cluster.directory.rglob("*")):
                mode = stat.S_IMODE(path.stat().st_mode)
                assert mode & 0o077 == 0, f"{path} has the mode {mode:o}"
    finally:
        os.umask(mask)


def test_a_bucket_has_a_uuid_of_its_own_on_all_nodes(tmp_path: Path) -> None:
    seen: list[Any] = []
    for name in ("one", "other"):
        with LocalCluster(tmp_path / name, nodes=2, replicas=1, vbuckets=4) as cluster:
            uuids = set()
            for node in cluster.state.nodes:
                uuids.add(json.loads(told_by(node.port)[2])["uuid"])
                stored = cluster.data(node.name) / "store" / "buckets" / "default" / "uuid"
                uuids.add(stored.read_text())
        assert len(uuids) == 1
        seen += uuids
    assert seen[0] != seen[1]


def test_a_cluster_needs_no_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process of it fails to open anything below /proc, as on systems that have none."""
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(
        "import sys\n"
        "def hook(event, arguments):\n"
        "    if event in ('open', 'os.listdir', 'os.scandir'):\n"
        "        if str(arguments[0]).startswith('/proc'):\n"
        "            raise FileNotFoundError(arguments[0])\n"
        "sys.addaudithook(hook)\n"
    )
    path = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", f"{hooks}{os.pathsep}{path}" if path else str(hooks))
    checked = subprocess.run([sys.executable, "-c", "open('/proc/self/stat')"], check=False)
    assert checked.returncode != 0
    with LocalCluster(tmp_path / "c", nodes=3, replicas=1, vbuckets=4) as cluster:
        with MapClient(cluster) as client:
            client.set(b"k", b"v", (MAJORITY,))
        cluster.kill_manager()
        cluster.start()
        cluster.kill("n1")
        until(lambda: not cluster.status()["without_active"])
        cluster.fail_over("n2")
        cluster.recover("n2")
        with MapClient(cluster) as client:
            assert client.get(b"k") == b"v"
