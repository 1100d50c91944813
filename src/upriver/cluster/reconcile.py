"""Compares the rows of a cluster with what its nodes have, and decides which states to set.

No copy is made active while another has more of the newest branch, or while a node that may have
more does not answer: the vbucket then stays down, with a problem that says why. This module
computes values only; the `Manager` asks the nodes and sets the states.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field

from ..model import VBucketState
from .best_copy import Copies, Copy, CopyStanding, best, compare
from .placement import Row

_DEAD = Copy(VBucketState.DEAD)

#: Vbuckets with a node that has, or shall have, a replica of it.
Pairs = Set[tuple[int, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The input of `orders`."""

    rows: tuple[Row, ...]
    #: What each node that answers has.
    facts: Copies
    #: Additional replicas that a rebalance is building.
    extra: Mapping[int, Collection[str]] = field(default_factory=dict)
    #: Targets of takeovers that were under way when the state was last saved, by vbucket.
    moves: Mapping[int, str] = field(default_factory=dict)
    #: Vbuckets whose takeover is under way, which are left alone.
    busy: Collection[int] = ()
    #: Nodes that were given a map since their processes started: their active copies were checked
    #: then, and may have taken writes since.
    serving: Collection[str] = ()
    #: Nodes whose disk was replaced, or set back to an older state.
    doubted: Collection[str] = ()
    #: Nodes that have not answered for a while.
    absent: Collection[str] = ()
    #: Replicas that were found to have nothing that their active copy lacks.
    safe: Pairs = frozenset()

    def copies(self, vbucket: int) -> dict[str, Copy]:
        """What every node that answers has of a vbucket."""
        return {node: facts.get(vbucket, _DEAD) for node, facts in self.facts.items()}

    def holders(self, vbucket: int) -> set[str]:
        """The nodes that may have something that counts, whether they answer or not."""
        named = {node for node in self.rows[vbucket] if node is not None}
        if vbucket in self.moves:
            named.add(self.moves[vbucket])
        claiming = {
            node for node, facts in self.facts.items() if facts.get(vbucket, _DEAD).is_active
        }
        return named | claiming

    def replicas(self, vbucket: int) -> set[str]:
        """The nodes that answer and shall have a replica."""
        named = {*self.rows[vbucket][1:], *self.extra.get(vbucket, ())}
        return {node for node in named if node is not None and node in self.facts}

    def is_served(self, vbucket: int) -> bool:
        """Whether the row's active copy is active, and takes writes."""
        node = self.rows[vbucket][0] or ""
        return node in self.serving and self.facts.get(node, {}).get(vbucket, _DEAD).is_active


@dataclass(slots=True)
class Orders:
    """The states to set, and what was found on the way."""

    #: By node. All demotions must be done, at all nodes, before any promotion.
    demote: dict[str, list[tuple[int, VBucketState]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    promote: dict[str, list[tuple[int, VBucketState]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    #: Rows that change because another copy is active already, or has more.
    rows: dict[int, Row] = field(default_factory=dict)
    #: Nodes with an active copy that may not be the right one; clients must not use them.
    doubtful: set[str] = field(default_factory=set)
    #: Vbuckets that have an active copy, or get one now.
    decided: set[int] = field(default_factory=set)
    #: Replicas that were found to have nothing that their active copy lacks.
    safe: set[tuple[int, str]] = field(default_factory=set)
    #: What is wrong with a vbucket and what to do about it, for people.
    problems: dict[int, str] = field(default_factory=dict)


def undecided(now: Situation) -> dict[int, set[str]]:
    """The vbuckets whose copies must be compared, and the nodes to ask for failover logs."""
    found = {}
    for vbucket, row in enumerate(now.rows):
        if vbucket in now.busy or row[0] is None:
            continue
        unknown = {node for node in now.replicas(vbucket) if (vbucket, node) not in now.safe}
        if unknown or not now.is_served(vbucket):
            asked = now.holders(vbucket) | unknown
            found[vbucket] = asked & set(now.facts)
    return found


def orders(now: Situation) -> Orders:
    """The states to set so that the nodes match the rows."""
    found = Orders()
    for vbucket, row in enumerate(now.rows):
        if vbucket not in now.busy and row[0] is not None:
            _decide(now, vbucket, found)
    return found


def _decide(now: Situation, vbucket: int, found: Orders) -> None:
    row, copies = now.rows[vbucket], now.copies(vbucket)
    active = row[0] if now.is_served(vbucket) else _leader(now, vbucket, found)
    if active is None:
        found.doubtful.update(node for node, copy in copies.items() if copy.is_active)
        return
    found.decided.add(vbucket)
    if active != row[0]:
        row = found.rows[vbucket] = _led_by(row, active)
    if not copies[active].is_active:
        found.promote[active].append((vbucket, VBucketState.ACTIVE))
    for node, copy in copies.items():
        is_copy = node in row or node in now.extra.get(vbucket, ())
        wanted = VBucketState.REPLICA if is_copy else VBucketState.DEAD
        if node != active and copy.state is not wanted:
            found.demote[node].append((vbucket, wanted))
        if is_copy and node != active:
            _compare_replica(now, vbucket, node, active, found)


def _leader(now: Situation, vbucket: int, found: Orders) -> str | None:
    """The node whose copy of an unserved vbucket becomes active; None if it stays down."""
    row, copies, holders = now.rows[vbucket], now.copies(vbucket), now.holders(vbucket)
    known = {
        node: copies[node] for node in holders if node in copies and copies[node].log is not None
    }
    chosen = best(known, row) if known else None
    missing = sorted(holders - set(known))
    # An active copy loses nothing by a restart if the node still has the same disk. Any other copy
    # becomes active only after all holders were asked. Nodes that may be starting are waited for.
    kept = (
        chosen == row[0] and chosen not in now.doubted and copies.get(chosen or "", _DEAD).is_active
    )
    if missing and not (kept and set(missing) <= set(now.absent)):
        found.problems[vbucket] = (
            f"no active copy: {', '.join(missing)} may have more and "
            f"{'does' if len(missing) == 1 else 'do'} not answer"
        )
        return None
    if chosen is None:
        found.problems[vbucket] = (
            f"no active copy: the histories at {', '.join(sorted(known))} have nothing in common; "
            "fail over those whose copies are to be given up"
        )
    return chosen


def _compare_replica(now: Situation, vbucket: int, node: str, active: str, found: Orders) -> None:
    """Notes whether a replica can follow its active copy without losing changes."""
    copy, leader = now.facts[node].get(vbucket, _DEAD), now.facts[active].get(vbucket, _DEAD)
    if (vbucket, node) in now.safe and active == now.rows[vbucket][0]:
        found.safe.add((vbucket, node))
    elif copy.log is None or leader.log is None:
        return  # it is asked in the next round
    elif copy.seqno and compare(copy, leader) is CopyStanding.MORE:  # an empty copy loses nothing
        found.problems[vbucket] = (
            f"not copied to {node}, which has more than the active copy at {active}: "
            f"fail over {active} to have {node} take its place, or fail over {node} and recover it "
            "to have that forgotten"
        )
    else:
        found.safe.add((vbucket, node))


def streams(now: Situation) -> dict[tuple[str, str], set[int]]:
    """The replication streams: vbuckets by source and target node."""
    wanted: dict[tuple[str, str], set[int]] = defaultdict(set)
    for vbucket, row in enumerate(now.rows):
        active = row[0]
        if active is None or vbucket in now.busy:
            continue
        for node in {*row[1:], *now.extra.get(vbucket, ())} - {None, active}:
            assert node is not None
            if (vbucket, node) in now.safe:
                wanted[active, node].add(vbucket)
    return wanted


def _led_by(row: Row, node: str) -> Row:
    """A row with another active copy; the former one takes that copy's place."""
    return (node, *(row[0] if other == node else other for other in row[1:]))
