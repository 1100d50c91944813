"""A driver on a cluster, which does what it is told on its standard input.

    python cluster_program.py '{"master": ..., "archive": ..., "python": ..., "source": ...}'

Each order is a line of JSON, and so is each answer. It ends with its input.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from upriver.spark import mirror, session, verify
from upriver.tables.pipeline import Pipeline

#: A short run never wins back what the second compiler and parallel collectors cost.
_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class Orders:
    """What can be ordered, by name."""

    def __init__(self, spark: SparkSession, given: dict[str, Any]) -> None:
        self._spark = spark
        self._source = given["source"]
        self._table = given["table"]
        self._storage = given["storage"]
        self._running: Pipeline | None = None

    def batch(self) -> list[str]:
        """The documents that a batch read has."""
        rows = self._spark.read.format("dcp").option("minPartitions", 3).load(self._source)
        return _keys(rows)

    def stream(self) -> list[str]:
        """The documents that a stream has, which reads all that is there."""
        held: list[str] = []
        rows = self._spark.readStream.format("dcp").option("minPartitions", 3).load(self._source)
        query = (
            rows.writeStream.foreachBatch(lambda frame, number: held.extend(_keys(frame)))
            .option("checkpointLocation", str(Path("checkpoint").absolute()))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sorted(held)

    def implementation(self) -> list[str]:
        """By what executors decode, and where they have the package from."""

        def look(number: int) -> str:
            import upriver.wire.columns as columns

            return f"{columns.__impl__} {columns.__file__}"

        numbers = self._spark.sparkContext.parallelize(range(3), 3)
        return sorted(set(numbers.map(look).collect()))

    def start(self) -> None:
        """Starts a mirror that goes on."""
        assert self._running is None
        self._running = self._mirror(max_offsets_per_trigger=500)

    def batches(self) -> int:
        """How many batches the running mirror has done."""
        assert self._running is not None
        self._running.wait(0)
        return self._running.status().batches

    def stop(self) -> None:
        assert self._running is not None
        self._running.stop()
        self._running.wait(0)
        self._running = None

    def once(self) -> None:
        """Mirrors all that is there."""
        self._mirror(once=True).wait()

    def verify(self) -> dict[str, int]:
        found = verify(
            self._spark,
            source=self._source,
            table=self._table,
            storage_options=self._storage,
        )
        return {"equal": found.equal, "differing": found.differing}

    def _mirror(self, **options: Any) -> Pipeline:
        return mirror(
            self._spark,
            source=self._source,
            table=self._table,
            storage_options=self._storage,
            min_partitions=3,
            **options,
        )


def _keys(frame: DataFrame) -> list[str]:
    return sorted(row.key for row in frame.selectExpr("string(key) AS key").collect())


def main() -> None:
    given = json.loads(sys.argv[1])
    spark = session(
        "on a cluster",
        master=given["master"],
        config={
            "spark.pyspark.python": given["python"],
            "spark.submit.pyFiles": given["archive"],
            "spark.driver.memory": "1g",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": _SHORT_LIVED,
            "spark.log.level": "ERROR",
            "spark.ui.enabled": "false",
        },
    )
    orders = Orders(spark, given)
    for line in sys.stdin:
        order = json.loads(line)
        answer = getattr(orders, order.pop("do"))(**order)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main()
