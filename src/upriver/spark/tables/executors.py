"""Who does the tasks of a batch: Spark's executors, or this process."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from .storage import StorageFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Executors", "SparkExecutors", "ThisProcess"]


_STORE_FAILED: Final = re.compile(r"\bStorageFailed: (.+)")


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
        try:
            return self._context.parallelize(tasks, len(tasks)).map(_run).collect()
        except Exception as problem:  # of Java, with the text of the task's error in it
            if found := _STORE_FAILED.search(str(problem)):
                raise StorageFailed(found[1]) from problem
            raise


class ThisProcess:
    """No executors: one task after the other, here."""

    parallelism = 1

    def run(self, tasks: Sequence[Any]) -> list[Any]:
        return [task.run() for task in tasks]


def _run(task: Any) -> Any:
    return task.run()
