"""Drivers and workers that are killed while others write: the table is equal each time.

``UPRIVER_KILLS`` says how many drivers are killed; `make kills` kills a hundred.
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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from storekit_s3 import BUCKET, s3_server
from tablekit import PATIENCE, caught_up, rows_of

from upriver.errors import UpriverError
from upriver.files.storage import Storage
from upriver.spark.pipelines import mirror
from upriver.spark.verify_table import Comparison, verify
from upriver.tables.commit_state import TableState
from upriver.tables.format.delta_log import STATE, log_versions, read_commit
from upriver.testing import TemporaryProducer

log = logging.getLogger("kills")

PROGRAM = Path(__file__).with_name("killed_driver.py")
KILLS = int(os.environ.get("UPRIVER_KILLS", "4"))
SEED = int(os.environ.get("UPRIVER_CHAOS_SEED", "1"))
VBUCKETS = 8
KEYS = 1000
#: What a driver can have done last; None is any moment.
STEPS = (
    *("commit", None, "compaction files", "files", "read", "compaction commit"),
    *("checkpoint", "vacuum"),
)
#: Of drivers, this one has Spark; the others do the tasks themselves, which starts sooner.
SPARK_EVERY = 7


@contextmanager
def writing(producer: TemporaryProducer, seed: int) -> Iterator[None]:
    """Somebody who writes and deletes the same documents all the time."""
    over = threading.Event()
    dice = random.Random(seed)

    def write() -> None:
        number = 0
        while not over.wait(0.01):
            number += 1
            name = dice.randrange(KEYS)
            key, vbucket = b"k%d" % name, name % VBUCKETS
            producer.write(key, b"%d" % number, vbucket)
            if dice.random() < 0.1:
                producer.delete(key, vbucket)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        over.set()
        writer.join()


def kill_a_driver(
    producer: TemporaryProducer,
    table: str,
    options: dict[str, Any],
    step: str | None,
    dice: random.Random,
    *more: str,
) -> None:
    """Runs a driver until it has killed itself, or kills it at any moment of its work."""
    wanted = [step or "", str(dice.randrange(1, 3))]
    driver = subprocess.Popen(
        [sys.executable, str(PROGRAM), producer.source, table, json.dumps(options), *wanted, *more],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        if step is None:
            assert driver.stdout is not None
            assert driver.stdout.readline(), "the driver ended by itself"
            time.sleep(dice.random())
            os.killpg(driver.pid, signal.SIGKILL)
        said, _ = driver.communicate(timeout=PATIENCE)
        assert driver.returncode == -signal.SIGKILL, said
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()


def batches_of(table: str, options: dict[str, str]) -> list[int]:
    """The numbers of the batches in the table's log, commit after commit."""
    storage = Storage.parse(table, options)
    found = []
    for version in log_versions(storage)[0]:
        for action in read_commit(storage, version) or ():
            info = action.get("commitInfo") or {}
            if info.get("operation") == "UPRIVER BATCH":
                found.append(TableState.of_text(info[STATE], table).batch)
    return found


@pytest.mark.parametrize("place", ["directory", "object store"])
def test_a_table_is_equal_after_every_kill(spark: SparkSession, tmp_path: Path, place: str) -> None:
    dice = random.Random(SEED)
    kills = KILLS // 2 if place == "directory" else KILLS - KILLS // 2
    with ExitStack() as stack:
        variables: dict[str, str] = {}
        table = str(tmp_path / "documents")
        if place == "object store":
            variables = stack.enter_context(s3_server())
            table = f"s3://{BUCKET}/documents"
        options: dict[str, Any] = {
            "groups": 4,
            "compact_every": 1,
            "keep_versions": dice.choice(["0s", "24h"]),
            "storage_options": variables,
        }
        producer = stack.enter_context(TemporaryProducer(vbuckets=VBUCKETS))

        def compared() -> Comparison:
            return verify(
                spark, source=producer.source, table=table, groups=4, storage_options=variables
            )

        steps = STEPS if place == "directory" else STEPS[::-1]
        with writing(producer, SEED):
            for number in range(kills):
                step = steps[number % len(steps)]
                more = ("spark",) if number % SPARK_EVERY == SPARK_EVERY - 1 else ()
                kill_a_driver(producer, table, options, step, dice, *more)
                found = compared()
                assert not found.differing, (number, step, found)
                log.info("%s: kill %d after %s: %d equal", place, number + 1, step, found.equal)
        caught_up(spark, producer, table, **options)
        found = compared()
        assert (found.verdict, found.changed_later) == ("equal", 0)
        assert found.equal == producer.bucket.stats().items == len(rows_of(table, variables))
        batches = batches_of(table, variables)
        assert batches == list(range(batches[0], batches[0] + len(batches)))


def workers(pid: int) -> list[int]:
    """The Python workers of the Spark that a process has started."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    return [
        worker
        for java in children.get(pid, ())
        for daemon in children.get(java, ())
        for worker in children.get(daemon, ())
    ]


def test_workers_may_die_at_any_moment(spark: SparkSession, tmp_path: Path) -> None:
    table = str(tmp_path / "documents")
    options: dict[str, Any] = {"groups": 4, "compact_every": 2}
    killed = failed = 0
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        with writing(producer, SEED):
            while killed < max(3, KILLS // 10):
                pipeline = mirror(spark, source=producer.source, table=table, **options)
                try:
                    while pipeline.status().batches < 2 and not pipeline.wait(0.01):
                        pass
                    for worker in workers(os.getpid()):
                        os.kill(worker, signal.SIGKILL)
                        killed += 1
                    pipeline.wait(0.5)
                except UpriverError:  # in local mode Spark tries a task once
                    failed += 1
                finally:
                    pipeline.stop()
        caught_up(spark, producer, table, **options)
        found = verify(spark, source=producer.source, table=table, groups=4)
        assert found.equal == producer.bucket.stats().items
        assert (found.verdict, found.changed_later) == ("equal", 0)
