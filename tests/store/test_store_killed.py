"""kill -9 at any moment: nothing acknowledged is lost, and everything still agrees."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from storekit import dump

from upriver.store import Bucket, CompletionKind, Store, SyncMode
from upriver.wire import messages as m

WRITER = Path(__file__).with_name("killed_writer.py")
VBUCKETS = 4


@dataclass
class Acknowledged:
    """What killed writers said that they had been told."""

    #: The newest change of each key, by vbucket and key: seqno, CAS and value.
    newest: dict[tuple[int, bytes], tuple[int, int, bytes | None]] = field(default_factory=dict)
    seqnos: list[set[int]] = field(default_factory=lambda: [set() for _ in range(VBUCKETS)])
    groups: int = 0
    #: The durable writes that were prepared and not completed, by vbucket and key: their seqnos.
    prepared: dict[tuple[int, bytes], int] = field(default_factory=dict)

    def read(self, lines: list[str]) -> None:
        for line in lines:
            if not line.endswith("\n"):
                continue  # the kill cut it off, so nobody read it
            parts = line.split()
            if len(parts) == 1:
                self.groups += parts == ["group"]
                continue
            if parts[0] in ("prepared", "completed"):
                where = int(parts[1]), bytes.fromhex(parts[2])
                if parts[0] == "prepared":
                    self.prepared[where] = int(parts[3])
                else:
                    self.prepared.pop(where, None)
                continue
            vbucket, seqno, cas = map(int, parts[:3])
            value = None if parts[4:] == ["-"] else bytes.fromhex("".join(parts[4:]))
            assert seqno not in self.seqnos[vbucket], "a seqno was given out twice"
            self.seqnos[vbucket].add(seqno)
            self.newest[vbucket, bytes.fromhex(parts[3])] = (seqno, cas, value)


def run_and_kill(
    directory: Path, seed: int, durability: SyncMode, draw: random.Random
) -> list[str]:
    """Starts a writer, kills it after a random number of lines or moments, returns its lines."""
    process = subprocess.Popen(
        [sys.executable, str(WRITER), str(directory), str(seed), durability.value],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = [process.stdout.readline()]
    assert lines == ["open\n"]
    # The moment is within a write, a compaction or between: some by time, some by progress.
    killer = threading.Timer(draw.uniform(0.001, 0.15), process.kill)
    killer.start()
    lines += process.stdout.readlines()
    killer.join()
    process.wait()
    process.stdout.close()
    return lines


def check(bucket: Bucket, told: Acknowledged) -> None:
    assert bucket.verify() == []
    for vbucket in range(VBUCKETS):
        here = {
            b"\0" + message.key: message
            for message in dump(bucket, vbucket)
            if isinstance(message, m.Mutation | m.Deletion)
        }
        high = bucket.vbucket_stats(vbucket).high_seqno
        assert high >= max(told.seqnos[vbucket], default=0)
        for (where, name), (seqno, cas, value) in told.newest.items():
            if where != vbucket:
                continue
            message = here[name]
            assert message.seqno >= seqno
            if message.seqno == seqno:  # else a change that nobody was told of came later
                assert message.cas == cas
                assert (message.value if value is not None else None) == value
        floor = bucket.vbucket_stats(vbucket).history_floor
        for (where, name), seqno in list(told.prepared.items()):
            if where == vbucket:
                kind = bucket.completion(vbucket, name, seqno).kind
                assert kind is not CompletionKind.UNKNOWN or floor > seqno
                if kind is not CompletionKind.PENDING:
                    del told.prepared[where, name]  # completed, which nobody was told
        # What was done but not told is known now: it counts as given out, too.
        told.seqnos[vbucket].update(range(1, high + 1))


@pytest.mark.parametrize(
    ("durability", "kills"),
    [(SyncMode.DURABLE, 50), pytest.param(SyncMode.RELAXED, 10, marks=pytest.mark.story)],
)
def test_a_killed_writer_loses_nothing(tmp_path: Path, durability: SyncMode, kills: int) -> None:
    """A kill leaves the operating system alive, so even a relaxed bucket loses nothing."""
    draw = random.Random(20)
    told = Acknowledged()
    branches = 1
    for kill in range(kills):
        told.read(run_and_kill(tmp_path, kill, durability, draw))
        with Store(tmp_path) as store:
            bucket = store.bucket("b")
            check(bucket, told)
            branches = len(bucket.failover_log(0))
    assert told.groups > kills
    assert (branches == 1) == (durability is SyncMode.DURABLE)
