"""Plans which node has which copy of each vbucket; pure functions.

A row names the node of the active copy and those of the replicas, None where no node has one. A
plan spreads active copies evenly, and replicas as evenly as that allows, and moves little: what
can stay where it is stays, and a copy that must go elsewhere goes to where there is one already.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

Row = tuple[str | None, ...]


def first_rows(nodes: Sequence[str], vbuckets: int, replicas: int) -> tuple[Row, ...]:
    """The rows of a new cluster."""
    empty: Row = (None,) * (1 + replicas)
    return balanced((empty,) * vbuckets, nodes)


def balanced(rows: Sequence[Row], nodes: Sequence[str]) -> tuple[Row, ...]:
    """Rows for these nodes and no others, near to what they are now.

    Rows that are as good as they get are returned as they are.
    """
    target = tuple(rows) if _is_even(rows, nodes) else _planned(rows, nodes)
    while True:
        better = _planned(target, nodes)
        if _most_replicas(better) >= _most_replicas(target):
            return target
        target = better


def _planned(rows: Sequence[Row], nodes: Sequence[str]) -> tuple[Row, ...]:
    return _with_replicas(rows, _actives(rows, nodes), nodes)


def _is_even(rows: Sequence[Row], nodes: Sequence[str]) -> bool:
    """Whether these nodes have all copies that there can be, and the active ones evenly."""
    active = Counter(row[0] for row in rows)
    counts = [active[node] for node in nodes]
    whole = all(
        {node for node in row if node is not None} <= set(nodes)
        and sum(node is not None for node in row) == min(len(row), len(nodes))
        for row in rows
    )
    return whole and max(counts) - min(counts) <= 1


def _most_replicas(rows: Sequence[Row]) -> int:
    """How many replicas the node with most of them has."""
    load = Counter(node for row in rows for node in row[1:] if node is not None)
    return max(load.values(), default=0)


def without(row: Row, node: str) -> Row:
    """A row whose copy at a node is lost; the next copy takes the place of an active one."""
    left = [other for other in row if other is not None and other != node]
    return (*left, *(None,) * (len(row) - len(left)))


def _actives(rows: Sequence[Row], nodes: Sequence[str]) -> list[str]:
    count = Counter(row[0] for row in rows if row[0] in nodes)
    share, more = divmod(len(rows), len(nodes))
    # those that have most may have the one more
    ranked = sorted(nodes, key=lambda node: (-count[node], nodes.index(node)))
    room = {node: share + (place < more) for place, node in enumerate(ranked)}
    chosen: list[str | None] = [None] * len(rows)
    for index, row in enumerate(rows):
        if row[0] is not None and room.get(row[0], 0) > 0:
            chosen[index] = row[0]
            room[row[0]] -= 1
    for index, row in enumerate(rows):
        if chosen[index] is None:
            copies = [node for node in row if node is not None and room.get(node, 0) > 0]
            node = copies[0] if copies else max(nodes, key=lambda node: room[node])
            chosen[index] = node
            room[node] -= 1
    return [node for node in chosen if node is not None]


def _with_replicas(
    rows: Sequence[Row], actives: Sequence[str], nodes: Sequence[str]
) -> tuple[Row, ...]:
    copies = len(rows[0]) if rows else 1
    wanted = min(copies - 1, len(nodes) - 1)
    most = -(-len(rows) * wanted // len(nodes))
    load: Counter[str] = Counter()
    kept: list[list[str]] = []
    for row, active in zip(rows, actives, strict=True):
        replicas: list[str] = []
        # one that was active is as good a copy as any
        for node in (*row[1:], row[0]):
            free = node in nodes and node != active and node not in replicas
            if free and len(replicas) < wanted and node is not None and load[node] < most:
                replicas.append(node)
                load[node] += 1
        kept.append(replicas)
    for active, replicas in zip(actives, kept, strict=True):
        while len(replicas) < wanted:
            open_to = [node for node in nodes if node != active and node not in replicas]
            node = min(open_to, key=lambda node: load[node])
            replicas.append(node)
            load[node] += 1
    _even_out(actives, kept, load, nodes)
    missing = (None,) * (copies - 1 - wanted)
    return tuple(
        (active, *replicas, *missing) for active, replicas in zip(actives, kept, strict=True)
    )


def _even_out(
    actives: Sequence[str], replicas: list[list[str]], load: Counter[str], nodes: Sequence[str]
) -> None:
    """Moves replicas from full nodes to empty ones, while that makes them more alike.

    What stayed where it was may have left the last rows no choice but a node that is full.
    """
    moved = True
    while moved:
        moved = False
        for active, row in zip(actives, replicas, strict=True):
            for place, full in enumerate(row):
                open_to = [node for node in nodes if node != active and node not in row]
                empty = min(open_to, key=lambda node: load[node], default=full)
                if load[full] - load[empty] > 1:
                    row[place] = empty
                    load[full] -= 1
                    load[empty] += 1
                    moved = True
