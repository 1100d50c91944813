"""Which node had the active copy of a vbucket when: the oracle against a split brain.

A copy reigns from when it is made active until another one is. An answer to a write is right only
if the copy that gave it reigned at some moment between the request and the answer. Reads need no
lease: a node that was cut off may answer them with what was there before.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from .committed_branches import Violation
from .linearizability import Operation


class _Reign(NamedTuple):
    node: str
    begun: int


class Reigns:
    """Every copy that was made active, in order, by vbucket."""

    def __init__(self) -> None:
        self._by_vbucket: dict[int, list[_Reign]] = defaultdict(list)

    def begin(self, vbucket: int, node: str, moment: int) -> None:
        self._by_vbucket[vbucket].append(_Reign(node, moment))

    def reigned(self, vbucket: int, node: str, first: int, last: int) -> bool:
        """Whether a node's copy reigned at some moment from ``first`` to ``last``."""
        reigns = self._by_vbucket[vbucket]
        ends = [later.begun for later in reigns[1:]]
        return any(
            reign.node == node and reign.begun <= last and end >= first
            for reign, end in zip(reigns, [*ends, last], strict=True)
        )

    def check(self, vbucket: int, node: str, operation: Operation) -> bool:
        """Whether an answer counts; a `Violation` if a write was answered by the wrong copy."""
        returned = operation.returned
        if returned is None or self.reigned(vbucket, node, operation.invoked, returned):
            return True
        if operation.kind == "get":
            return False
        raise Violation(
            "one copy acknowledges",
            f"vbucket {vbucket}: {node} answers {operation}, and the active copies since were "
            + ", ".join(f"{reign.node} from {reign.begun}" for reign in self._by_vbucket[vbucket]),
        )
