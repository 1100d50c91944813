"""What a task costs: rows a second and per CPU second, and memory, with 1, 2 and 4 tasks at once.

    python benchmarks/sizing.py [--docs 1000000] [--quick]

Each number of tasks has a Spark of its own with as many slots. The sender is a process beside it,
which replays a recorded stream; its processor time is not counted. CPU seconds are those of the
driver, of Java and of the Python workers. The memory of a task is the largest resident memory of a
Python worker; that of Java is shown beside it. Each figure is of the second of two runs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from machine import machine_line, require_rows
from processes import family, own_cpu, resident_mib
from pyspark.sql import SparkSession
from replay import replaying

from upriver.spark import mirror, session

TASKS = (1, 2, 4)
VBUCKETS = 64


class Processes:
    """The processes of this one and below it."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self.worker_mib = 0.0
        self.java_mib = 0.0
        self._watcher = threading.Thread(target=self._watch)

    def __enter__(self) -> Processes:
        self._before = own_cpu()
        self._watcher.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop.set()
        self._watcher.join()
        self.cpu = own_cpu() - self._before

    def _watch(self) -> None:
        while not self._stop.wait(0.05):
            for process in family():
                if process.kind == "worker":
                    self.worker_mib = max(self.worker_mib, resident_mib(process.pid))
                elif process.kind == "java":
                    self.java_mib = max(self.java_mib, resident_mib(process.pid))


def measured(name: str, tasks: int, documents: int, job: Callable[[], None]) -> None:
    job()
    with Processes() as processes:
        started = time.perf_counter()
        job()
        seconds = time.perf_counter() - started
    print(
        f"  {name:14} {tasks} task{'s' if tasks > 1 else ' '} {documents / seconds:11,.0f} rows/s "
        f"{documents / processes.cpu:11,.0f} rows/CPU s, {processes.worker_mib:5.0f} MiB a worker, "
        f"{processes.java_mib:6.0f} MiB Java",
        flush=True,
    )


def with_tasks(tasks: int, documents: int, source: str) -> None:
    """The figures of one number of tasks, in a process of its own."""
    spark = session("sizing", master=f"local[{tasks}]", config={"spark.log.level": "ERROR"})
    scratch = Path(tempfile.mkdtemp(prefix="upriver-sizing-"))
    options = {"minPartitions": str(tasks), "numPartitions": str(tasks)}
    try:
        frame = spark.read.format("dcp").options(**options).load(source)
        assert frame.rdd.getNumPartitions() == tasks
        require_rows(frame.count(), documents, "read to noop")
        measured(
            "read to noop",
            tasks,
            documents,
            lambda: frame.write.format("noop").mode("overwrite").save(),
        )
        measured(
            "first mirror",
            tasks,
            documents,
            lambda: _mirror(spark, source, scratch, tasks, documents),
        )
    finally:
        spark.stop()
        shutil.rmtree(scratch)


def _mirror(spark: SparkSession, source: str, scratch: Path, tasks: int, documents: int) -> None:
    table = Path(tempfile.mkdtemp(dir=scratch))
    pipeline = mirror(
        spark,
        source=source,
        table=table,
        once=True,
        min_partitions=tasks,
        num_partitions=tasks,
    )
    pipeline.wait()
    require_rows(pipeline.status().rows, documents, "first mirror")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", type=int, default=1_000_000)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    parser.add_argument("--tasks", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--source", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.tasks:
        with_tasks(options.tasks, options.docs, options.source)
        return
    documents = options.docs // (10 if options.quick else 1)
    print(machine_line("pyspark", "pyarrow", "numpy"))
    print(f"load before: {os.getloadavg()[0]:.1f}; {documents:,} documents of 200 B:", flush=True)
    with replaying(VBUCKETS, documents) as port:
        source = f"couchbase://127.0.0.1:{port}/default"
        for tasks in TASKS:
            subprocess.run(
                [
                    sys.executable,
                    __file__,
                    f"--docs={documents}",
                    f"--tasks={tasks}",
                    "--source",
                    source,
                ],
                check=True,
            )


if __name__ == "__main__":
    main()
