"""Compares copies of a vbucket: by failover log first, by seqno second.

A branch of history is newer than another if it knows that other as one of its past. A copy is on
the newest branch of its log whose beginning it has reached: it may have been given the log of its
active copy before any of the changes. Of two copies on one branch the one with the higher seqno
has more. Copies of which neither knows the other's branch have histories *apart*, and no number
says which of them is right.

This module computes values only; it asks no node.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import NamedTuple

from ..model import FailoverLog, VBucketState
from .placement import Row


class Copy(NamedTuple):
    """What a node has of a vbucket."""

    state: VBucketState
    seqno: int = 0
    #: None while the node was not asked for it.
    log: FailoverLog | None = None

    @property
    def is_active(self) -> bool:
        return self.state is VBucketState.ACTIVE

    @property
    def branches(self) -> list[int]:
        """The names of the branches that the copy has something of, newest first."""
        entries = () if self.log is None else self.log.entries
        reached = [entry.vbuuid for entry in entries if entry.seqno <= self.seqno]
        return reached or [entry.vbuuid for entry in entries[-1:]]


#: By node, what it has of each vbucket. A node that does not answer is not named.
Copies = Mapping[str, Mapping[int, Copy]]


class CopyStanding(Enum):
    """How one copy compares to another."""

    MORE = auto()
    SAME = auto()
    LESS = auto()
    #: Neither knows the other's branch.
    APART = auto()


def compare(one: Copy, other: Copy) -> CopyStanding:
    """How the first compares to the second; both with their logs."""
    mine, theirs = one.branches, other.branches
    if mine[:1] == theirs[:1]:
        if one.seqno == other.seqno:
            return CopyStanding.SAME
        return CopyStanding.MORE if one.seqno > other.seqno else CopyStanding.LESS
    knows, is_known = theirs[0] in mine, mine[0] in theirs
    if knows is is_known:
        return CopyStanding.APART
    return CopyStanding.MORE if knows else CopyStanding.LESS


def best(copies: Mapping[str, Copy], row: Row) -> str | None:
    """The node that must have the active copy; None if nothing says which.

    A copy without anything that is not the active one is a new disk, and counts only where no
    other has anything. An active copy without anything was flushed, and counts. Where histories
    are apart, the copy that is active and that the row names was decided on earlier.
    """
    counted = {
        node: copy for node, copy in copies.items() if copy.seqno > 0 or copy.is_active
    } or dict(copies)

    def standings(node: str) -> set[CopyStanding]:
        others = (other for other in counted if other != node)
        return {compare(counted[node], counted[other]) for other in others}

    found = {node: standings(node) for node in counted}
    undisputed = [
        node for node, known in found.items() if known <= {CopyStanding.MORE, CopyStanding.SAME}
    ]
    if not undisputed and not any(copy.seqno for copy in counted.values()):
        undisputed = list(counted)  # all are empty, whatever they call their branches
    if undisputed:
        # of equals the one that is active already, then the one that the row names first
        return min(
            undisputed,
            key=lambda node: (
                not counted[node].is_active,
                row.index(node) if node in row else len(row),
                node,
            ),
        )
    decided = row[0]
    if decided in counted and counted[decided].is_active:
        return decided if CopyStanding.LESS not in found[decided] else None
    return None
