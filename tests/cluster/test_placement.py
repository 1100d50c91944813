"""Plans: every node gets its share, copies are on different nodes, and little moves."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from upriver.cluster.placement import Row, balanced, first_rows, without

NAMES = [f"n{number}" for number in range(1, 9)]


@st.composite
def clusters(draw: st.DrawFn) -> tuple[tuple[Row, ...], list[str], list[str]]:
    """Rows of some nodes, after some of these were lost, and the nodes that there are then."""
    nodes = NAMES[: draw(st.integers(1, 6))]
    replicas = draw(st.integers(0, min(3, len(nodes) - 1)))
    rows = first_rows(nodes, draw(st.integers(1, 40)), replicas)
    lost = draw(st.lists(st.sampled_from(nodes), unique=True, max_size=replicas))
    for node in lost:
        rows = tuple(without(row, node) for row in rows)
    left = [node for node in nodes if node not in lost]
    leaving = draw(st.lists(st.sampled_from(left), unique=True, max_size=len(left) - 1))
    added = draw(st.lists(st.sampled_from(NAMES[6:]), unique=True))
    return rows, left, [*(node for node in left if node not in leaving), *added]


@given(clusters())
def test_active_copies_are_spread_evenly_and_copies_apart(
    cluster: tuple[tuple[Row, ...], list[str], list[str]],
) -> None:
    rows, _, nodes = cluster
    target = balanced(rows, nodes)
    active = Counter(row[0] for row in target)
    assert max(active.values()) - min(active[node] for node in nodes) <= 1
    for before, row in zip(rows, target, strict=True):
        copies = [node for node in row if node is not None]
        assert len(row) == len(before)
        assert len(set(copies)) == len(copies) == min(len(row), len(nodes))
        assert set(copies) <= set(nodes)


@given(clusters())
def test_a_plan_that_was_carried_out_is_left_alone(
    cluster: tuple[tuple[Row, ...], list[str], list[str]],
) -> None:
    rows, _, nodes = cluster
    target = balanced(rows, nodes)
    assert balanced(target, nodes) == target


@given(clusters())
def test_no_more_active_copies_move_than_must(
    cluster: tuple[tuple[Row, ...], list[str], list[str]],
) -> None:
    rows, _, nodes = cluster
    target = balanced(rows, nodes)
    kept = Counter(
        before[0] for before, row in zip(rows, target, strict=True) if before[0] == row[0]
    )
    had = Counter(row[0] for row in rows)
    share = len(rows) // len(nodes)
    for node in nodes:
        assert kept[node] >= min(had[node], share)


def test_a_lost_active_copy_is_replaced_by_the_next() -> None:
    assert without(("a", "b", "c"), "a") == ("b", "c", None)
    assert without(("a", "b", "c"), "b") == ("a", "c", None)
    assert without(("a", None, None), "a") == (None, None, None)


def test_replicas_are_spread_evenly_in_a_new_cluster() -> None:
    rows = first_rows(NAMES[:3], 64, 1)
    assert sorted(Counter(row[1] for row in rows).values()) in ([21, 21, 22], [20, 22, 22])


def test_a_vbucket_moves_to_where_a_copy_is_already() -> None:
    rows: tuple[Row, ...] = tuple(("a", "b") for _ in range(4))
    assert balanced(rows, ["a", "b"]) == (("a", "b"), ("a", "b"), ("b", "a"), ("b", "a"))


def test_a_third_node_gets_its_share_of_replicas() -> None:
    rows = tuple(("n1", "n2") if number % 2 else ("n2", "n1") for number in range(64))
    planned = balanced(rows, ["n1", "n2", "n3"])
    for place in (0, 1):
        shares = Counter(row[place] for row in planned)
        assert max(shares.values()) - min(shares[node] for node in ("n1", "n2", "n3")) <= 1
    assert balanced(planned, ["n1", "n2", "n3"]) == planned
