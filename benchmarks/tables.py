"""Tables: the first load of change log and mirror, then small updates on mirrors of two sizes.

    python benchmarks/tables.py [--docs 1000000] [--quick]

The first load reads a recorded stream, beside Spark writing the same rows from Parquet to Parquet,
twice: Java is several times as fast once it has compiled what runs often.
Updates come from a producer in a process of its own; every batch of them is 10,000 documents
chosen at random, and its time is what the pipeline itself records. CPU seconds are those of the
driver, of Java and of the Python workers together, since wall time depends on who else is busy.
Then changes trickle in, 100 a second, and the time from a write's answer to its row in a commit is
told.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from machine import machine_line
from producer import VALUE, fill, key, serving, vbucket_of
from pyspark.sql import SparkSession
from replay import replaying

from upriver.consumer.transport.access import Access
from upriver.consumer.transport.blocking_connection import BlockingConnection
from upriver.consumer.transport.connection_string import Source
from upriver.session.conversation import single
from upriver.spark import session
from upriver.spark.tables.api import changelog, mirror
from upriver.spark.tables.pipeline import Pipeline
from upriver.spark.tables.verify import verify
from upriver.wire import kv

UPDATES = 10_000


def show(name: str, documents: int, seconds: float, beside: str = "") -> None:
    print(
        f"  {name:44} {documents / seconds:10,.0f} documents/s, {seconds:.1f} s{beside}", flush=True
    )


def first_loads(spark: SparkSession, documents: int, scratch: Path, when: str) -> None:
    print(f"first load of {documents:,} documents of 200 B from a recorded stream, {when}:")
    with replaying(64, documents) as port:
        source = f"couchbase://127.0.0.1:{port}/default"
        rows = spark.read.format("dcp").load(source)
        rows.write.parquet(str(scratch / "rows"))
        started = time.perf_counter()
        spark.read.parquet(str(scratch / "rows")).write.parquet(str(scratch / "copy"))
        itself = time.perf_counter() - started
        show("Parquet to Parquet, Spark itself", documents, itself)
        for name, kind in (("change log", changelog), ("mirror", mirror)):
            started = time.perf_counter()
            kind(spark, source=source, table=scratch / name.replace(" ", "_"), once=True).wait()
            seconds = time.perf_counter() - started
            show(name, documents, seconds, f", {itself / seconds:.0%} of Spark's own copy")


def until_caught_up(pipeline: Pipeline) -> None:
    while pipeline.lag() != 0:
        if pipeline.wait(0.02):
            raise SystemExit(f"the pipeline ended: {pipeline.status()}")


def peak_memory() -> float:
    """MiB that this process had at most since it was asked to begin anew."""
    (line,) = (
        line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line
    )
    return int(line.split()[1]) / 1024


def own_cpu() -> float:
    """CPU seconds of this process and of all that it has started, but for the producer."""
    children: dict[int, list[tuple[int, float, str]]] = {}
    ticks = os.sysconf("SC_CLK_TCK")
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            _, _, rest = (entry / "stat").read_text().rpartition(")")
            command = (entry / "cmdline").read_text()
        except OSError:
            continue
        fields = rest.split()
        used = sum(int(one) for one in fields[11:15]) / ticks
        children.setdefault(int(fields[1]), []).append((int(entry.name), used, command))
    total, waiting = time.process_time(), [os.getpid()]
    while waiting:
        for pid, used, command in children.get(waiting.pop(), ()):
            if "multiprocessing" not in command:
                total += used
                waiting.append(pid)
    return total


def trickle(pipeline: Pipeline, link: BlockingConnection, documents: int, count: int) -> str:
    """Writes one document after the other, and waits for the commit of each in between."""
    chance = random.Random(6)
    delays = []
    for _ in range(count):
        name = key(chance.randrange(documents))
        began = time.perf_counter()
        link.ask(kv.Set(key=name, vbucket=vbucket_of(name), value=VALUE))
        answered = time.perf_counter()
        until_caught_up(pipeline)
        delays.append(time.perf_counter() - answered)
        time.sleep(max(0.0, 0.01 - (time.perf_counter() - began)))
    delays.sort()
    return (
        f"  single changes: p50 {delays[len(delays) // 2]:.2f} s, "
        f"p99 {delays[int(len(delays) * 0.99)]:.2f} s from the answer to the commit"
    )


def updates(spark: SparkSession, documents: int, batches: int, scratch: Path) -> None:
    print(f"batches of {UPDATES:,} random updates on a mirror of {documents:,} documents:")
    chance = random.Random(5)
    with tempfile.TemporaryDirectory() as directory:
        # in a process of its own, so that its memory is not taken for the driver's
        filling = multiprocessing.get_context("spawn").Process(
            target=fill, args=(Path(directory), documents)
        )
        filling.start()
        filling.join()
        with serving(Path(directory)) as (port, _):
            text = f"couchbase://127.0.0.1:{port}/default"
            pipeline = mirror(spark, source=text, table=scratch / f"mirror{documents}")
            until_caught_up(pipeline)
            Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
            times, delays, used = [], [], []
            with BlockingConnection.open(Source.parse(text), Access()) as link:
                for _ in range(batches):
                    before = pipeline.status().batches
                    cpu = own_cpu()
                    names = [key(chance.randrange(documents)) for _ in range(UPDATES)]
                    for at in range(0, UPDATES, 500):
                        some = names[at : at + 500]
                        sets = [kv.Set(key=n, vbucket=vbucket_of(n), value=VALUE) for n in some]
                        link.run_all(map(single, sets))
                    written = time.perf_counter()
                    until_caught_up(pipeline)
                    delays.append(time.perf_counter() - written)
                    assert pipeline.status().batches > before
                    last = pipeline.status().last
                    assert last is not None
                    times.append(last.seconds)
                    used.append(own_cpu() - cpu)
                slow = trickle(pipeline, link, documents, 20 * batches)
            pipeline.stop()
            memory = peak_memory()
            compared = verify(spark, source=text, table=str(scratch / f"mirror{documents}"))
            assert not compared.differing, compared
    print(
        f"  {statistics.median(times):.2f} s a batch (median), {max(times):.2f} s the longest; "
        f"{statistics.median(used):.2f} CPU s with waiting and writing; "
        f"from the last write to all rows visible {statistics.median(delays):.2f} s; "
        f"{memory:.0f} MiB peak of the driver's Python; verified equal",
        flush=True,
    )
    print(slow, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    options = parser.parse_args()
    documents = options.docs // (10 if options.quick else 1)
    batches = max(3, options.batches // (5 if options.quick else 1))
    print(machine_line("pyspark", "deltalake", "pyarrow"))
    spark = session("benchmark", master="local[2]")
    spark.sparkContext.setLogLevel("OFF")
    scratch = Path(tempfile.mkdtemp(prefix="upriver-tables-"))
    try:
        first_loads(spark, documents, scratch / "cold", "in a Spark that has just started")
        first_loads(spark, documents, scratch / "warm", "in the same Spark again")
        updates(spark, documents, batches, scratch)
        updates(spark, 4 * documents, max(3, batches // 4), scratch)
    finally:
        spark.stop()
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
