"""`upriver copy` of a cluster of processes that loses what was copied: the target ends equal."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from chaoskit import cut_off, heal
from clusterkit import PATIENCE
from localcluster import LocalCluster, MapClient, eventually

from upriver.consumer import Consumer
from upriver.model import Op
from upriver.testing import TemporaryProducer

QUICK = ("--master", "local[2]", "--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1")


def documents(source: str) -> dict[bytes, tuple[bytes, int]]:
    """Values and CAS."""
    found = {}
    with Consumer(source, end="now") as consumer:
        for change in consumer:
            if change.op is Op.MUTATION and not change.key.startswith(b"_upriver:"):
                found[change.key] = change.value, change.cas
            else:
                found.pop(change.key, None)
    return found


@pytest.mark.extended
def test_a_copy_goes_on_when_a_node_is_given_up_with_what_only_it_had(tmp_path: Path) -> None:
    with (
        LocalCluster(tmp_path / "c", nodes=3, replicas=1, vbuckets=8) as cluster,
        TemporaryProducer(vbuckets=4) as target,
        MapClient(cluster) as client,
    ):
        for number in range(100):
            client.set(b"k%d" % number, b"first")
        owner = client.map.owner(client.vbucket(b"k0"))
        assert owner is not None
        node = next(one.name for one in cluster.state.nodes if one.port == owner.address.port)
        words = ("copy", cluster.source, target.source, "--checkpoint", str(tmp_path / "positions"))
        log = tmp_path / "copy.log"
        with (
            log.open("w") as output,
            subprocess.Popen(
                [sys.executable, "-m", "upriver", *words, *QUICK], stdout=output, stderr=output
            ) as copy,
        ):
            try:

                def has(key: bytes, value: bytes) -> bool:
                    assert copy.poll() is None, log.read_text()
                    return documents(target.source).get(key, (b"",))[0] == value

                def meanwhile() -> None:
                    client.set(b"k0", b"lost")
                    eventually(lambda: has(b"k0", b"lost"), PATIENCE * 10)

                eventually(lambda: has(b"k99", b"first"), PATIENCE * 10)
                cut_off(cluster, node, meanwhile)
                heal(cluster)
                eventually(lambda: has(b"k0", b"first"), PATIENCE * 10)
                client.set(b"k0", b"second")
                eventually(lambda: has(b"k0", b"second"), PATIENCE * 10)
                assert documents(target.source) == documents(cluster.source)
                copy.send_signal(signal.SIGTERM)
                assert copy.wait(PATIENCE * 10) == 0, log.read_text()
                assert "copied: " in log.read_text()
            finally:
                copy.kill()
