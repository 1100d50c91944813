"""A reader of its own process behind a network that fails, killed again and again."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from storekit import split
from waiting import until

from upriver.testing import ChaosProxy, Faults, TemporaryProducer
from upriver.wire import canonical

VBUCKETS = 4
READER = Path(__file__).parent / "chaos_reader.py"
#: Longer when somebody has the time.
ROUNDS = int(os.environ.get("UPRIVER_CHAOS_ROUNDS", "8"))
SEED = int(os.environ.get("UPRIVER_CHAOS_SEED", "1"))
#: Never reached when all is well.
PATIENCE = 300.0


class Told:
    """What the reader was told, line by line, and whether it was told right."""

    def __init__(self, output: Path) -> None:
        self.rows: dict[int, list[tuple[int, str, str]]] = {vb: [] for vb in range(VBUCKETS)}
        for line in output.read_text().splitlines():
            vbucket, seqno, *change = json.loads(line)
            if change:
                last = self.rows[vbucket][-1][0] if self.rows[vbucket] else 0
                assert seqno > last, f"seqno {seqno} of vbucket {vbucket} came after {last}"
                self.rows[vbucket].append((seqno, *change))
            else:
                self.rows[vbucket] = [row for row in self.rows[vbucket] if row[0] <= seqno]

    def documents(self) -> dict[str, str]:
        return {key: value for rows in self.rows.values() for _, key, value in rows}


def until_equal(output: Path, state: Path, wanted: dict[str, str]) -> None:
    """Waits until the reader has everything; fails with what is missing."""

    def found() -> dict[str, str]:
        size = json.loads(state.read_text())["size"] if state.exists() else 0
        return Told(output).documents() if size == output.stat().st_size else {}

    until(
        lambda: found() == wanted,
        what=lambda: f"{len(found())} documents instead of {len(wanted)}",
    )


def documents(producer: TemporaryProducer) -> dict[str, str]:
    found: dict[str, str] = {}
    for vbucket in range(VBUCKETS):
        with producer.bucket.open_reader(vbucket, 0) as reader:
            for chunk in reader:
                for change in map(canonical.parse, split(chunk.frames)):
                    found[change.key.decode()] = change.value.decode()
    return found


def write_some(producer: TemporaryProducer, chance: random.Random) -> None:
    for _ in range(chance.randrange(20, 80)):
        key = f"k{chance.randrange(400)}"
        producer.write(key.encode(), b"%d" % chance.randrange(10**9))


def fail_over_some(producer: TemporaryProducer, chance: random.Random) -> None:
    vbucket = chance.randrange(VBUCKETS)
    high = producer.bucket.vbucket_stats(vbucket).high_seqno
    producer.fail_over(vbucket, max(0, high - chance.randrange(30)))


@pytest.mark.parametrize("seed", [pytest.param(SEED, marks=pytest.mark.story), SEED + 1])
def test_nothing_is_lost_and_nothing_comes_twice(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    output, state = tmp_path / "output", tmp_path / "state"
    with (
        ChaosProxy(seed=seed) as proxy,
        TemporaryProducer(vbuckets=VBUCKETS, advertise=(proxy.host, proxy.port)) as producer,
    ):
        proxy.target = producer.host, producer.port
        proxy.to_client.faults = Faults(
            cut_every=60_000, truncate_every=90_000, corrupt_every=50_000, fragment=3_000
        )
        command = [sys.executable, str(READER), producer.source, str(output), str(state)]
        for _ in range(ROUNDS):
            reader = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            try:
                for _ in range(chance.randrange(5, 20)):
                    write_some(producer, chance)
                    if chance.random() < 0.1:
                        fail_over_some(producer, chance)
                    time.sleep(chance.uniform(0, 0.15))
            finally:
                os.kill(reader.pid, signal.SIGKILL)
                reader.wait()
        reader = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            until_equal(output, state, documents(producer))
        finally:
            reader.kill()
            reader.wait()
        assert proxy.counts.corruptions, proxy.counts
