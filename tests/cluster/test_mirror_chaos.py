"""A mirror that Spark keeps of a cluster in which everything breaks: it ends equal to it.

The pipeline is a process of its own. Nobody restarts it unless it was killed by the test.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pytest
from chaoskit import (
    SEED,
    DurableWriter,
    Writer,
    assert_kept,
    cut_off,
    heal,
    misfortune,
    writing,
)
from clusterkit import PATIENCE
from deltalake import DeltaTable, QueryBuilder
from localcluster import LocalCluster, MapClient, assert_copies_equal
from waiting import until

from upriver.consumer import Consumer
from upriver.errors import Status
from upriver.model import Op
from upriver.wire import kv_messages as kv

log = logging.getLogger("chaos")

#: Of misfortunes; starting Spark and comparing takes as long as many of them.
SECONDS = float(os.environ.get("UPRIVER_CHAOS_SECONDS", "8"))
VBUCKETS = 8
#: Documents that are written again and again.
KEYS = 60
#: Seconds between two writes that nobody waits for: the machine has more to do than that.
PACE = 0.02
#: The longest misfortune, in seconds: a batch of Spark takes about one.
LONGEST = 3.0
#: The part of the misfortunes that are the cluster's; the others are the pipeline's.
OF_THE_CLUSTER = 0.9
PROGRAM = Path(__file__).with_name("mirror_program.py")

Documents = dict[bytes, bytes]


class Mirror:
    """The program and its table, over all its lives."""

    def __init__(self, source: str, table: Path) -> None:
        self._source = source
        self.table = table
        self._log = table.with_suffix(".log")
        self._result = table.with_suffix(".json")
        self._process: subprocess.Popen[bytes]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *details: object) -> None:
        if self._process.poll() is None:
            self.kill()

    def start(self) -> None:
        places = (self._source, str(self.table), str(self._result))
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, str(PROGRAM), *places],
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Ends it with its Spark, as nothing else can be ended."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> Any:
        """Ends it as it wants to be ended; returns how the table compares with the bucket."""
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(PATIENCE * 5) == 0, self.log
        return json.loads(self._result.read_text())

    def assert_running(self) -> None:
        assert self._process.poll() is None, self.log

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")[-5000:]

    def documents(self) -> Documents:
        """What the table holds; a document must not be there twice."""
        if not DeltaTable.is_deltatable(str(self.table)):
            return {}
        held = QueryBuilder().register("held", DeltaTable(self.table))
        rows = pa.table(held.execute("SELECT key, value FROM held")).to_pylist()
        found = {row["key"]: row["value"] for row in rows}
        assert len(found) == len(rows)
        return found

    def becomes_equal(self, wanted: Documents) -> None:
        def differing() -> set[bytes]:
            self.assert_running()
            return {key for key, _ in wanted.items() ^ self.documents().items()}

        until(
            lambda: not differing(),
            what=lambda: f"these differ: {sorted(differing())[:10]}; {self.log}",
        )


class LooseWriter(Writer):
    """Writes and deletes the same documents again and again, and is promised nothing."""

    def __init__(self, cluster: LocalCluster, number: int, over: threading.Event) -> None:
        super().__init__(cluster, number, over)
        self._chance = random.Random(SEED + number)

    def write(self, count: int) -> None:
        self._over.wait(PACE)
        key = loose_key(self._chance.randrange(KEYS))
        vbucket = self._client.vbucket(key)
        request: kv.DocumentRequest = kv.Delete(vbucket=vbucket, key=key, collection=0)
        if self._chance.random() < 0.8:
            value = b"%d-%d" % (self._number, count)
            request = kv.Set(vbucket=vbucket, key=key, value=value, collection=0)
        assert self.ask(request) in {Status.SUCCESS, Status.NOT_FOUND}


def loose_key(number: int) -> bytes:
    return b"k%d" % number


def documents_of(cluster: LocalCluster, keys: list[bytes]) -> Documents:
    """What the cluster holds, as its change streams tell it and as its documents are got."""
    streamed: Documents = {}
    with Consumer(cluster.source, end="now") as consumer:
        for change in consumer:
            if change.op is Op.MUTATION:
                streamed[change.key] = change.value
            else:
                streamed.pop(change.key, None)
    with MapClient(cluster) as client:
        got = {key: client.get(key) for key in {*keys, *streamed}}
    assert streamed == {key: value for key, value in got.items() if value is not None}
    return streamed


def strike(cluster: LocalCluster, mirror: Mirror, chance: random.Random) -> None:
    """One misfortune, of the cluster or of the pipeline."""
    mirror.assert_running()
    if chance.random() < OF_THE_CLUSTER:
        log.info("%s", misfortune(cluster, chance, LONGEST))
    else:
        mirror.kill()
        mirror.start()
        log.info("killed the mirror")


def lose_what_was_mirrored(cluster: LocalCluster, mirror: Mirror) -> None:
    """A node takes a document that nobody copies; it is mirrored, and then the node is given up."""
    key = b"lost"

    def mirrored() -> bool:
        mirror.assert_running()
        return key in mirror.documents()

    with MapClient(cluster) as client:
        owner = client.map.owner(client.vbucket(key))
        assert owner is not None
        node = next(n.name for n in cluster.state.nodes if n.port == owner.address.port)

        def meanwhile() -> None:
            client.set(key, b"nobody else has it")
            until(mirrored)

        cut_off(cluster, node, meanwhile)
        assert client.get(key) is None


@pytest.mark.parametrize("seed", [SEED])
def test_a_mirror_goes_on_through_everything_and_ends_equal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    caplog.set_level(logging.INFO, log.name)
    chance = random.Random(seed)
    with LocalCluster(tmp_path / "c", nodes=3, replicas=1, vbuckets=VBUCKETS) as cluster:
        over = threading.Event()
        durable = DurableWriter(cluster, 0, over)
        loose = [LooseWriter(cluster, number, over) for number in (1, 2)]
        with Mirror(cluster.source, tmp_path / "documents") as mirror:
            with writing([durable, *loose], over):
                lose_what_was_mirrored(cluster, mirror)
                end = time.monotonic() + SECONDS
                while time.monotonic() < end:
                    strike(cluster, mirror, chance)
                    time.sleep(chance.uniform(0, 0.5))
                heal(cluster)
            assert_kept(cluster, [durable])
            assert_copies_equal(cluster, PATIENCE * 2)
            wanted = documents_of(cluster, [*map(loose_key, range(KEYS)), *durable.promised])
            assert b"lost" not in wanted
            log.info("healed; the mirror must get %d documents", len(wanted))
            mirror.becomes_equal(wanted)
            found = mirror.stop()
        assert found == {
            "equal": len(wanted), "differing": 0, "changed_later": 0, "incomparable": []
        }  # fmt: skip
