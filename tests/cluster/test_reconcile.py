"""What a manager does about nodes that are not what the rows say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from upriver.cluster.best_copy import Copy, CopyStanding, best, compare
from upriver.cluster.placement import Row
from upriver.cluster.reconcile import Orders, Situation, orders, streams, undecided
from upriver.model import FailoverLog, VBucketState

ACTIVE, REPLICA = VBucketState.ACTIVE, VBucketState.REPLICA
PENDING, DEAD = VBucketState.PENDING, VBucketState.DEAD
NODES = ("a", "b", "c")
LOG = FailoverLog.of((1, 0))


def copy(state: VBucketState, seqno: int = 5, *log: tuple[int, int]) -> Copy:
    return Copy(state, seqno, FailoverLog.of(*log) if log else LOG)


def found(
    row: Row,
    copies: Mapping[str, Copy],
    *,
    extra: tuple[str, ...] = (),
    moves: str = "",
    serving: tuple[str, ...] = (),
    safe: tuple[str, ...] = (),
    absent: tuple[str, ...] = (),
    doubted: tuple[str, ...] = (),
) -> Orders:
    """What is ordered for one vbucket, with nodes that are not named not answering."""
    return orders(
        Situation(
            rows=(row,),
            facts={node: {0: has} for node, has in copies.items()},
            extra={0: extra},
            moves={0: moves} if moves else {},
            serving=serving,
            absent=absent,
            doubted=doubted,
            safe={(0, node) for node in safe},
        )
    )


def states(**told: VBucketState) -> dict[str, Copy]:
    return {node: copy(state) for node, state in told.items()}


# ---- states ------------------------------------------------------------------------------


def test_nothing_is_done_where_all_is_well() -> None:
    told = found(("a", "b"), states(a=ACTIVE, b=REPLICA, c=DEAD), serving=NODES)
    assert (told.demote, told.promote, told.rows, told.doubtful) == ({}, {}, {}, set())
    assert told.safe == {(0, "b")}
    assert not told.problems


def test_new_vbuckets_are_made() -> None:
    fresh = {node: copy(DEAD, 0, (number, 0)) for number, node in enumerate(NODES, 1)}
    told = found(("a", "b"), fresh)
    assert told.promote == {"a": [(0, ACTIVE)]}
    assert told.demote == {"b": [(0, REPLICA)]}


def test_an_old_active_copy_becomes_a_replica() -> None:
    told = found(("a", "b"), states(a=ACTIVE, b=ACTIVE, c=DEAD), serving=("a",))
    assert told.demote == {"b": [(0, REPLICA)]}


def test_a_takeover_that_nobody_noted_is_noted() -> None:
    told = found(("a", "b"), states(a=DEAD, b=ACTIVE, c=DEAD))
    assert told.rows == {0: ("b", "a")}
    assert told.demote == {"a": [(0, REPLICA)]}
    assert not told.promote


def test_a_takeover_by_a_node_that_no_row_names_is_noted() -> None:
    told = found(("a", "b"), states(a=DEAD, b=REPLICA, c=ACTIVE), moves="c")
    assert told.rows == {0: ("c", "b")}
    assert not told.promote


def test_a_takeover_that_was_broken_off_is_taken_back() -> None:
    told = found(("a", "c"), states(a=DEAD, b=PENDING, c=REPLICA), moves="b")
    assert told.promote == {"a": [(0, ACTIVE)]}
    assert told.demote == {"b": [(0, DEAD)]}


def test_nobody_is_made_active_while_a_node_is_away_that_may_have_taken_over() -> None:
    told = found(("a", "b"), states(a=DEAD, b=REPLICA), moves="c")
    assert not told.promote
    assert told.problems == {0: "no active copy: c may have more and does not answer"}
    # one that has nothing to do with the vbucket need not answer
    assert found(("a", "b"), states(a=DEAD, b=REPLICA)).promote == {"a": [(0, ACTIVE)]}


def test_a_copy_that_claims_to_be_active_is_doubtful_until_the_rightful_one_answers() -> None:
    told = found(("a", "b"), states(b=ACTIVE, c=DEAD))
    assert told.doubtful == {"b"}
    assert not told.demote


def test_an_active_copy_that_was_restarted_serves_although_its_replica_is_away() -> None:
    told = found(("a", "b"), states(a=ACTIVE, c=DEAD), absent=("b",))
    assert not told.doubtful
    assert not told.problems
    assert told.safe == set()  # and the replica is compared before it follows
    # but not if that may only be starting, or if its disk is not the one that it had
    cases: tuple[dict[str, Any], ...] = ({}, {"absent": ("b",), "doubted": ("a",)})
    for more in cases:
        waiting = found(("a", "b"), states(a=ACTIVE, c=DEAD), **more)
        assert waiting.doubtful == {"a"}
        assert waiting.problems == {0: "no active copy: b may have more and does not answer"}


def test_further_copies_are_made_for_a_move() -> None:
    told = found(
        ("a", "b"), states(a=ACTIVE, b=REPLICA) | {"c": copy(DEAD, 0)}, extra=("c",), serving=("a",)
    )
    assert told.demote == {"c": [(0, REPLICA)]}
    now = Situation(
        rows=(("a", "b"),), facts={}, extra={0: ("c",)}, safe={(0, "b"), (0, "c"), (0, "x")}
    )
    assert streams(now) == {("a", "b"): {0}, ("a", "c"): {0}}


def test_what_is_being_taken_over_is_left_alone() -> None:
    now = Situation(rows=(("a", "b"),), facts={node: {} for node in NODES}, busy={0})
    assert not orders(now).promote
    assert not undecided(now)
    assert streams(now) == {}


# ---- seqnos and branches -----------------------------------------------------------------


def test_a_node_with_a_new_disk_is_filled_from_the_copy_that_has_something() -> None:
    told = found(("a", "b"), {"a": copy(DEAD, 0, (9, 0)), "b": copy(REPLICA, 300)})
    assert told.rows == {0: ("b", "a")}
    assert told.promote == {"b": [(0, ACTIVE)]}
    assert told.demote == {"a": [(0, REPLICA)]}


def test_a_node_with_a_new_disk_waits_for_the_copy_that_may_have_something() -> None:
    told = found(("a", "b"), {"a": copy(DEAD, 0, (9, 0))})
    assert not told.promote
    assert told.problems == {0: "no active copy: b may have more and does not answer"}


def test_an_active_copy_of_an_older_disk_gives_way() -> None:
    told = found(("a", "b"), {"a": copy(ACTIVE, 100), "b": copy(REPLICA, 300)})
    assert told.rows == {0: ("b", "a")}
    assert told.promote == {"b": [(0, ACTIVE)]}


def test_the_newest_branch_counts_more_than_the_seqno() -> None:
    newer = copy(REPLICA, 290, (2, 280), (1, 0))
    told = found(("a", "b"), {"a": copy(ACTIVE, 300), "b": newer})
    assert told.rows == {0: ("b", "a")}


def test_a_branch_counts_only_where_its_beginning_was_reached() -> None:
    being_filled = copy(REPLICA, 50, (2, 280), (1, 0))  # it has the log, not yet the changes
    told = found(("a", "b"), {"a": being_filled, "b": copy(REPLICA, 280)})
    assert told.rows == {0: ("b", "a")}


def test_a_flushed_copy_stays_the_active_one() -> None:
    told = found(("a", "b"), {"a": copy(ACTIVE, 0, (9, 0)), "b": copy(REPLICA, 300)})
    assert not told.rows
    assert told.safe == {(0, "b")}


def test_histories_that_know_nothing_of_each_other_are_not_guessed_at() -> None:
    told = found(("a", "b"), {"a": copy(REPLICA, 5, (8, 0)), "b": copy(REPLICA, 300, (9, 0))})
    assert not told.promote
    assert "histories at a, b have nothing in common" in told.problems[0]


def test_nothing_is_sent_to_a_replica_that_has_more_than_a_copy_that_serves() -> None:
    copies = {"a": copy(ACTIVE, 100), "b": copy(REPLICA, 300)}
    told = found(("a", "b"), copies, serving=("a",))
    assert not told.safe
    assert "not copied to b, which has more than the active copy at a" in told.problems[0]


def test_an_empty_replica_that_knows_a_newer_branch_has_nothing_to_lose() -> None:
    copies = {"a": copy(REPLICA, 1), "b": copy(REPLICA, 0, (2, 0), (1, 0))}
    told = found(("a", "b"), copies)
    assert told.promote == {"a": [(0, ACTIVE)]}
    assert told.safe == {(0, "b")}


# ---- anything ----------------------------------------------------------------------------


@st.composite
def histories(draw: st.DrawFn) -> dict[str, Copy]:
    """Copies of one vbucket as failovers, rollbacks and new disks leave them.

    One history, which branches now and then; each copy has a part of it, or fell off it at an
    older branch, or is a new disk.
    """
    branches = [(1, 0)]
    for name in range(2, draw(st.integers(1, 4)) + 1):
        branches.insert(0, (name, branches[0][1] + draw(st.integers(0, 3))))
    copies = {}
    for node in NODES:
        known = branches[draw(st.integers(0, len(branches) - 1)) :]
        seqno = draw(st.integers(0, branches[0][1] + 5))
        state = draw(st.sampled_from([REPLICA, DEAD, PENDING]))
        if draw(st.booleans()) and draw(st.booleans()):
            copies[node] = copy(DEAD, 0, (100 + NODES.index(node), 0))
        else:
            copies[node] = copy(state, seqno, *known)
    return copies


def truth(has: Copy) -> tuple[int, int]:
    """What a copy has of the history of `histories`: its newest branch, and how far it came."""
    assert has.log is not None
    reached = [entry.vbuuid for entry in has.log if entry.seqno <= has.seqno]
    newest = max((name for name in reached if name < 100), default=0)
    return (newest, has.seqno) if has.seqno else (0, 0)


ROWS = st.permutations(NODES).flatmap(
    lambda nodes: st.sampled_from([tuple(nodes), tuple(nodes[:2]), (nodes[0], None)])
)


@given(histories(), ROWS, st.sets(st.sampled_from(NODES)))
def test_what_is_made_active_has_most_and_nobody_who_may_have_more_is_away(
    copies: dict[str, Copy], row: Row, away: set[str]
) -> None:
    reached = {node: has for node, has in copies.items() if node not in away}
    told = found(row, reached)
    holders = {node for node in row if node is not None}
    if holders & away:
        assert not told.promote
        assert 0 in told.problems
        return
    assert not told.problems
    (chosen,) = told.promote
    assert chosen in holders
    assert truth(copies[chosen]) == max(truth(copies[node]) for node in holders)
    assert told.rows.get(0, row)[0] == chosen


@given(histories(), ROWS, st.sets(st.sampled_from(NODES)))
def test_a_node_that_was_failed_over_is_waited_for_no_more(
    copies: dict[str, Copy], row: Row, away: set[str]
) -> None:
    left = [node for node in row if node is not None and node not in away]
    if not left:
        return
    without: Row = (*left, *(None,) * (len(row) - len(left)))
    told = found(without, {node: has for node, has in copies.items() if node not in away})
    assert truth(copies[next(iter(told.promote))]) == max(truth(copies[node]) for node in left)


@given(histories())
def test_comparing_is_the_same_from_both_sides(copies: dict[str, Copy]) -> None:
    mirrored = {CopyStanding.MORE: CopyStanding.LESS, CopyStanding.LESS: CopyStanding.MORE}
    for one in copies.values():
        assert compare(one, one) is CopyStanding.SAME
        for other in copies.values():
            seen = compare(one, other)
            assert compare(other, one) is mirrored.get(seen, seen)


@given(histories(), ROWS)
def test_the_best_copy_does_not_depend_on_the_order_of_asking(
    copies: dict[str, Copy], row: Row
) -> None:
    backwards = dict(reversed(copies.items()))
    assert best(copies, row) == best(backwards, row)


@given(ROWS, st.dictionaries(st.sampled_from(NODES), st.sampled_from(list(VBucketState))))
def test_orders_never_make_two_active_copies_and_settle(
    row: Row, told_states: dict[str, VBucketState]
) -> None:
    """Carried out again and again, they come to rest with one active copy at most."""
    has = dict(told_states)
    rows = row
    for _ in range(4):
        told = found(rows, states(**has))
        rows = told.rows.get(0, rows)
        for change in (told.demote, told.promote):
            for node, ordered in change.items():
                for _, state in ordered:
                    has[node] = state
            claiming = [node for node, state in has.items() if state is ACTIVE]
            assert len(claiming) <= 1 or told.doubtful >= set(claiming)
    told = found(rows, states(**has))
    assert (told.demote, told.promote, told.rows) == ({}, {}, {})
