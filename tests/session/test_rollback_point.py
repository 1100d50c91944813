"""Where a reader can go on in a producer's history, held against every history there can be."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import count

import pytest
from consumerkit import at
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from upriver.model import NO_END, FailoverLog, Snapshot, StreamOffset, rollback_point
from upriver.session.consumer_events import RollbackReason
from upriver.session.rollback_point import agree, lowered
from upriver.session.stream_position import Position, PositionTracker

A, B, C = 0xA, 0xB, 0xC


def test_a_new_reader_can_go_on_anywhere() -> None:
    assert agree(Position(), FailoverLog.of((A, 0))) == (Position(), None)


def test_a_producer_without_a_history_decides_by_itself() -> None:
    position = at(9, vbuuid=A)
    assert agree(position, FailoverLog(())) == (position, None)


@pytest.mark.parametrize(
    ("seqno", "snapshot", "boundaries", "fork", "back_to"),
    [
        (9, (9, 9), (9,), 9, None),
        (8, (5, 9), (5,), 9, None),
        (8, (5, 10), (5,), 9, 5),
        (10, (5, 10), (5, 10), 9, 5),
        (8, (7, NO_END), (7,), 9, 7),  # its end is unknown, so it may be past the fork
        (10, (10, 10), (10,), 9, 0),
        (9, (9, 12), (), 9, None),  # its marker was seen, nothing of it was read
    ],
)
def test_a_branch_that_goes_on_elsewhere(
    seqno: int,
    snapshot: tuple[int, int],
    boundaries: tuple[int, ...],
    fork: int,
    back_to: int | None,
) -> None:
    log = FailoverLog.of((A, 0))
    position = at(seqno, snapshot, vbuuid=A, log=log, boundaries=boundaries)
    found, reason = agree(position, FailoverLog.of((B, fork), (A, 0)))
    if back_to is None:
        assert (found, reason) == (position, None)
    else:
        assert (found.seqno, reason) == (back_to, RollbackReason.DIVERGED)


@pytest.mark.parametrize(
    ("seqno", "snapshot", "fork", "back_to"),
    [
        (5, (5, 5), 7, None),
        (5, (3, 6), 7, None),
        (5, (3, 6), 5, 3),
        (7, (7, 7), 9, 3),  # the last of it is of the branch that the producer never had
        (5, (3, 7), 9, 3),
    ],
)
def test_a_branch_of_which_nothing_was_read_is_no_reason_to_go_back(
    seqno: int, snapshot: tuple[int, int], fork: int, back_to: int | None
) -> None:
    log = FailoverLog.of((B, 6), (A, 0))
    boundaries = (3, seqno) if seqno in snapshot else (3,)
    position = at(seqno, snapshot, vbuuid=B, log=log, boundaries=boundaries)
    served = FailoverLog.of((C, fork), (A, 0))
    found, reason = agree(position, served)
    assert found.seqno == (seqno if back_to is None else back_to)
    assert reason is (None if back_to is None else RollbackReason.DIVERGED)
    assert found.offset.vbuuid == A
    assert found.log == FailoverLog.of((A, 0))
    assert rollback_point(served, found.offset, high_seqno=20) is None


def test_an_unknown_history_leads_to_the_beginning_and_names_no_manifest() -> None:
    position = replace(at(9, vbuuid=A, boundaries=(9,)), manifest_uid=4)
    found, reason = agree(position, FailoverLog.of((B, 0)))
    assert (found, reason) == (Position(), RollbackReason.UNKNOWN_BRANCH)


@pytest.mark.parametrize(
    ("asked", "back_to", "reason"),
    [
        (8, 6, RollbackReason.AHEAD),
        (6, 6, RollbackReason.AHEAD),
        (5, 2, RollbackReason.AHEAD),
        (1, 0, RollbackReason.AHEAD),
        (0, 0, RollbackReason.PURGED),
        (9, 0, RollbackReason.AHEAD),  # it was refused there, and would be again
        (99, 0, RollbackReason.AHEAD),
    ],
)
def test_a_producer_that_knows_the_branch_wants_the_reader_further_back(
    asked: int, back_to: int, reason: RollbackReason
) -> None:
    log = FailoverLog.of((B, 4), (A, 0))
    position = at(9, vbuuid=B, log=log, boundaries=(2, 6, 9))
    found, why = lowered(position, asked)
    assert (found.seqno, why) == (back_to, reason)
    assert found.is_consistent
    assert all(entry.seqno <= back_to for entry in found.log)


# ---- every history -----------------------------------------------------------------------


@dataclass
class Copy:
    """One node's copy of a vbucket: how far it is, and of which history."""

    high: int = 0
    log: FailoverLog = field(default_factory=lambda: FailoverLog.of((1, 0)))


@dataclass
class World:
    """Some copies, of which any may become active, and a reader of whichever."""

    copies: list[Copy]
    names: count[int] = field(default_factory=lambda: count(2))
    #: Who may write in a branch: the copy that began it.
    writers: dict[int, int] = field(default_factory=lambda: {1: 0})
    reader: PositionTracker = field(default_factory=PositionTracker)

    def write(self, number: int, changes: int) -> None:
        copy = self.copies[number]
        if self.writers[copy.log.newest.vbuuid] == number:
            copy.high += changes

    def replicate(self, number: int, source: int, share: float) -> None:
        """A replica takes the history of another copy, and what it has of it so far."""
        if source != number:
            self._abandon(number)
            origin = self.copies[source]
            self.copies[number] = Copy(int(origin.high * share), origin.log)

    def fail_over(self, number: int, lost: int) -> None:
        """A copy becomes active; what it has of a half-received snapshot is of the new branch."""
        copy = self.copies[number]
        self._abandon(number)
        name = next(self.names)
        self.writers[name] = number
        copy.log = copy.log.branch(name, max(0, copy.high - lost))

    def _abandon(self, number: int) -> None:
        """Whoever gives up its branch does not write in it any more."""
        for name, writer in self.writers.items():
            if writer == number:
                self.writers[name] = -1

    def read(self, number: int, parts: list[tuple[int, int]]) -> None:
        """Goes on at a copy, as its producer lets it, and reads some snapshots or parts of them."""
        copy = self.copies[number]
        position = self.agreed(copy)
        while (
            point := rollback_point(copy.log, position.offset, high_seqno=copy.high)
        ) is not None:
            position, _ = lowered(position, point)
        self.reader = PositionTracker(position)
        self.reader.follow(copy.log)
        for size, items in parts:
            start = self.reader.seqno
            end = min(copy.high, start + size)
            if end == start:
                return
            self.reader.snapshot_began(Snapshot(start, end))
            for seqno in range(start + 1, min(end, start + items) + 1):
                self.reader.advanced(seqno)
            if not self.reader.is_consistent:
                return

    def agreed(self, copy: Copy) -> Position:
        """What this is all about, held against the branches' names, seqno by seqno."""
        position = self.reader.position()
        found, reason = agree(position, copy.log)
        common = common_seqnos(position, copy.log)
        offset = position.offset
        needed = offset.seqno if offset.seqno == offset.snapshot.start else offset.snapshot.end
        if position.seqno == 0 or needed <= common:
            assert reason is None
            assert (found.seqno, found.offset.snapshot) == (position.seqno, offset.snapshot)
        else:
            assert reason is not None
            assert found.seqno == position.boundary_at_most(common)
            assert found.is_consistent
            assert found.seqno in (0, *position.boundaries)
        assert all(boundary <= found.seqno for boundary in found.boundaries)
        # One round is enough: the producer agrees, unless it is behind on its own newest branch.
        high = copy.high
        if found.offset.vbuuid == copy.log.newest.vbuuid:
            high = max(high, found.offset.snapshot.end)
        assert rollback_point(copy.log, found.offset, high_seqno=high) is None
        return found


def branch_of(log: FailoverLog, seqno: int) -> int:
    """The branch in which a seqno was written."""
    return next(entry.vbuuid for entry in log if entry.seqno < seqno or entry.seqno == 0)


def common_seqnos(position: Position, served: FailoverLog) -> int:
    """Up to where two histories consist of the same branches; the reader's may not go on."""
    log = position.log
    common = 0
    last = position.offset.snapshot.end
    while common < last and branch_of(log, common + 1) == branch_of(served, common + 1):
        common += 1
    return common


def steps() -> st.SearchStrategy[list[tuple[str, int, int, float, list[tuple[int, int]]]]]:
    copies = st.integers(0, 2)
    parts = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=3)
    names = st.sampled_from(["write", "write", "replicate", "fail over", "read", "read"])
    numbers = st.integers(0, 4)
    return st.lists(
        st.tuples(names, copies, numbers, st.sampled_from([0.0, 0.5, 0.8, 1.0]), parts),
        max_size=25,
    )


@settings(max_examples=examples(400), deadline=None)
@given(steps())
def test_a_reader_goes_on_where_both_histories_are_the_same_and_no_earlier(
    plan: list[tuple[str, int, int, float, list[tuple[int, int]]]],
) -> None:
    world = World([Copy(), Copy(), Copy()])
    for name, number, amount, share, parts in plan:
        if name == "write":
            world.write(number, amount + 1)
        elif name == "replicate":
            world.replicate(number, amount % 3, share)
        elif name == "fail over":
            world.fail_over(number, amount // 3)
        else:
            world.read(number, parts)
    for copy in world.copies:
        world.agreed(copy)


@given(st.integers(1, 40), st.integers(0, 50), st.data())
def test_going_back_never_leads_ahead_and_always_ends(
    seqno: int, asked: int, data: st.DataObject
) -> None:
    boundaries = data.draw(st.sets(st.integers(1, seqno)).map(sorted))
    offset = StreamOffset(A, seqno, Snapshot(seqno, seqno))
    position = Position(offset, FailoverLog.of((A, 0)), (*boundaries[:-1], seqno))
    position = replace(position, boundaries=tuple(sorted({*boundaries, seqno})))
    found, _ = lowered(position, asked)
    assert found.seqno < seqno
    assert found.seqno <= asked or found.seqno == 0
    assert found.seqno in (0, *boundaries)


# ---- readers that did not begin at the beginning -----------------------------------------


@given(
    st.integers(1, 400),
    st.lists(st.integers(1, 9), max_size=30),
    st.integers(0, 700),
    st.booleans(),
)
def test_a_reader_goes_back_to_its_origin_at_most_or_to_where_history_parted(
    origin: int, spans: list[int], fork: int, asked: bool
) -> None:
    """Nothing is held up to the origin, so below it every place is as good as another."""
    start = StreamOffset(7, origin, Snapshot(origin, origin))
    tracker = PositionTracker(Position(start, FailoverLog.of((7, 0)), (origin,), origin=origin))
    places = {origin}
    for span in spans:
        end = tracker.seqno + span
        tracker.snapshot_began(Snapshot(tracker.seqno + 1, end))
        tracker.advanced(end)
        places.add(end)
    position = tracker.position()
    fork = min(fork, position.seqno - 1)
    if asked:
        to, _ = lowered(position, fork)
    else:
        to, _ = agree(position, FailoverLog.of((8, fork), (7, 0)))
    assert to.seqno <= fork
    assert to.seqno == max((p for p in places if p <= fork), default=fork)
    assert to.origin == min(origin, to.seqno)
