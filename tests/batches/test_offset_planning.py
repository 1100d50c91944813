"""From one offset to the next: going on, going back, and how much one batch takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upriver.batches.admission import Limits, spread
from upriver.batches.offset_planning import (
    ObservedVBucket,
    after_reading,
    from_beginning,
    from_latest,
    from_positions,
    plan,
    with_closed_ends,
    with_rereads,
)
from upriver.batches.offset_ranges import (
    SMALL_BATCH,
    ReadStep,
    StepVerdict,
    judge,
    partition,
    steps_between,
)
from upriver.batches.offsets import Boundary, Offset, SourceIdentity, VBucketProgress
from upriver.errors import ConfigError, RemoteProtocolError
from upriver.model import NO_END, FailoverLog, Snapshot, StreamOffset
from upriver.session.stream_position import Position

SOURCE = SourceIdentity("travel", "", 4)
A, B, C = 0xA, 0xB, 0xC
LOG_A = FailoverLog.of((A, 0))

#: Read in steps up to 100, 200 and 300; when it was at 200, the vbucket was at 250.
AT_300 = VBucketProgress(300, log=LOG_A, boundaries=(Boundary(100, 100), Boundary(200, 250)))


def after(
    progress: VBucketProgress, facts: ObservedVBucket, limits: Limits | None = None
) -> VBucketProgress:
    return plan(Offset(SOURCE, {0: progress}), {0: facts}, limits or Limits()).at(0)


# ---- going on ----------------------------------------------------------------------------


def test_on_the_same_branch_the_end_becomes_a_boundary_with_what_is_high_now() -> None:
    found = after(AT_300, ObservedVBucket(350, LOG_A))
    assert found == replace(AT_300, seqno=350, boundaries=(*AT_300.boundaries, Boundary(300, 350)))
    assert found.request == StreamOffset(A, 300, Snapshot(200, 350))


def test_without_anything_new_the_offset_stays_the_same_object() -> None:
    previous = Offset(SOURCE, {0: AT_300})
    assert plan(previous, {0: ObservedVBucket(300, LOG_A)}) is previous


def test_a_vbucket_that_cannot_be_asked_stays_where_it_is() -> None:
    previous = Offset(SOURCE, {0: AT_300, 1: AT_300})
    planned = plan(previous, {1: ObservedVBucket(301, LOG_A)})
    assert planned.at(0) == AT_300
    assert [step.vbucket for step in steps_between(previous, planned)] == [1]


def test_a_quiet_vbucket_settles_in_the_batch_of_another_and_is_not_read() -> None:
    previous = Offset(SOURCE, {0: AT_300, 1: AT_300})
    planned = plan(previous, {0: ObservedVBucket(300, LOG_A), 1: ObservedVBucket(301, LOG_A)})
    assert planned.at(0).boundaries[-1] == Boundary(300, 300)
    assert [step.vbucket for step in steps_between(previous, planned)] == [1]


def test_an_end_is_a_boundary_at_once_if_it_is_known_what_was_seen() -> None:
    planned = Offset(SOURCE, {0: replace(AT_300, rolled_back=True), 1: AT_300, 2: AT_300})
    read = after_reading(planned, {0: 320, 1: 210, 2: NO_END})
    assert read.at(0) == replace(AT_300, boundaries=(*AT_300.boundaries, Boundary(300, 320)))
    assert read.at(1) == AT_300  # its snapshot ended below the end of the step: who knows
    assert read.at(2) == AT_300
    assert Offset.of_dict(read.to_dict(), SOURCE) == read
    on = after(read.at(0), ObservedVBucket(350, LOG_A))
    assert on.request == StreamOffset(A, 300, Snapshot(200, 320))


def test_what_hid_changes_below_the_start_of_a_step_counts_at_its_end_too() -> None:
    hidden = replace(AT_300, boundaries=(Boundary(100, 100), Boundary(200, 310)))
    read = after_reading(Offset(SOURCE, {0: hidden}), {0: 300}).at(0)
    assert read.boundaries == (Boundary(100, 100), Boundary(300, 310))


@pytest.mark.parametrize(("shared", "start", "read_again"), [(320, 300, 0), (319, 200, 100)])
def test_a_failover_right_after_a_batch_takes_back_what_was_seen_of_the_lost(
    shared: int, start: int, read_again: int
) -> None:
    read = after_reading(Offset(SOURCE, {0: AT_300}), {0: 320}).at(0)
    found = after(read, ObservedVBucket(400, FailoverLog.of((B, shared), (A, 0))))
    assert (found.start, found.rolled_back) == (start, read_again > 0)


def test_where_nothing_follows_the_last_ends_become_boundaries() -> None:
    previous = Offset(SOURCE, dict.fromkeys((0, 1, 2), AT_300))
    closed = with_closed_ends(
        previous, {0: ObservedVBucket(300, LOG_A), 1: ObservedVBucket(300, LOG_A, refused=True)}
    )
    assert closed.at(0).boundaries[-1] == Boundary(300, 300)
    assert closed.at(1) is closed.at(2) is AT_300
    assert not steps_between(previous, closed)
    assert with_closed_ends(closed, {0: ObservedVBucket(305, LOG_A)}) is closed


def test_a_settled_vbucket_survives_a_failover_that_lost_nothing_without_a_rollback() -> None:
    settled = replace(AT_300, boundaries=(*AT_300.boundaries, Boundary(300, 300)))
    found = after(settled, ObservedVBucket(310, FailoverLog.of((B, 300), (A, 0))))
    assert (found.start, found.seqno, found.branch, found.rolled_back) == (300, 310, 0, False)
    assert found.vbuuid == B


def test_a_target_ends_the_reading_for_good() -> None:
    facts = ObservedVBucket(400, LOG_A)
    found = after(AT_300, facts, Limits(target={0: 320}))
    assert found.seqno == 320
    assert after(found, facts, Limits(target={0: 320})) == found
    assert after(AT_300, facts, Limits(target={})) == AT_300


def test_a_server_without_a_failover_log_breaks_the_rules() -> None:
    with pytest.raises(RemoteProtocolError, match="at least one branch"):
        ObservedVBucket(5, FailoverLog(()))


# ---- going back --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fork", "point"), [(299, 200), (250, 200), (249, 100), (200, 100), (100, 100), (99, 0), (0, 0)]
)
def test_a_new_branch_goes_back_to_a_boundary_that_was_not_hidden_by_what_is_lost(
    fork: int, point: int
) -> None:
    found = after(AT_300, ObservedVBucket(400, FailoverLog.of((B, fork), (A, 0))))
    assert (found.start, found.seqno, found.branch) == (point, 400, 1)
    assert found.rolled_back
    assert found.vbuuid == B
    assert all(boundary.bound <= fork for boundary in found.boundaries)


def test_a_second_failover_below_the_first_falls_back_on_the_branch_before() -> None:
    at = replace(AT_300, log=FailoverLog.of((B, 260), (A, 0)))
    found = after(at, ObservedVBucket(270, FailoverLog.of((C, 255), (A, 0))))
    assert (found.start, found.seqno) == (200, 270)


def test_older_branches_are_remembered_while_there_is_a_place_on_them_to_go_back_to() -> None:
    log = FailoverLog.of((B, 260), (A, 0))
    assert after(replace(AT_300, log=log), ObservedVBucket(310, log)).log == log
    newer = replace(AT_300, log=log, boundaries=(Boundary(270, 290),))
    assert after(newer, ObservedVBucket(310, log)).log == FailoverLog.of((B, 260))


@pytest.mark.parametrize(
    ("log", "high"),
    [
        (FailoverLog.of((C, 290)), 400),  # a log that has forgotten the branch
        (FailoverLog.of((C, 0)), 400),  # another database
        (LOG_A, 299),  # a server that lost what was read
        (LOG_A, 240),  # ... or what was seen
    ],
)
def test_where_nothing_is_known_to_be_shared_all_is_read_again(log: FailoverLog, high: int) -> None:
    found = after(AT_300, ObservedVBucket(high, log))
    assert (found.start, found.seqno, found.branch, found.rolled_back) == (0, high, 1, True)
    assert found.boundaries == ()


def test_a_server_that_is_back_on_an_older_branch_is_read_from_the_beginning() -> None:
    at = replace(AT_300, log=FailoverLog.of((B, 260), (A, 0)))
    assert after(at, ObservedVBucket(400, LOG_A)).start == 0


def test_a_rollback_is_planned_even_if_nothing_can_be_read_after_it() -> None:
    previous = Offset(SOURCE, {0: AT_300})
    planned = plan(previous, {0: ObservedVBucket(100, FailoverLog.of((B, 100), (A, 0)))})
    (step,) = steps_between(previous, planned)
    assert (step.start, step.end, step.rolls_back, step.has_range) == (100, 100, True, False)
    again = plan(planned, {0: ObservedVBucket(100, FailoverLog.of((B, 100), (A, 0)))})
    assert again is planned


# ---- purged deletions --------------------------------------------------------------------


def test_a_step_that_may_have_been_refused_is_made_good_by_reading_all() -> None:
    facts = ObservedVBucket(350, LOG_A, purge_seqno=201, refused=True)
    found = after(AT_300, facts, Limits(rows=10))
    assert (found.start, found.seqno, found.branch, found.rolled_back) == (0, 350, 1, True)
    assert found.purge_seqno == 201


def test_a_purge_that_refuses_nothing_is_harmless() -> None:
    assert after(AT_300, ObservedVBucket(350, LOG_A, purge_seqno=200)).start == 300


def test_a_first_load_in_small_steps_names_the_purge_seqno_that_it_began_under() -> None:
    facts = {0: ObservedVBucket(1_000, LOG_A, purge_seqno=250)}
    offset, starts = from_beginning(SOURCE), []
    for _ in range(4):
        previous, offset = offset, plan(offset, facts, Limits(rows=100))
        (step,) = steps_between(previous, offset)
        starts.append((step.start, step.purge_seqno))
    assert starts == [(0, 250), (100, 250), (200, 250), (300, 0)]
    raised = {0: ObservedVBucket(1_000, LOG_A, purge_seqno=350, refused=True)}
    assert plan(offset, raised, Limits(rows=100)).at(0).start == 0


def test_what_is_read_whole_waits_for_room_but_one_always_goes() -> None:
    previous = Offset(SOURCE, {0: AT_300, 1: AT_300, 2: AT_300})
    facts = {v: ObservedVBucket(350, LOG_A, refused=v < 2) for v in range(3)}
    planned = plan(previous, facts, Limits(rows=10))
    assert planned.at(0).seqno == 350
    assert planned.at(1) == AT_300
    assert planned.at(2).seqno == 301


# ---- the first offset --------------------------------------------------------------------


def test_latest_holds_nothing_so_a_failover_goes_back_just_to_the_fork() -> None:
    facts = {v: ObservedVBucket(70 * v, FailoverLog.of((A + v, 0))) for v in range(4)}
    first = from_latest(SOURCE, facts)
    assert first.progress.keys() == {1, 2, 3}
    assert not steps_between(None, first)
    later = plan(first, {1: ObservedVBucket(80, FailoverLog.of((0xF, 60), (A + 1, 0)))})
    assert (later.at(1).start, later.at(1).seqno, later.at(1).origin) == (60, 80, 60)


def test_latest_needs_every_vbucket() -> None:
    with pytest.raises(ConfigError, match="3 vbuckets have no server now, the first is 1"):
        from_latest(SOURCE, {0: ObservedVBucket(5, LOG_A)})


def test_given_positions_are_kept_with_the_places_to_which_they_could_go_back() -> None:
    position = Position(
        StreamOffset(A, 90, Snapshot(80, 120)), log=LOG_A, boundaries=(30, 80), purge_seqno=100
    )
    first = from_positions(SOURCE, {2: position, 3: Position()})
    assert first.progress == {
        2: VBucketProgress(
            90,
            log=LOG_A,
            boundaries=(Boundary(30, 30), Boundary(80, 80), Boundary(90, 120)),
            purge_seqno=100,
        )
    }
    assert not steps_between(None, first)
    assert plan(first, {2: ObservedVBucket(150, LOG_A)}).at(2).start == 90
    forked = FailoverLog.of((B, 110), (A, 0))
    assert plan(first, {2: ObservedVBucket(150, forked)}).at(2).start == 80


def test_a_position_in_a_snapshot_of_unknown_end_is_no_place_to_go_back_to() -> None:
    position = Position(StreamOffset(A, 90, Snapshot(80, NO_END)), boundaries=(80,))
    first = from_positions(SOURCE, {0: position})
    assert plan(first, {0: ObservedVBucket(150, LOG_A)}).at(0).start == 90
    forked = FailoverLog.of((B, 149), (A, 0))
    assert plan(first, {0: ObservedVBucket(150, forked)}).at(0).start == 80


@pytest.mark.parametrize("vbucket", [-1, 4])
def test_another_number_of_vbuckets_is_refused(vbucket: int) -> None:
    with pytest.raises(ConfigError, match="4 vbuckets"):
        from_positions(SOURCE, {vbucket: Position()})
    with pytest.raises(ConfigError, match="4 vbuckets"):
        plan(from_beginning(SOURCE), {vbucket: ObservedVBucket(1, LOG_A)})


# ---- how much a batch takes --------------------------------------------------------------

BACKLOGS = st.dictionaries(st.integers(0, 1023), st.integers(0, 10**6), max_size=40)


@given(BACKLOGS, st.integers(1, 10**6))
def test_what_is_granted_is_fair_bounded_and_never_nothing(
    backlogs: dict[int, int], seqnos: int
) -> None:
    granted = spread(backlogs, seqnos)
    waiting = [v for v, backlog in backlogs.items() if backlog]
    assert all(granted[v] <= backlogs[v] for v in backlogs)
    assert all(granted[v] >= 1 for v in waiting)
    assert sum(granted.values()) <= max(seqnos, len(waiting))
    cut = [granted[v] for v in waiting if granted[v] < backlogs[v]]
    if cut:
        assert sum(granted.values()) >= seqnos
        assert max(granted.values()) - min(cut) <= 1
    assert spread(dict(reversed(backlogs.items())), seqnos) == granted


@given(BACKLOGS, st.integers(1, 10**6), st.sets(st.integers(0, 1023)))
def test_what_cannot_be_cut_is_granted_whole_or_not_at_all(
    backlogs: dict[int, int], seqnos: int, whole: set[int]
) -> None:
    whole &= backlogs.keys()
    granted = spread(backlogs, seqnos, whole)
    assert all(granted[v] in (0, backlogs[v]) for v in whole)
    if any(backlogs[v] for v in whole):
        smallest = min(whole, key=lambda v: (backlogs[v], v))
        assert granted[smallest] == backlogs[smallest]


def test_without_limits_all_is_granted() -> None:
    assert spread({1: 5, 2: 10**9}, None) == {1: 5, 2: 10**9}


@pytest.mark.parametrize(
    ("limits", "seqnos"),
    [
        (Limits(), None),
        (Limits(rows=7), 7),
        (Limits(bytes=1_000, bytes_per_row=300.0), 3),
        (Limits(rows=2, bytes=1_000, bytes_per_row=300.0), 2),
        (Limits(rows=9, bytes=100, bytes_per_row=300.0), 1),
    ],
)
def test_rows_and_bytes_are_one_limit(limits: Limits, seqnos: int | None) -> None:
    assert limits.seqnos == seqnos


def test_limits_that_would_read_nothing_are_refused() -> None:
    for rows, size, each in ((0, None, 1.0), (None, 0, 1.0), (None, 10, 0.0)):
        with pytest.raises(ConfigError):
            Limits(rows=rows, bytes=size, bytes_per_row=each)


@given(st.lists(st.integers(1, 9_000), max_size=60), st.integers(1, 80))
def test_steps_are_packed_into_groups_of_about_the_same_size(sizes: list[int], count: int) -> None:
    steps = [a_step(vbucket, end=size) for vbucket, size in enumerate(sizes)]
    groups = partition(steps, count)
    assert sorted((s for group in groups for s in group), key=lambda s: s.vbucket) == steps
    assert all(groups)
    assert len(groups) <= count
    loads = [sum(step.size for step in group) for group in groups]
    if sum(sizes) < SMALL_BATCH:
        assert len(groups) <= 1
    else:
        assert len(groups) == min(count, len(steps))
        assert max(loads) - min(loads) <= max(sizes)


# ---- what tasks do -----------------------------------------------------------------------


def a_step(vbucket: int = 0, start: int = 0, end: int = 10) -> ReadStep:
    return ReadStep(vbucket, 0, StreamOffset(B, start, Snapshot(0, end)), end)


def test_only_what_is_in_the_range_of_a_step_is_one_of_its_rows() -> None:
    step = a_step(start=5, end=8)
    assert [seqno for seqno in range(12) if step.wants(seqno)] == [6, 7, 8]


@pytest.mark.parametrize(
    ("log", "resumed", "verdict"),
    [
        (FailoverLog.of((B, 3), (A, 0)), False, StepVerdict.SKIP),
        (FailoverLog.of((B, 3), (A, 0)), True, StepVerdict.START_OVER),
        (FailoverLog.of((C, 9), (B, 3), (A, 0)), False, StepVerdict.SKIP),
        (FailoverLog.of((C, 9), (B, 3), (A, 0)), True, StepVerdict.SKIP),
        (FailoverLog(()), False, StepVerdict.RETRY),
        (LOG_A, False, StepVerdict.RETRY),
        (LOG_A, True, StepVerdict.RETRY),
        (FailoverLog.of((C, 2), (A, 0)), True, StepVerdict.RETRY),
    ],
)
def test_answers_are_judged_by_the_branch_that_was_planned(
    log: FailoverLog, resumed: bool, verdict: StepVerdict
) -> None:
    step = a_step(start=5)
    asked = StreamOffset(B, 7, Snapshot(5, 10)) if resumed else step.offset
    assert judge(step, asked, log) is verdict


def test_a_replayed_batch_only_rolls_back_where_the_driver_knows_a_newer_branch() -> None:
    fork = FailoverLog.of((B, 120), (A, 0))
    previous = Offset(SOURCE, dict.fromkeys(range(3), AT_300))
    facts = {
        0: ObservedVBucket(400, LOG_A),
        1: ObservedVBucket(400, fork),
        2: ObservedVBucket(400, fork),
    }
    planned = plan(previous, facts)
    steps = steps_between(previous, planned, {0: C, 1: C, 2: B})
    assert [(s.vbucket, s.start, s.end, s.rolls_back) for s in steps] == [
        (1, 100, 100, True),
        (2, 100, 400, True),
    ]


def test_a_replayed_batch_restates_an_emptied_vbucket_on_any_branch() -> None:
    previous = Offset(SOURCE, dict.fromkeys(range(2), AT_300))
    flushed = FailoverLog.of((B, 0))
    facts = {0: ObservedVBucket(0, flushed), 1: ObservedVBucket(400, flushed)}
    planned = with_rereads(previous, plan(previous, facts), facts, lambda vb, seqno: False)
    newest = FailoverLog.of((C, 5), (B, 0))
    steps = steps_between(previous, planned, {0: C, 1: C}, restates=True)
    assert [(s.vbucket, s.end, s.rolls_back) for s in steps] == [(0, 0, True)]
    after_it = plan(planned, {vb: ObservedVBucket(500, newest) for vb in range(2)})
    assert [after_it.at(vb).rolled_back for vb in range(2)] == [False, True]
