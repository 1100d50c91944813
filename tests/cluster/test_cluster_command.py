"""``upriver cluster`` as people use it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from localcluster import Found, MapClient

from upriver.cli.commands.cluster import cluster

pytestmark = pytest.mark.story


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cluster, arguments)


def test_a_cluster_from_its_making_to_its_end(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "c"))
    made = run("start", *data, "--nodes", "2", "--vbuckets", "4", "--port", "0")
    try:
        assert made.exit_code == 0, made
        assert made.stdout.startswith("serving couchbase://127.0.0.1:")
        again = run("start", *data)  # it runs already
        assert again.stdout == made.stdout
        other = run("start", *data, "--nodes", "5")
        assert "--nodes is for a new one" in str(other.exception)
        with MapClient(Found(tmp_path / "c")) as client:
            client.set(b"key", b"value")
        assert "n3 is added" in run("add-node", *data).stdout
        moved = run("rebalance", *data)
        assert moved.exit_code == 0, moved
        assert "vbuckets moved" in moved.stderr
        gone = run("failover", *data, "n1")
        assert "failed over" in gone.stdout
        assert "vbuckets promoted" in gone.stderr
        assert run("recover", *data, "n1").exit_code == 0
        assert run("remove-node", *data, "n2").exit_code == 0
        told = json.loads(run("status", *data, "--json").stdout)
        assert [node["name"] for node in told["nodes"]] == ["n1", "n3"]
        assert told["without_active"] == 0
        shown = run("status", *data).stdout
        assert "4 vbuckets, 1 replicas" in shown
        assert "active" in shown
        with MapClient(Found(tmp_path / "c")) as client:
            assert client.get(b"key") == b"value"
    finally:
        assert run("stop", *data).exit_code == 0
    assert "is not running" in str(run("status", *data).exception)


def test_impossible_clusters_are_not_made(tmp_path: Path) -> None:
    for options, problem in (
        (("--nodes", "2", "--replicas", "2"), "2 nodes hold up to 1 replicas"),
        (("--nodes", "100"), "1 to 32 nodes"),
        (("--vbuckets", "5000"), "1 to 1024 vbuckets"),
        (("--port", "65535"), "no 3 ports"),
    ):
        refused = run("start", "--data", str(tmp_path / "c"), *options)
        assert problem in str(refused.exception)
    assert not (tmp_path / "c" / "cluster.json").exists()
