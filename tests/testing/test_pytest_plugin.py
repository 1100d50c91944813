"""The fixtures as somebody else's test suite sees them: a project of its own, run by pytest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SUITE = """
from upriver.consumer import Consumer


def keys(source):
    with Consumer(source, end="now") as consumer:
        return sorted(change.key for change in consumer)


def test_a_producer(upriver_producer):
    upriver_producer.write(b"order:1", b"{}")
    assert keys(upriver_producer.source) == [b"order:1"]


def test_another_one_is_empty(upriver_producer):
    assert keys(upriver_producer.source) == []


def test_settings(upriver_producers):
    first, second = upriver_producers(vbuckets=2), upriver_producers(vbuckets=4)
    assert first.port != second.port
    assert second.bucket.settings.vbuckets == 4


def test_a_network_that_breaks(upriver_behind_proxy):
    producer, proxy = upriver_behind_proxy
    for number in range(100):
        producer.write(b"k%d" % number, b"v")
    with Consumer(producer.source, retry_first=0.01) as consumer:
        changes = iter(consumer)
        seen = {next(changes).key for _ in range(50)}
        proxy.cut()
        producer.write(b"last", b"v")
        while b"last" not in seen:
            seen.add(next(changes).key)
    assert len(seen) == 101


def test_a_cluster(upriver_cluster):
    for number in range(20):
        upriver_cluster.write(b"k%d" % number, b"v")
    with Consumer(upriver_cluster.source, retry_first=0.01) as consumer:
        changes = iter(consumer)
        documents = {next(changes).key for _ in range(20)}
        upriver_cluster.pause("n1")
        upriver_cluster.fail_over("n1")
        upriver_cluster.write(b"last", b"v")
        while b"last" not in documents:
            documents.add(next(changes).key)
    assert upriver_cluster.nodes == ["n1", "n2", "n3"]
    assert "n1" not in upriver_cluster.source


def test_settings_of_a_cluster(upriver_clusters):
    cluster = upriver_clusters(nodes=1, replicas=0, vbuckets=4)
    assert cluster.status()["vbuckets"] == 4
"""


def test_fixtures_are_found_and_work(tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text(SUITE)
    command = [sys.executable, "-W", "error", "-m", "pytest", "-q", str(tmp_path)]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout
    assert "6 passed" in answer.stdout


UNUSED = """
import sys


def test_nothing_of_ours_is_loaded(pytestconfig):
    assert pytestconfig.pluginmanager.hasplugin("upriver")
    ours = {name for name in sys.modules if name.partition(".")[0] == "upriver"}
    room = {"upriver.testing", "upriver.testing.pytest_plugin"}
    assert ours == {"upriver", "upriver._lazy", "upriver.errors"} | room
    assert not {"numpy", "pyarrow", "rocksdict"} & set(sys.modules)
"""


def test_a_suite_that_uses_no_fixture_of_ours_loads_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text(UNUSED)
    command = [sys.executable, "-W", "error", "-m", "pytest", "-q", str(tmp_path)]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout
    assert "1 passed" in answer.stdout
