"""What must be so for a cluster's rows to be true: which node is to have which vbucket as what.

It compares what the rows say with what the nodes have, and says what to do about it. Values in,
values out; the `Manager` asks and orders.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ..model import VBucketState
from .node_link import Copy
from .plan import Row

__all__ = ["Orders", "orders", "streams"]

_DEAD = Copy(VBucketState.DEAD)


@dataclass(slots=True)
class Orders:
    """What to do."""

    #: By node, in this order: what comes first must be done everywhere before what comes second.
    demote: dict[str, list[tuple[int, VBucketState]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    promote: dict[str, list[tuple[int, VBucketState]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    #: Rows that are not true: another copy was made the active one, and nobody noted it.
    rows: dict[int, Row] = field(default_factory=dict)
    #: Nodes that have a vbucket as active that may not be theirs; no client may use them.
    doubtful: set[str] = field(default_factory=set)


def orders(
    rows: tuple[Row, ...],
    facts: Mapping[str, Mapping[int, Copy]],
    members: Collection[str],
    *,
    extra: Mapping[int, Collection[str]],
    busy: Collection[int],
) -> Orders:
    """What to do so that the nodes are what the rows say.

    ``facts`` has the nodes that answer, ``extra`` further copies that are being made, ``busy`` the
    vbuckets that are being taken over and are nobody else's business.
    """
    found = Orders()
    for vbucket, row in enumerate(rows):
        if vbucket in busy:
            continue
        copies = {node: facts[node].get(vbucket, _DEAD).state for node in facts}
        active = row[0]
        if active is None:
            continue
        claiming = [node for node, state in copies.items() if state is VBucketState.ACTIVE]
        if active not in claiming:
            others = [node for node in claiming if node != active]
            if active in copies and others:
                row = found.rows[vbucket] = _led_by(row, others[0])
                active = others[0]
            elif active in copies and set(facts) >= set(members):
                # with everybody there, nobody else can be the active one
                found.promote[active].append((vbucket, VBucketState.ACTIVE))
            else:
                found.doubtful.update(others)
                continue
        for node, state in copies.items():
            is_copy = node in row or node in extra.get(vbucket, ())
            wanted = VBucketState.REPLICA if is_copy else VBucketState.DEAD
            if node != active and state is not wanted:
                found.demote[node].append((vbucket, wanted))
    return found


def streams(
    rows: tuple[Row, ...], extra: Mapping[int, Collection[str]], busy: Collection[int]
) -> dict[tuple[str, str], set[int]]:
    """The streams that keep the copies up to date: from and to which node, of which vbuckets."""
    wanted: dict[tuple[str, str], set[int]] = defaultdict(set)
    for vbucket, row in enumerate(rows):
        active = row[0]
        if active is None or vbucket in busy:
            continue
        for node in {*row[1:], *extra.get(vbucket, ())} - {None, active}:
            assert node is not None
            wanted[active, node].add(vbucket)
    return wanted


def _led_by(row: Row, node: str) -> Row:
    """A row with another active copy; the one before takes its place."""
    return (node, *(row[0] if other == node else other for other in row[1:]))
