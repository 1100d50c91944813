"""The executors of a Spark session, which do the tasks of a table's batches.

A session of Spark Connect has no RDDs: there the tasks are the partitions of a frame.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from ..errors import ConfigError
from ..tables.executors import Executors, attempt, results
from .runtime.internals import is_remote, is_stopped
from .session import use_this_interpreter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

StartSpark: TypeAlias = "Callable[[], SparkSession]"

#: Tasks at once on a server that does not say how many cores it has.
_REMOTE_TASKS: Final = 4


class SparkExecutors:
    """The executors of a session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._context = spark.sparkContext

    @property
    def parallelism(self) -> int:
        with _named_if_stopped(self._spark):
            return self._context.defaultParallelism

    def run(self, tasks: Sequence[Any]) -> list[Any]:
        if not tasks:
            return []
        # one task, one partition; credentials travel in the data and never in a plan
        with _named_if_stopped(self._spark):
            attempts = self._context.parallelize(tasks, len(tasks)).map(attempt).collect()
        return results(attempts)


class ConnectExecutors:
    """The executors of a server of Spark Connect, whose Python must have Upriver too."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    @property
    def parallelism(self) -> int:
        configured = self._spark.conf.get("spark.default.parallelism", None)
        return int(configured) if configured else _REMOTE_TASKS

    def run(self, tasks: Sequence[Any]) -> list[Any]:
        if not tasks:
            return []
        pickled = [pickle.dumps(task) for task in tasks]  # in the function, which no plan shows

        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in map(int, batch.column("id").to_numpy()):
                    result = pickle.dumps(attempt(pickle.loads(pickled[number])))
                    yield pa.RecordBatch.from_pydict({"number": [number], "result": [result]})

        numbers = self._spark.range(0, len(tasks), 1, len(tasks))
        with _named_if_stopped(self._spark):
            rows = numbers.mapInArrow(work, "number long, result binary").collect()
        found = {row.number: pickle.loads(row.result) for row in rows}
        return results(found[number] for number in range(len(tasks)))


def executors_of(spark: SparkSession | StartSpark) -> Executors | Callable[[], Executors]:
    """The executors of a session, or a function that starts the session and has its executors."""
    if callable(spark):
        return lambda: _of_session(spark())
    return _of_session(spark)


def _of_session(spark: SparkSession) -> Executors:
    if is_stopped(spark):
        raise ConfigError("the Spark session is stopped: give one that runs")
    use_this_interpreter(spark)
    return ConnectExecutors(spark) if is_remote(spark) else SparkExecutors(spark)


@contextmanager
def _named_if_stopped(spark: SparkSession) -> Iterator[None]:
    """Says that the session was stopped, which Spark tells by an error of Java's or of Python's."""
    try:
        yield
    except Exception as problem:
        if is_stopped(spark):
            rule = "the Spark session was stopped while a pipeline used it: stop the pipeline first"
            raise ConfigError(rule) from problem
        raise
