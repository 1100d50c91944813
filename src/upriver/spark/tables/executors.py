"""Who does the tasks of a batch: Spark's executors, or this process.

A session of Spark Connect has no RDDs: there the tasks are the partitions of a frame.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

from ..runtime.internals import is_remote, task_errors
from .format.storage import StorageFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Tasks at once on a server that does not say how many cores it has.
_REMOTE_TASKS: Final = 4


class Executors(Protocol):
    """Something that runs tasks, each by its method ``run``, and gives their results back."""

    @property
    def parallelism(self) -> int:
        """How many tasks run at once."""

    def run(self, tasks: Sequence[Any]) -> list[Any]:
        """Runs all of them; results are in the same order."""


class SparkExecutors:
    """The executors of a session."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext

    @property
    def parallelism(self) -> int:
        return self._context.defaultParallelism

    def run(self, tasks: Sequence[Any]) -> list[Any]:
        if not tasks:
            return []
        # one task, one partition; credentials travel in the data and never in a plan
        with _storage_failures():
            return self._context.parallelize(tasks, len(tasks)).map(_run).collect()


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
                    result = pickle.dumps(pickle.loads(pickled[number]).run())
                    yield pa.RecordBatch.from_pydict({"number": [number], "result": [result]})

        numbers = self._spark.range(0, len(tasks), 1, len(tasks))
        with _storage_failures():
            rows = numbers.mapInArrow(work, "number long, result binary").collect()
        results = {row.number: pickle.loads(row.result) for row in rows}
        return [results[number] for number in range(len(tasks))]


def executors_of(spark: SparkSession | None) -> Executors:
    """The executors of a session, or this process without one."""
    if spark is None:
        return ThisProcess()
    return ConnectExecutors(spark) if is_remote(spark) else SparkExecutors(spark)


class ThisProcess:
    """No executors: one task after the other, here."""

    parallelism = 1

    def run(self, tasks: Sequence[Any]) -> list[Any]:
        return [task.run() for task in tasks]


@contextmanager
def _storage_failures() -> Iterator[None]:
    try:
        yield
    except Exception as problem:  # of Java, with the text of the task's error in it
        for name, message in task_errors(problem):
            if name == StorageFailed.__name__:
                raise StorageFailed(message) from problem
        raise


def _run(task: Any) -> Any:
    return task.run()
