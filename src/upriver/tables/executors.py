"""Who does the tasks of a batch: executors of an engine, or this process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ..errors import UpriverError
from ..files.storage import StorageFailed

#: How often a task is done at the most, if a store refuses or does not answer.
_MOST_TRIES: Final = 3


class Executors(Protocol):
    """Something that runs tasks, each by its method ``run``, and gives their results back."""

    @property
    def parallelism(self) -> int:
        """How many tasks run at once."""

    def run(self, tasks: Sequence[Any]) -> list[Any]:
        """Runs all of them; results are in the same order, or the first error is raised."""


class ThisProcess:
    """No executors: one task after the other, here."""

    parallelism = 1

    def run(self, tasks: Sequence[Any]) -> list[Any]:
        return [task.run() for task in tasks]


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """The result of a task that has failed with an error of ours.

    Engines pass on only the text of what a task raises, and nothing may be decided by a text. So
    the error itself travels, as a result. The engine does not repeat such a task: `attempt` has
    done so where that can help.
    """

    problem: UpriverError


def attempt(task: Any) -> Any:
    """What a task gives, or how it failed."""
    failed = 0
    while True:
        try:
            return task.run()
        except StorageFailed as problem:
            failed += 1
            if failed == _MOST_TRIES:
                return TaskFailed(problem)
        except UpriverError as problem:
            return TaskFailed(problem)


def results(attempts: Iterable[Any]) -> list[Any]:
    """What the tasks gave; raises the error of the first that failed."""
    given = list(attempts)
    for one in given:
        if isinstance(one, TaskFailed):
            raise one.problem
    return given
