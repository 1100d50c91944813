"""Clusters that have nothing of the driver but the network: the package comes as an archive.

Tables are in an object store, executors have an interpreter without Upriver, and workers and
executors are killed in the middle.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sparkclusters import Program, Standalone, archive, driver, executor_python, executors
from sparkkit import PATIENCE, documents, fill
from storekit_s3 import BUCKET, s3_server
from waiting import until

from upriver.testing import TemporaryProducer

VBUCKETS = 16


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What executors have: an interpreter, and what the driver sends them."""
    home = tmp_path_factory.mktemp("shipped")
    return {"python": str(executor_python(home / "python")), "archive": str(archive(home))}


@pytest.fixture(scope="module")
def store() -> Iterator[dict[str, Any]]:
    with s3_server() as variables:
        yield variables


@pytest.fixture
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        fill(producer, range(1000))
        yield producer


def keys(producer: TemporaryProducer) -> list[str]:
    return sorted(key.decode() for *_, key in documents(producer.bucket))


def equals(program: Program, producer: TemporaryProducer) -> None:
    program.order("once")
    found = program.order("verify")
    assert found == {"equal": len(documents(producer.bucket)), "differing": 0}


def executor_of(ancestor: int) -> int:
    """An executor that a process has started, which may take a while."""
    return until(lambda: executors(ancestor))[0]


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.release)])
def test_executors_have_the_package_from_an_archive_and_one_is_killed(
    producer: TemporaryProducer,
    store: dict[str, Any],
    shipped: dict[str, str],
    tmp_path: Path,
    count: int,
) -> None:
    given = {"source": producer.source, "table": f"s3://{BUCKET}/{count}", "storage": store}
    master = f"local-cluster[{count},1,1024]"
    with driver(tmp_path / "driver", master=master, **given, **shipped) as job:
        (found,) = job.order("implementation")
        assert found.startswith("numpy ")  # what is compiled cannot be loaded from an archive
        assert "upriver.zip" in found
        assert job.order("batch") == keys(producer)
        assert job.order("stream") == keys(producer)
        job.order("once")
        fill(producer, range(500, 1500), b'{"again":1}')
        os.kill(executor_of(job.pid), signal.SIGKILL)
        equals(job, producer)


@pytest.mark.release
def test_a_killed_executor_and_a_killed_worker_cost_nothing(
    producer: TemporaryProducer, store: dict[str, Any], shipped: dict[str, str], tmp_path: Path
) -> None:
    given = {"source": producer.source, "table": f"s3://{BUCKET}/standalone", "storage": store}
    with Standalone(tmp_path / "cluster") as cluster:
        first, second = cluster.add_worker(), cluster.add_worker()
        with driver(tmp_path / "driver", master=cluster.url, **given, **shipped) as job:
            assert job.order("batch") == keys(producer)
            assert job.order("stream") == keys(producer)
            job.order("start")
            more_batches(job, producer)
            os.kill(executor_of(first), signal.SIGKILL)
            more_batches(job, producer)
            cluster.kill(second)
            more_batches(job, producer)
            third = cluster.add_worker()
            executor_of(third)
            more_batches(job, producer)
            job.order("stop")
            equals(job, producer)


def more_batches(job: Program, producer: TemporaryProducer) -> None:
    """Writes until a running mirror has done some more batches."""
    before, deadline, number = job.order("batches"), time.monotonic() + PATIENCE, 0
    while job.order("batches") < before + 3:
        assert time.monotonic() < deadline, job.log
        number += 1
        fill(producer, range(number % 10 * 300, number % 10 * 300 + 300), b'{"n":%d}' % number)
        time.sleep(0.1)
