"""All of it at once: a mirror that survives a failover and the death of its driver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from tablekit import documents_of
from waiting import until

from upriver.producer.bootstrap.users import DEVELOPMENT_PASSWORD
from upriver.testing import TemporaryProducer

VBUCKETS = 16
DOCUMENTS = 300


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "upriver", *map(str, words), "--master", "local[2]"]


def test_a_mirror_is_equal_after_a_failover_and_a_kill(tmp_path: Path) -> None:
    pytest.importorskip("couchbase", reason="the couchbase package is not installed")
    from couchbase.auth import PasswordAuthenticator
    from couchbase.cluster import Cluster
    from couchbase.options import ClusterOptions

    table = tmp_path / "documents"
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        cluster = Cluster(
            f"couchbase://{producer.host}:{producer.port}",
            ClusterOptions(PasswordAuthenticator("anybody", DEVELOPMENT_PASSWORD)),
        )
        cluster.wait_until_ready(timedelta(seconds=30))
        documents = cluster.bucket("default").default_collection()

        def write(first: int, last: int, round_: int) -> None:
            for number in range(first, last):
                documents.upsert(f"key-{number}", {"number": number, "round": round_})

        def seen(key: str, round_: int) -> bool:
            held = documents_of(table) if (table / "_delta_log").exists() else {}
            value = held.get(key.encode())
            return value is not None and json.loads(value)["round"] == round_

        # a session of its own, so that a kill takes Spark's processes too
        mirror = subprocess.Popen(
            command("mirror", producer.source, table),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

        def ended() -> str:
            return "" if mirror.poll() is None else "the mirror has ended"

        try:
            write(0, DOCUMENTS, 1)
            until(lambda: seen(f"key-{DOCUMENTS - 1}", 1), unless=ended)
            write(0, DOCUMENTS // 2, 2)
            until(lambda: seen(f"key-{DOCUMENTS // 2 - 1}", 2), unless=ended)
            # replicas that were behind take over half of the vbuckets
            for vbucket in range(0, VBUCKETS, 2):
                high = producer.bucket.vbucket_stats(vbucket).high_seqno
                producer.fail_over(vbucket, max(0, high - 5))
            write(DOCUMENTS, DOCUMENTS + 50, 3)
        finally:
            os.killpg(mirror.pid, signal.SIGKILL)
            mirror.wait()
        write(0, 20, 4)
        documents.remove("key-30")
        once = subprocess.run(
            command("mirror", producer.source, table, "--once", "--json"),
            capture_output=True,
            check=False,
            text=True,
        )
        assert once.returncode == 0, once.stderr
        verdict = subprocess.run(
            command("verify", producer.source, table, "--json"),
            capture_output=True,
            check=False,
            text=True,
        )
        cluster.close()
        assert verdict.returncode == 0, verdict.stdout + verdict.stderr
        found = json.loads(verdict.stdout)
        assert found["verdict"] == "equal"
        assert found["equal"] == producer.bucket.stats().items == len(documents_of(table))
        assert found["changed_later"] == 0
