"""What a manager does about nodes that are not what the rows say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from upriver.cluster.janitor import orders, streams
from upriver.cluster.node_link import Copy
from upriver.cluster.plan import Row
from upriver.model import VBucketState

ACTIVE, REPLICA = VBucketState.ACTIVE, VBucketState.REPLICA
PENDING, DEAD = VBucketState.PENDING, VBucketState.DEAD
NODES = ("a", "b", "c")


def found(row: Row, *, extra: tuple[str, ...] = (), **states: VBucketState):
    """What is ordered for one vbucket, with nodes that are not named not answering."""
    facts = {node: {0: Copy(state)} for node, state in states.items() if state is not DEAD}
    facts |= {node: {} for node, state in states.items() if state is DEAD}
    return orders((row,), facts, NODES, extra={0: extra}, busy=())


def test_nothing_is_done_where_all_is_well() -> None:
    told = found(("a", "b"), a=ACTIVE, b=REPLICA, c=DEAD)
    assert (told.demote, told.promote, told.rows, told.doubtful) == ({}, {}, {}, set())


def test_new_vbuckets_are_made() -> None:
    told = found(("a", "b"), a=DEAD, b=DEAD, c=DEAD)
    assert told.promote == {"a": [(0, ACTIVE)]}
    assert told.demote == {"b": [(0, REPLICA)]}


def test_an_old_active_copy_becomes_a_replica() -> None:
    assert found(("a", "b"), a=ACTIVE, b=ACTIVE, c=DEAD).demote == {"b": [(0, REPLICA)]}


def test_a_takeover_that_nobody_noted_is_noted() -> None:
    told = found(("a", "b"), a=DEAD, b=ACTIVE, c=DEAD)
    assert told.rows == {0: ("b", "a")}
    assert told.demote == {"a": [(0, REPLICA)]}
    assert not told.promote


def test_a_takeover_that_was_broken_off_is_taken_back() -> None:
    told = found(("a", "c"), a=DEAD, b=PENDING, c=REPLICA)
    assert told.promote == {"a": [(0, ACTIVE)]}
    assert told.demote == {"b": [(0, DEAD)]}


def test_nobody_is_made_active_while_a_node_is_away_that_may_be() -> None:
    told = found(("a", "b"), a=DEAD, b=PENDING)
    assert not told.promote


def test_a_copy_that_claims_to_be_active_is_doubtful_until_the_rightful_one_answers() -> None:
    told = found(("a", "b"), b=ACTIVE, c=DEAD)
    assert told.doubtful == {"b"}
    assert not told.demote


def test_further_copies_are_made_for_a_move() -> None:
    told = found(("a", "b"), extra=("c",), a=ACTIVE, b=REPLICA, c=DEAD)
    assert told.demote == {"c": [(0, REPLICA)]}
    assert streams((("a", "b"),), {0: ("c",)}, ()) == {("a", "b"): {0}, ("a", "c"): {0}}


def test_what_is_being_taken_over_is_left_alone() -> None:
    told = orders((("a", "b"),), {node: {} for node in NODES}, NODES, extra={}, busy={0})
    assert not told.promote
    assert streams((("a", "b"),), {}, {0}) == {}


@given(
    st.permutations(NODES).flatmap(
        lambda nodes: st.sampled_from([tuple(nodes[:2]), (nodes[0], None)])
    ),
    st.dictionaries(st.sampled_from(NODES), st.sampled_from(list(VBucketState))),
)
def test_orders_never_make_two_active_copies_and_settle(
    row: Row, states: dict[str, VBucketState]
) -> None:
    """Carried out again and again, they come to rest with one active copy at most."""
    rows = row
    for _ in range(4):
        told = found(rows, **states)
        rows = told.rows.get(0, rows)
        for change in (told.demote, told.promote):
            for node, ordered in change.items():
                for _, state in ordered:
                    states[node] = state
            claiming = [node for node, state in states.items() if state is ACTIVE]
            assert len(claiming) <= 1 or rows[0] not in states
    told = found(rows, **states)
    assert (told.demote, told.promote, told.rows) == ({}, {}, {})
