"""How soon a write is in Spark, by sink and trigger, and where a small micro-batch's time goes.

    python benchmarks/latency.py [--writes 40] [--bursts 40] [--only micro|visible]

The producer, with 1,024 vbuckets, is a process of its own. A micro-batch has up to 100 rows in
almost as many vbuckets; beside it, in the same session, Spark's own `rate-micro-batch` source with
100 rows in one partition, and a Python source that has its 100 rows ready. CPU is of all processes
of a kind, for each batch. A write is seen in `foreachBatch` when the function is called; in a
Parquet sink when the sink's log names its batch; in a mirror when the table's log has the commit.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from machine import machine_line
from processes import family
from producer import fill, key, serving, vbucket_of
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery

from upriver.consumer.transport.access import Access
from upriver.consumer.transport.blocking_connection import BlockingConnection
from upriver.consumer.transport.connection_string import Source
from upriver.session.conversation import single
from upriver.spark import session
from upriver.spark.pipelines import mirror
from upriver.tables.pipeline import Pipeline
from upriver.wire import kv_messages as kv

ROWS = 100
#: Bursts at the beginning of each query that are not counted.
WARM = 10
TURNS = 3
#: Seconds between two bursts.
EVERY = 0.25
#: Seconds for anything to be seen, on a machine with much else to do.
PATIENCE = 120.0
PARTS = ("latestOffset", "walCommit", "queryPlanning", "getBatch", "addBatch", "commitOffsets")
TRIGGERS: dict[str, dict[str, Any]] = {
    "as soon as possible": {},
    "100 ms": {"processingTime": "100 milliseconds"},
    "1 s": {"processingTime": "1 second"},
}


class ReadySource(DataSource):
    """A hundred rows that are there, in every batch: what Python sources cost at the least."""

    @classmethod
    def name(cls) -> str:
        return "ready_rows"

    def schema(self) -> str:
        return "id bigint, value binary"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return ReadyReader()


class ReadyReader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"n": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802
        return {"n": start["n"] + 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(start["n"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        ids = pa.array(range(ROWS), pa.int64())
        yield pa.RecordBatch.from_arrays([ids, pa.array([b"{}"] * ROWS)], names=["id", "value"])

    def commit(self, end: dict[str, int]) -> None:
        pass


def cpu_by_kind() -> Counter[str]:
    """Processor milliseconds of Java, Python processes beside it, and the producer."""
    used: Counter[str] = Counter()
    for process in family()[1:]:
        kind = "python" if process.kind == "worker" else process.kind
        used[kind] += round(process.cpu * 1000)
    return used


class Batches(StreamingQueryListener):
    """What Spark says of batches that had rows, each once: asking for it would cost far more.

    The offsets of 1,024 vbuckets are 150 KB of each report.
    """

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query.id
        self.rows: list[int] = []
        self.took: list[dict[str, int]] = []

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        # the last batches of a query are reported after the next one has begun
        if str(event.progress.id) == self._query and event.progress.numInputRows:
            self.took.append(dict(event.progress.durationMs))
            self.rows.append(event.progress.numInputRows)

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        pass

    def have(self, rows: int) -> bool:
        return sum(self.rows) >= rows


def until(condition: Callable[[], Any], pause: float = 0.001) -> float:
    """Waits for something and tells when it was."""
    deadline = time.perf_counter() + PATIENCE
    while not condition():
        if time.perf_counter() > deadline:
            raise SystemExit("it is not seen")
        time.sleep(pause)
    return time.perf_counter()


class Writer:
    """Writes documents, each time others."""

    def __init__(self, source: str) -> None:
        place = Source.parse(source)
        self._link = BlockingConnection(place.hosts[0], place, Access())
        self._number = 0

    def write(self, count: int) -> float:
        """Writes some at once; when the last answer came."""
        names = [key(self._number + n) for n in range(count)]
        self._number = (self._number + count) % 10_000
        self._link.run_all(
            single(kv.Set(key=name, vbucket=vbucket_of(name), value=b"{}")) for name in names
        )
        return time.perf_counter()

    def close(self) -> None:
        self._link.close()


def show_batches(name: str, took: list[dict[str, int]], rows: int, cpu: Counter[str]) -> None:
    parts = {part: statistics.median(one.get(part, 0) for one in took) for part in PARTS}
    whole = sorted(one["triggerExecution"] for one in took)
    print(
        f"  {name}: p50 {whole[len(whole) // 2]} ms, p99 {whole[int(len(whole) * 0.99)]} ms, "
        f"{len(whole)} batches of {rows / len(whole):.0f} rows"
    )
    print("    " + ", ".join(f"{part} {ms:.0f}" for part, ms in parts.items()) + " ms")
    each = ", ".join(f"{kind} {ms / len(whole):.0f}" for kind, ms in cpu.items())
    print(f"    CPU ms a batch: {each}", flush=True)


def micro_batches(spark: SparkSession, source: str, scratch: Path, bursts: int) -> None:
    """Small batches to noop, one every 250 ms: in turns, as Java gets quicker all the time.

    Their rows are there when they begin: the next part measures how soon they are.
    """
    spark.dataSource.register(ReadySource)
    writer = Writer(source)
    stream = spark.readStream.format("dcp").option("startingOffsets", "latest")
    # a plan that waits for changes would count its waiting as part of the batch
    stream = stream.option("longPoll", "0")
    frames = {
        "Spark's rate-micro-batch": spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", ROWS)
        .option("numPartitions", 1)
        .load(),
        "a Python source, rows ready": spark.readStream.format("ready_rows").load(),
        "dcp, readAhead=0": stream.option("readAhead", "0").load(source),
        "dcp": stream.option("readAhead", "1000").load(source),
    }
    for turn in range(TURNS):
        for name, frame in frames.items():
            writing = frame.writeStream.format("noop")
            writing = writing.option("checkpointLocation", tempfile.mkdtemp(dir=scratch))
            query = writing.trigger(processingTime=f"{EVERY} seconds").start()
            batches = Batches(query)
            spark.streams.addListener(batches)
            until(partial(getattr, query, "lastProgress"))
            for burst in range(bursts + WARM):
                if burst == WARM:
                    used, first = cpu_by_kind(), len(batches.rows)
                if name.startswith("dcp"):
                    writer.write(ROWS)
                until(partial(batches.have, ROWS * (burst + 1)))
            used = cpu_by_kind() - used
            query.stop()
            spark.streams.removeListener(batches)
            if turn == TURNS - 1:
                show_batches(name, batches.took[first:], sum(batches.rows[first:]), used)
    writer.close()


def delays(writer: Writer, writes: int, see: Callable[[], Callable[[], Any]]) -> list[float]:
    """Milliseconds from a write's answer until it is seen, in order."""
    chance, found = random.Random(1), []
    for number in range(writes + 3):
        time.sleep(chance.uniform(0.3, 1.3))  # at any moment between two triggers
        is_seen = see()
        answered = writer.write(1)
        seen = until(is_seen)
        if number >= 3:
            found.append((seen - answered) * 1000)
    return sorted(found)


def show(name: str, found: list[float]) -> None:
    p50, p99 = found[len(found) // 2], found[int(len(found) * 0.99)]
    print(f"  {name:42} p50 {p50:6.0f} ms, p99 {p99:6.0f} ms", flush=True)


def visible(spark: SparkSession, source: str, scratch: Path, writes: int) -> None:
    """How soon single writes are seen."""
    writer = Writer(source)
    stream = spark.readStream.format("dcp").option("startingOffsets", "latest").load(source)
    for trigger, how in TRIGGERS.items():
        place = Path(tempfile.mkdtemp(dir=scratch))
        seen: list[float] = []

        def note(frame: DataFrame, batch: int, seen: list[float] = seen) -> None:
            seen.append(time.perf_counter())
            frame.count()

        writing = stream.writeStream.foreachBatch(note).option("checkpointLocation", f"{place}/a")
        query = (writing.trigger(**how) if how else writing).start()
        until(seen.__len__)

        def called(seen: list[float] = seen) -> Callable[[], Any]:
            before = len(seen)
            return lambda: len(seen) > before

        show(f"foreachBatch, {trigger}", delays(writer, writes, called))
        query.stop()

        rows = place / "rows"
        writing = stream.writeStream.format("parquet").option("path", str(rows))
        writing = writing.option("checkpointLocation", f"{place}/b")
        query = (writing.trigger(**how) if how else writing).start()
        show(
            f"Parquet sink, {trigger}", delays(writer, writes, _new_file(rows / "_spark_metadata"))
        )
        query.stop()

        table = place / "table"
        wait = {"1 s": "1s", "100 ms": "100ms"}.get(trigger, "0s")
        pipeline = mirror(spark, source=source, table=table, trigger=wait)
        until(partial(is_caught_up, pipeline), 0.1)
        show(f"mirror, {trigger}", delays(writer, writes, _new_file(table / "_delta_log")))
        pipeline.stop()
    writer.close()


def is_caught_up(pipeline: Pipeline) -> bool:
    return pipeline.lag() == 0


def _new_file(directory: Path) -> Callable[[], Callable[[], Any]]:
    """Whether a log has an entry that it did not have."""

    def entries() -> set[str]:
        try:
            return {name for name in os.listdir(directory) if name[0] not in "._"}
        except OSError:
            return set()

    def see() -> Callable[[], Any]:
        before = entries()
        return lambda: entries() - before

    return see


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--writes", type=int, default=40)
    parser.add_argument("--bursts", type=int, default=40)
    parser.add_argument("--only", choices=("micro", "visible"))
    options = parser.parse_args()
    print(machine_line("pyspark", "pyarrow"))
    spark = session("benchmark", master="local[2]", config={"spark.log.level": "OFF"})
    scratch = Path(tempfile.mkdtemp(prefix="upriver-latency-"))
    try:
        fill(scratch / "data", 10_000)
        with serving(scratch / "data") as (port, _):
            source = f"couchbase://127.0.0.1:{port}/default"
            if options.only != "visible":
                print("micro-batches to noop:")
                micro_batches(spark, source, scratch, options.bursts)
            if options.only != "micro":
                print("from a write's answer until it is seen:")
                visible(spark, source, scratch, options.writes)
            print("load average at the end:", *(f"{one:.1f}" for one in os.getloadavg()[:2]))
    finally:
        spark.stop()
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
