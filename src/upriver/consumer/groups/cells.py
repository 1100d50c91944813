"""Cells: the small versioned values in which a group keeps its state, and who may write them.

A cell has a name, a content and a version. A write names the version that it replaces and succeeds
only if that is still the newest, so writers of a cell cannot overwrite each other unseen. Nothing
else is asked of a store; a `create_only_store` and a `bucket_store` have it.

The rules of a group are generators that yield reads, writes and removals and are sent the results
(`member`, `position_cells`). `run_steps` executes them on a store; a simulation executes them one
by one, in any order. A write whose result was lost may have been done: rules read the cell again
before they decide.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from ...errors import ConfigError

_T = TypeVar("_T")

#: Most bytes of a cell. A bucket refuses documents above 20 MiB.
MAX_CELL: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Stored:
    """The newest content of a cell, with its version."""

    content: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Read:
    """Asks for a cell; the answer is `Stored`, or None if there is none."""

    cell: str


@dataclass(frozen=True, slots=True)
class CellWrite:
    """Replaces ``version`` of a cell, 0 to create it; the answer is the new version.

    The answer is None if the cell has another version, which then stays.
    """

    cell: str
    content: bytes
    version: int
    #: The store may remove the cell this many seconds after the write; 0 for never.
    expires: float = 0.0


@dataclass(frozen=True, slots=True)
class Remove:
    """Removes a cell that nobody needs any more; the answer is None."""

    cell: str


#: Rules without I/O: yields operations, is sent their answers, returns a result.
CellSteps: TypeAlias = Generator[Read | CellWrite | Remove, Any, _T]


class GroupStore(Protocol):
    """Interface to the place where a group keeps its cells. Any thread may call it.

    A store that cannot answer raises an `UpriverError` or `OSError`.
    """

    def read(self, cell: str) -> Stored | None:
        """Returns the newest content; None if there is no such cell."""

    def write(self, cell: str, content: bytes, version: int, *, expires: float = 0) -> int | None:
        """Replaces a version, 0 to create; returns the new version, None if it was not the newest.

        The content must be durable when this method returns.
        """

    def remove(self, cell: str) -> None:
        """Removes a cell, if there is one."""

    def close(self) -> None:
        """Closes connections."""


def run_steps(store: GroupStore, steps: CellSteps[_T]) -> _T:
    """Executes rules on a store; blocks."""
    answer: Any = None
    try:
        while True:
            answer = _answer(store, steps.send(answer))
    except StopIteration as end:
        result: _T = end.value
        return result


def _answer(store: GroupStore, step: Read | CellWrite | Remove) -> Stored | int | None:
    if isinstance(step, Read):
        return store.read(step.cell)
    if isinstance(step, CellWrite):
        if len(step.content) > MAX_CELL:
            raise ConfigError(
                f"{step.cell} would have {len(step.content)} bytes; {MAX_CELL} are the most"
            )
        return store.write(step.cell, step.content, step.version, expires=step.expires)
    store.remove(step.cell)
    return None
