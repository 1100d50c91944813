"""Tables: first loads, small updates on tables of two sizes, a trickle, and many batches.

    python benchmarks/tables.py [--docs 1000000] [--quick] [--only loads|updates|histories|batches]

The first load reads a recorded stream, beside Spark writing the same rows from Parquet to Parquet,
twice: Java is several times as fast once it has compiled what runs often.
Updates come from a producer in a process of its own, to a mirror and to a history; every batch of
them is 10,000 documents chosen at random, and its time is what the pipeline itself records. CPU
seconds are those of the driver, of Java and of the Python workers together, since wall time depends
on who else is busy.
Then changes trickle in, 100 a second, and the time from a write's answer to its row in a commit is
told. The batches are 500 of up to 1,000 updates each, with what the table takes on disk, and 1,000
commits of one change, after which the table is opened. They have no Spark, which makes no
difference to the files.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from machine import machine_line, require_rows
from processes import own_cpu, peak_mib
from producer import VALUE, fill, key, serving, vbucket_of
from pyspark.sql import SparkSession
from replay import replaying

from upriver.consumer.transport.access import Access
from upriver.consumer.transport.blocking_connection import BlockingConnection
from upriver.consumer.transport.connection_string import Source
from upriver.files.storage import Storage
from upriver.session.conversation import single
from upriver.spark import session
from upriver.spark.pipelines import changelog, history, mirror
from upriver.spark.verify_table import verify
from upriver.tables.executors import ThisProcess
from upriver.tables.format.delta_log import log_versions, read_snapshot
from upriver.tables.pipeline import Pipeline
from upriver.tables.pipeline_settings import PipelineSettings
from upriver.tables.pipeline_start import place_of, start_pipeline
from upriver.testing import TemporaryProducer
from upriver.wire import kv_messages as kv
from upriver.wire.protocol_enums import Feature

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
        copied = spark.read.parquet(str(scratch / "copy")).count()
        require_rows(copied, documents, "Spark's own copy")
        show("Parquet to Parquet, Spark itself", documents, itself)
        for name, kind in (("change log", changelog), ("mirror", mirror)):
            started = time.perf_counter()
            pipeline = kind(spark, source=source, table=scratch / name.replace(" ", "_"), once=True)
            pipeline.wait()
            seconds = time.perf_counter() - started
            require_rows(pipeline.status().rows, documents, name)
            show(name, documents, seconds, f", {itself / seconds:.0%} of Spark's own copy")


def until_caught_up(pipeline: Pipeline) -> None:
    while pipeline.lag() != 0:
        if pipeline.wait(0.02):
            raise SystemExit(f"the pipeline ended: {pipeline.status()}")


def trickle(pipeline: Pipeline, source: str, documents: int, seconds: int) -> str:
    """Writes 100 documents a second; how long each took from its answer to its commit."""
    chance = random.Random(6)
    waiting: list[tuple[float, int, int]] = []
    delays: list[float] = []

    def seen() -> None:
        shown, now = pipeline._meter.shown, time.perf_counter()
        for one in list(waiting):
            answered, vbucket, seqno = one
            if shown is not None and shown.at(vbucket).seqno >= seqno:
                delays.append(now - answered)
                waiting.remove(one)

    features = (Feature.MUTATION_SEQNO,)
    place = Source.parse(source)
    with BlockingConnection(place.hosts[0], place, Access(), features=features) as link:
        began = time.perf_counter()
        for number in range(100 * seconds):
            name = key(chance.randrange(documents))
            done = link.ask(kv.Set(key=name, vbucket=vbucket_of(name), value=VALUE))
            assert isinstance(done, kv.MutationResponse)
            assert done.seqno is not None
            waiting.append((time.perf_counter(), vbucket_of(name), done.seqno))
            while (left := began + number / 100 - time.perf_counter()) > 0:
                time.sleep(min(left, 0.005))
                seen()
            seen()
        while waiting:
            time.sleep(0.005)
            seen()
    delays.sort()
    return (
        f"  100 changes a second for {seconds} s: p50 {delays[len(delays) // 2]:.2f} s, "
        f"p99 {delays[int(len(delays) * 0.99)]:.2f} s from the answer to the commit"
    )


def updates(
    spark: SparkSession,
    documents: int,
    batches: int,
    scratch: Path,
    start: Callable[..., Pipeline] = mirror,
) -> None:
    kind = start.__name__
    print(f"batches of {UPDATES:,} random updates on a {kind} of {documents:,} documents:")
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
            table = scratch / f"{kind}{documents}"
            start(spark, source=text, table=table, once=True).wait()
            Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
            times, used = [], []
            place = Source.parse(text)
            with BlockingConnection(place.hosts[0], place, Access()) as link:
                for _ in range(batches):
                    names = [key(chance.randrange(documents)) for _ in range(UPDATES)]
                    for at in range(0, UPDATES, 500):
                        some = names[at : at + 500]
                        sets = [kv.Set(key=n, vbucket=vbucket_of(n), value=VALUE) for n in some]
                        link.run_all(map(single, sets))
                    cpu = own_cpu()
                    pipeline = start(spark, source=text, table=table, once=True)
                    pipeline.wait()
                    used.append(own_cpu() - cpu)
                    last = pipeline.status().last
                    assert last is not None
                    times.append(last.seconds)
            pipeline = start(spark, source=text, table=table)
            until_caught_up(pipeline)
            slow = trickle(pipeline, text, documents, 2 * batches)
            pipeline.stop()
            memory = peak_mib()
            compared = verify(spark, source=text, table=str(table))
            assert not compared.differing, compared
    print(
        f"  {statistics.median(times):.2f} s a batch (median), {max(times):.2f} s the longest; "
        f"{statistics.median(used):.2f} CPU s with starting the pipeline; "
        f"{memory:.0f} MiB peak of the driver's Python; verified equal",
        flush=True,
    )
    print(slow, flush=True)


def sizes(table: Path) -> dict[str, int]:
    """Bytes of data, of deletion vectors, of indexes and of the log."""
    found = {"data": 0, "vectors": 0, "indexes": 0, "log": 0}
    kinds = {"_delta_log": "log", "_dv": "vectors", "_upriver": "indexes"}
    for path in table.rglob("*"):
        if path.is_file():
            found[kinds.get(path.relative_to(table).parts[0], "data")] += path.stat().st_size
    return found


def many_batches(documents: int, batches: int, scratch: Path, keep: str) -> None:
    """What a table takes on disk, batch after batch; and how long opening it takes."""
    print(f"{batches} batches of up to 1,000 random updates on {documents:,} documents, {keep}:")
    table = scratch / f"batches {keep}"
    chance = random.Random(7)
    with TemporaryProducer(vbuckets=64) as producer:

        def write(numbers: Iterable[int]) -> None:
            for number in numbers:
                producer.write(b"k%d" % number, chance.randbytes(100).hex().encode(), number % 64)

        write(range(documents))
        options = {"keep_versions": keep, "keep_versions_size": "50m"}
        settings = PipelineSettings.parse("mirror", producer.source, options)
        pipeline = start_pipeline(ThisProcess(), settings, place_of(table, settings))
        until_caught_up(pipeline)
        for goal in (1, batches // 10, *range(batches // 5, batches + 1, batches // 5)):
            while pipeline.status().batches < goal:
                write(chance.randrange(documents) for _ in range(1000))
                until_caught_up(pipeline)
            held = sizes(table)
            told = ", ".join(f"{name} {size / 2**20:.1f}" for name, size in held.items())
            total = sum(held.values()) / 2**20
            print(f"  after {goal:4} batches: {total:6.1f} MiB ({told})", flush=True)
        pipeline.stop()
    opening(table)


def many_commits(commits: int, scratch: Path) -> None:
    print(f"{commits:,} commits of a change each to 1,024 vbuckets:")
    table = scratch / "commits"
    with TemporaryProducer(vbuckets=1024) as producer:
        for vbucket in range(1024):
            producer.write(b"first", b"1", vbucket)
        settings = PipelineSettings.parse("mirror", producer.source, {})
        pipeline = start_pipeline(ThisProcess(), settings, place_of(table, settings))
        until_caught_up(pipeline)
        for number in range(commits):
            producer.write(b"first", b"%d" % number, number % 1024)
            until_caught_up(pipeline)
        pipeline.stop()
    held = sizes(table)
    print("  " + ", ".join(f"{name} {size / 2**20:.1f} MiB" for name, size in held.items()))
    opening(table)


def opening(table: Path) -> None:
    storage = Storage.parse(table)
    commits = len(log_versions(storage)[0])
    began, cpu = time.perf_counter(), time.process_time()
    snapshot = read_snapshot(storage)
    assert snapshot is not None
    print(
        f"  opened at version {snapshot.version} with {commits} commits in its log: "
        f"{time.perf_counter() - began:.2f} s, {time.process_time() - cpu:.2f} CPU s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--only", choices=("loads", "updates", "histories", "batches"))
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    options = parser.parse_args()
    documents = options.docs // (10 if options.quick else 1)
    batches = max(3, options.batches // (5 if options.quick else 1))
    print(machine_line("pyspark", "deltalake", "pyarrow"))
    scratch = Path(tempfile.mkdtemp(prefix="upriver-tables-"))
    try:
        if options.only in (None, "batches"):
            count = 50 if options.quick else 500
            for keep in ("0s", "24h"):
                many_batches(documents // 20, count, scratch, keep)
            many_commits(100 if options.quick else 1000, scratch)
        if options.only == "batches":
            return
        spark = session("benchmark", master="local[2]")
        spark.sparkContext.setLogLevel("OFF")
        if options.only in (None, "loads"):
            first_loads(spark, documents, scratch / "cold", "in a Spark that has just started")
            first_loads(spark, documents, scratch / "warm", "in the same Spark again")
        for name, start in (("updates", mirror), ("histories", history)):
            if options.only in (None, name):
                updates(spark, documents, batches, scratch, start)
                updates(spark, 4 * documents, max(3, batches // 4), scratch, start)
        spark.stop()
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
