"""The Spark source in one run beside what Spark itself can do with the same rows.

    python benchmarks/spark.py [--docs 2000000] [--quick]

Senders are processes of their own, on the same cores as Spark (``local[2]``). Each figure is the
best of some rounds in a session that is warm.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from machine import machine_line, require_rows
from processes import family, resident_mib
from producer import fill, serving
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from replay import replaying

from upriver.consumer.topology.seqno_survey import Survey
from upriver.consumer.transport.access import Access
from upriver.consumer.transport.connection_string import Source
from upriver.spark import session

ROUNDS = 3


def best(documents: int, job: Callable[[], Any], rounds: int = ROUNDS) -> float:
    """Rows a second of the fastest round."""
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        job()
        times.append(time.perf_counter() - started)
    return documents / min(times)


def noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def show(name: str, rate: float, beside: str = "") -> None:
    print(f"  {name:52} {rate:12,.0f} rows/s{beside}", flush=True)


class TupleSource(DataSource):
    """The same changes row by row, as a source would be that knows no Arrow."""

    @classmethod
    def name(cls) -> str:
        return "dcp_tuples"

    def schema(self) -> str:
        return (
            "op string, vbucket int, seqno bigint, rev bigint, cas bigint, key binary, value binary"
        )

    def reader(self, schema: Any) -> DataSourceReader:
        return TupleReader(self.options["path"])


class TupleReader(DataSourceReader):
    def __init__(self, source: str) -> None:
        self._source = source

    def partitions(self) -> list[InputPartition]:
        with Survey(Source.parse(self._source), Access()) as survey:
            count = len(survey.map().vbuckets)
        return [InputPartition(list(range(half, count, 2))) for half in (0, 1)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        from upriver.consumer import Consumer

        vbuckets = frozenset(partition.value)
        with Consumer(self._source, end="now", vbuckets=vbuckets) as consumer:
            for c in consumer:
                yield c.op.value, c.vbucket, c.seqno, c.rev, c.cas, c.key, c.value


def batches(spark: SparkSession, source: str, documents: int, scratch: Path) -> None:
    """Everything that reads a recorded stream."""
    dcp = spark.read.format("dcp").load(source)
    parquet = scratch / "rows"
    require_rows(dcp.count(), documents, "recorded stream")
    dcp.write.parquet(str(parquet))
    rows = spark.read.parquet(str(parquet))
    require_rows(rows.count(), documents, "recorded stream to Parquet")
    spark_itself = best(documents, lambda: noop(rows))
    show("(a) Parquet to noop, Spark itself", spark_itself)
    ours = best(documents, lambda: noop(dcp))
    show("(b) recorded stream to noop", ours, f", {ours / spark_itself:.0%} of (a)")
    spark.dataSource.register(TupleSource)
    tuples = spark.read.format("dcp_tuples").load(source)
    slow = best(documents, lambda: noop(tuples), rounds=1)
    require_rows(tuples.count(), documents, "the same as tuples")
    show("(f) the same as tuples", slow, f", (b) is {ours / slow:.1f} times that")


def available_now(
    spark: SparkSession, source: str, sink: str, scratch: Path, documents: int
) -> None:
    place = Path(tempfile.mkdtemp(dir=scratch))
    stream = spark.readStream.format("dcp").load(source)
    writer = stream.writeStream.format(sink).option("checkpointLocation", str(place / "checkpoint"))
    if sink == "parquet":
        writer = writer.option("path", str(place / "rows"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    read = sum(progress.numInputRows for progress in query.recentProgress)
    require_rows(read, documents, f"stream to {sink}")
    shutil.rmtree(place)


def streams(spark: SparkSession, source: str, documents: int, scratch: Path) -> None:
    rate = best(documents, lambda: available_now(spark, source, "noop", scratch, documents))
    show("(d) stream, AvailableNow, to noop", rate)
    rate = best(documents, lambda: available_now(spark, source, "parquet", scratch, documents))
    copy = str(scratch / "copy")
    rows = spark.read.parquet(str(scratch / "rows"))
    itself = best(documents, lambda: rows.write.mode("overwrite").parquet(copy))
    show("(e) stream, AvailableNow, to Parquet", rate)
    show("    Parquet to Parquet, Spark itself", itself, f", (e) is {rate / itself:.0%} of it")


def from_producer(spark: SparkSession, documents: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        fill(Path(directory), documents)
        with serving(Path(directory)) as (port, _):
            dcp = spark.read.format("dcp").load(f"couchbase://127.0.0.1:{port}/default")
            require_rows(dcp.count(), documents, "from the producer")
            show("(c) from the producer to noop", best(documents, lambda: noop(dcp)))


def worker_memory(stop: threading.Event, found: list[float]) -> None:
    """The largest resident memory of a Python worker of Spark, looked at while it works."""
    while not stop.wait(0.1):
        found.extend(resident_mib(one.pid) for one in family() if one.kind == "worker")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", type=int, default=2_000_000)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    options = parser.parse_args()
    documents = options.docs // (10 if options.quick else 1)
    print(machine_line("pyspark", "pyarrow", "numpy"))
    spark = session("benchmark", master="local[2]")
    spark.sparkContext.setLogLevel("ERROR")
    scratch = Path(tempfile.mkdtemp(prefix="upriver-spark-"))
    stop, memory = threading.Event(), [0.0]
    watcher = threading.Thread(target=worker_memory, args=(stop, memory))
    watcher.start()
    try:
        print(f"{documents:,} documents of 200 B:")
        with replaying(64, documents) as port:
            source = f"couchbase://127.0.0.1:{port}/default"
            batches(spark, source, documents, scratch)
            streams(spark, source, documents, scratch)
        from_producer(spark, documents)
        print(f"  Python workers: {max(memory):.0f} MiB resident at most")
    finally:
        stop.set()
        watcher.join()
        spark.stop()
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
