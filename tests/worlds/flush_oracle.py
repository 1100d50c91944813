"""What was flushed when: the oracle of flushes, and what the model of documents needs of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .committed_branches import Violation
from .linearizability import FLUSH, Operation
from .split_brain_oracle import Reigns


class _Flush(NamedTuple):
    vbucket: int
    node: str
    moment: int


class FlushOracle:
    """Every flush of an active copy."""

    def __init__(self) -> None:
        self._seen: list[_Flush] = []

    def saw(self, vbucket: int, node: str, moment: int) -> None:
        self._seen.append(_Flush(vbucket, node, moment))

    def of(self, vbucket: int) -> list[Operation]:
        """The flushes of a vbucket, as operations on each of its keys."""
        return [
            Operation("world", b"", FLUSH, invoked=flush.moment, returned=flush.moment)
            for flush in self._seen
            if flush.vbucket == vbucket
        ]

    def check(self, requests: Sequence[tuple[int, str, Operation]], reigns: Reigns) -> None:
        """Compares them with the requests: the vbucket of each, its node and the operation.

        A node flushes what it has active, and answers a flush also if that is nothing.
        """
        for flush in self._seen:
            if not any(
                node == flush.node and _covers(operation, flush.moment)
                for _, node, operation in requests
            ):
                raise Violation("nothing is flushed unasked", f"{flush} was not asked for")
        for vbucket, node, operation in requests:
            done = (
                _covers(operation, flush.moment)
                for flush in self._seen
                if (flush.vbucket, flush.node) == (vbucket, node)
            )
            returned = operation.returned
            reigned = returned is not None and all(
                reigns.reigned(vbucket, node, moment, moment)
                for moment in (operation.invoked, returned)
            )
            if reigned and not any(done):
                raise Violation(
                    "acknowledged writes are there", f"{node} did not flush {vbucket}: {operation}"
                )


def _covers(operation: Operation, moment: int) -> bool:
    returned = operation.returned
    return operation.invoked <= moment and (returned is None or moment <= returned)
