"""Where a reader is, and where it may go back to: markers, boundaries, thinning, rewinding."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from upriver.model import NO_END, FailoverLog, Snapshot, StreamOffset
from upriver.session.stream_position import Position, PositionTracker

#: More than a position may ever carry, whatever was read.
MOST_BOUNDARIES = 64


def read(tracker: PositionTracker, start: int, end: int, *items: int) -> None:
    """A marker and items of its snapshot."""
    tracker.snapshot_began(Snapshot(start, end))
    for seqno in items:
        tracker.advanced(seqno)


def at(vbuuid: int, seqno: int, start: int, end: int) -> StreamOffset:
    return StreamOffset(vbuuid, seqno, Snapshot(start, end))


# ---- following a stream ------------------------------------------------------------------


def test_a_reader_begins_consistent_with_nothing() -> None:
    tracker = PositionTracker()
    assert tracker.position() == Position()
    assert Position().is_consistent
    assert Position().last_boundary == 0


def test_a_marker_without_items_is_pending_and_not_in_the_position() -> None:
    tracker = PositionTracker()
    tracker.follow(FailoverLog.of((7, 0)))
    read(tracker, 0, 10, 4, 10)
    before = tracker.position()
    tracker.snapshot_began(Snapshot(11, 20))
    assert tracker.position() == before
    assert tracker.snapshot == Snapshot(11, 20)
    assert before.offset == at(7, 10, 0, 10)
    tracker.advanced(11)
    assert tracker.position().offset == at(7, 11, 11, 20)


def test_a_marker_that_is_replaced_by_another_was_never_there() -> None:
    tracker = PositionTracker()
    read(tracker, 0, 10, 10)
    tracker.snapshot_began(Snapshot(11, 20))
    read(tracker, 11, 30, 25)
    assert tracker.position().offset == at(0, 25, 11, 30)
    assert tracker.position().boundaries == (10,)


def test_only_the_end_of_a_snapshot_is_a_boundary() -> None:
    tracker = PositionTracker()
    read(tracker, 0, 10, 4, 9)
    assert not tracker.is_consistent
    assert tracker.position().boundaries == ()
    assert tracker.position().last_boundary == 0
    tracker.advanced(10)
    assert tracker.is_consistent
    assert tracker.position().boundaries == (10,)  # type: ignore[unreachable]


def test_a_second_marker_within_a_snapshot_does_not_make_its_first_part_complete() -> None:
    tracker = PositionTracker()
    read(tracker, 0, 10, 5)
    read(tracker, 6, 10, 7)
    assert tracker.position().boundaries == ()
    tracker.advanced(10)
    assert tracker.position().boundaries == (10,)


def test_a_snapshot_without_a_known_end_is_complete_when_it_is_said_to_be() -> None:
    tracker = PositionTracker()
    read(tracker, 0, NO_END, 3, 8)
    assert tracker.position().offset == at(0, 8, 0, NO_END)
    assert not tracker.is_consistent
    tracker.snapshot_ended()
    assert tracker.position().offset == at(0, 8, 8, 8)
    assert tracker.position().boundaries == (8,)


def test_an_empty_snapshot_that_ends_leaves_the_beginning_the_beginning() -> None:
    tracker = PositionTracker()
    tracker.snapshot_began(Snapshot(0, NO_END))
    tracker.snapshot_ended()
    assert tracker.position() == Position()


def test_the_same_boundary_is_remembered_once() -> None:
    tracker = PositionTracker()
    read(tracker, 0, 10, 10)
    tracker.snapshot_ended()
    assert tracker.position().boundaries == (10,)


def test_what_comes_belongs_to_the_newest_branch_that_is_served() -> None:
    tracker = PositionTracker()
    tracker.follow(FailoverLog.of((9, 100), (7, 0)))
    assert tracker.position().offset.vbuuid == 9
    tracker.follow(FailoverLog(()))
    assert tracker.position().offset.vbuuid == 9
    assert tracker.position().log == FailoverLog.of((9, 100), (7, 0))


# ---- going back --------------------------------------------------------------------------

FAR = Position(
    offset=at(9, 1234, 1201, 1300),
    log=FailoverLog.of((9, 900), (7, 0)),
    boundaries=(100, 800, 950, 1200),
    manifest_uid=3,
    purge_seqno=50,
)


@pytest.mark.parametrize(
    ("seqno", "vbuuid", "landed"),
    [(1234, 9, 1200), (NO_END, 9, 1200), (1200, 9, 1200), (1199, 9, 950), (949, 7, 800)],
)
def test_going_back_lands_on_a_boundary_and_on_the_branch_of_then(
    seqno: int, vbuuid: int, landed: int
) -> None:
    back = FAR.rewound(seqno)
    assert back.offset == at(vbuuid, landed, landed, landed)
    assert back.log.newest.vbuuid == vbuuid
    assert back.boundaries == tuple(b for b in FAR.boundaries if b <= landed)
    assert back.manifest_uid == (3 if back.seqno == FAR.seqno else 0)


def test_going_back_below_the_oldest_boundary_is_going_to_the_beginning() -> None:
    assert FAR.rewound(99) == Position()


def test_a_reader_that_knows_no_log_keeps_its_branch() -> None:
    position = Position(offset=at(5, 20, 11, 30), boundaries=(10,))
    assert position.rewound(20).offset == at(5, 10, 10, 10)


def test_where_a_complete_snapshot_ended_is_itself_a_boundary() -> None:
    position = Position(offset=at(5, 20, 11, 20))
    assert position.boundary_at_most(20) == 20
    assert position.boundary_at_most(19) == 0
    assert replace(position, offset=at(5, 19, 11, 20)).boundary_at_most(20) == 0


def test_where_a_reader_began_stays_a_boundary() -> None:
    tracker = PositionTracker(Position(offset=at(5, 100, 100, 100)))
    read(tracker, 101, 200, 150)
    assert tracker.position().last_boundary == 100


# ---- any history -------------------------------------------------------------------------


@dataclass
class Reading:
    """A tracker, and everything that a perfect memory would know."""

    tracker: PositionTracker = field(default_factory=PositionTracker)
    ends: list[int] = field(default_factory=list)
    end: int = 0
    pending: bool = False

    def marker(self, span: int) -> None:
        if self.pending or self.tracker.seqno == self.end:
            self.end = self.tracker.seqno + span
            self.pending = True
            self.tracker.snapshot_began(Snapshot(self.tracker.seqno + 1, self.end))

    def items(self, step: int) -> None:
        if self.tracker.seqno < self.end:
            self.tracker.advanced(min(self.tracker.seqno + step, self.end))
            self.pending = False
            if self.tracker.seqno == self.end:
                self.ends.append(self.end)

    def snapshot(self, span: int) -> None:
        self.items(span)
        self.marker(span)
        self.items(span)


EVENTS = st.tuples(
    st.sampled_from(["marker", "items", "snapshot"]), st.integers(1, 2**40) | st.integers(1, 9)
)
#: Long enough that boundaries are thinned out.
MANY_EVENTS = st.lists(
    st.tuples(st.just("snapshot"), st.sampled_from([1, 2, 5, 1000, 2**20, 2**40])) | EVENTS,
    min_size=70,
    max_size=110,
)


def followed(events: list[tuple[str, int]]) -> Reading:
    reading = Reading()
    for name, number in events:
        getattr(reading, name)(number)
    return reading


@settings(deadline=None)
@given(st.lists(EVENTS, max_size=100))
def test_any_position_is_one_that_a_producer_takes(events: list[tuple[str, int]]) -> None:
    reading = Reading()
    for name, number in events:
        before = reading.tracker.position()
        getattr(reading, name)(number)
        position = reading.tracker.position()
        assert position.offset.snapshot.start <= position.seqno <= position.offset.snapshot.end
        assert position.is_consistent == (position.seqno in (0, *reading.ends))
        if name == "marker":
            assert position == before


@settings(deadline=None)
@given(MANY_EVENTS, st.integers(0, 2**48))
def test_boundaries_are_few_rising_and_ends_of_snapshots(
    events: list[tuple[str, int]], seqno: int
) -> None:
    reading = followed(events)
    position = reading.tracker.position()
    assert len(position.boundaries) <= MOST_BOUNDARIES
    assert all(older < newer for older, newer in pairwise(position.boundaries))
    assert set(position.boundaries) <= set(reading.ends)
    assert position.boundaries[-1:] == tuple(reading.ends[-1:])
    kept = [0, *position.boundaries]
    assert position.boundary_at_most(seqno) == max(b for b in kept if b <= seqno)


@settings(deadline=None)
@given(MANY_EVENTS, st.integers(0, 2**48))
def test_going_back_never_lands_above_and_can_be_followed_on(
    events: list[tuple[str, int]], seqno: int
) -> None:
    position = followed(events).tracker.position()
    back = position.rewound(seqno)
    assert back.seqno <= seqno
    assert back.seqno <= position.seqno
    assert back.is_consistent
    assert back.seqno in (0, *position.boundaries)
    assert back.rewound(seqno) == back
    tracker = PositionTracker(back)
    assert tracker.position() == back
    read(tracker, back.seqno + 1, back.seqno + 5, back.seqno + 1)
    assert tracker.position().last_boundary == back.seqno


@settings(deadline=None)
@given(st.lists(EVENTS, max_size=100), st.lists(EVENTS, max_size=100))
def test_a_reader_that_stops_and_goes_on_knows_what_one_knows_that_never_stopped(
    first: list[tuple[str, int]], second: list[tuple[str, int]]
) -> None:
    through, stopped = followed(first), followed(first)
    if not stopped.pending:  # else the marker has to come again
        stopped.tracker = PositionTracker(stopped.tracker.position())
    for name, number in second:
        getattr(through, name)(number)
        getattr(stopped, name)(number)
    assert stopped.tracker.position() == through.tracker.position()


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_places_far_back_are_kept_as_well_as_near_ones(step: int) -> None:
    """Going back some way never costs many times that way, however long the history is."""
    tracker = PositionTracker()
    seqno = 0
    for _ in range(10_000):
        seqno += step
        read(tracker, seqno, seqno, seqno)
    position = tracker.position()
    for distance in (1, 3, 30, 300, 3000, 5000):
        landed = position.boundary_at_most(seqno - distance * step)
        assert seqno - landed <= 8 * distance * step
