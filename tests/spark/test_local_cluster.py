"""Executors in processes of their own, a driver that is killed, a bucket that fails over meanwhile.

However it went, what the files hold must fold to exactly what the bucket holds.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from sparkkit import PATIENCE, documents, documents_of

from upriver.errors import StoreRefusal
from upriver.spark.functions.fold import fold
from upriver.testing import TemporaryProducer

PROGRAM = Path(__file__).with_name("stream_program.py")
#: Two workers with a core and a gibibyte each, all of them Java processes.
MASTER = "local-cluster[2,1,1024]"
#: How often the driver is killed; each time costs about the start of a Spark.
ROUNDS = int(os.environ.get("UPRIVER_KILL_ROUNDS", "2"))
SEED = int(os.environ.get("UPRIVER_KILL_SEED", "1"))
VBUCKETS = 8
KEYS = 400


class Program:
    """The program and its files, over all its lives."""

    def __init__(self, home: Path, source: str) -> None:
        self._source = source
        self.checkpoint = home / "checkpoint"
        self.output = home / "rows"
        self._log = home / "log"

    @contextmanager
    def running(self, *mode: str) -> Iterator[subprocess.Popen[bytes]]:
        """Runs it with all its processes in one group, which is killed at the end."""
        places = (self._source, str(self.checkpoint), str(self.output))
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, str(PROGRAM), MASTER, *places, *mode],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    @property
    def planned(self) -> int:
        """How many batches have been planned so far."""
        files = self.checkpoint.glob("offsets/*")
        return sum(file.name.isdecimal() for file in files)

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")[-5000:]


class Chaos:
    """Somebody who writes, deletes and fails over."""

    def __init__(self, producer: TemporaryProducer) -> None:
        self._producer = producer
        self._chance = random.Random(SEED)

    def strike(self) -> None:
        producer, chance = self._producer, self._chance
        for _ in range(20):
            key = b"key-%d" % chance.randrange(KEYS)
            if chance.random() < 0.2:
                with suppress(StoreRefusal):  # it may not be there
                    producer.delete(key)
            else:
                producer.write(key, b'{"number":%d}' % chance.randrange(10**9))
        if chance.random() < 0.15:
            vbucket = chance.randrange(VBUCKETS)
            high = producer.bucket.vbucket_stats(vbucket).high_seqno
            producer.fail_over(vbucket, max(0, high - chance.randrange(30)))

    def rage(self, seconds: float) -> None:
        """Strikes again and again for a while."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.strike()
            time.sleep(0.05)  # so that there are many batches and not one large one

    def moment(self) -> float:
        return self._chance.uniform(0.1, 4)


@pytest.mark.release
def test_a_driver_that_is_killed_again_and_again_has_every_document_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        program, chaos = Program(tmp_path, producer.source), Chaos(producer)
        for _ in range(100):
            chaos.strike()
        for _ in range(ROUNDS):
            before = program.planned
            with program.running() as process:
                give_up = time.monotonic() + PATIENCE
                while program.planned <= before:
                    assert process.poll() is None, program.log
                    assert time.monotonic() < give_up, program.log
                    chaos.rage(0.1)
                chaos.rage(chaos.moment())
                assert process.poll() is None, program.log
        chaos.rage(0.5)
        with program.running("drain") as process:
            assert process.wait(2 * PATIENCE) == 0, program.log
        rows = spark.read.parquet(str(program.output)).cache()
        assert documents_of(fold(rows)) == documents(producer.bucket)
        names = rows.select("op", "vbucket", "branch", "seqno")
        assert names.distinct().count() == names.count()
        assert rows.where("op = 'rollback'").count() > 0
        rows.unpersist()
