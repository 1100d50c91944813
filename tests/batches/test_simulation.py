"""Thousands of random histories: the table is right with the rule, and wrong without a part of it.

``UPRIVER_HISTORIES=200000 pytest tests/batches/test_simulation.py`` tries more of them. A failure
names the seeds; ``Simulation(seed, World()).run()`` shows one again.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice

import pytest
from simulation import Row, World, fold, wrong_histories

from examples import examples
from upriver.batches import offset_planning
from upriver.batches.admission import Limits, spread
from upriver.batches.offset_planning import ObservedVBucket, plan
from upriver.batches.offset_ranges import ReadStep, StepVerdict, judge
from upriver.batches.offsets import Boundary, Offset, VBucketProgress
from upriver.batches.read_ahead import ArrivedSeqnos
from upriver.model import FailoverLog, Snapshot, StreamOffset, rollback_point

#: In fewer than 2,500 of them some kinds of steps are never seen.
HISTORIES = int(os.environ.get("UPRIVER_HISTORIES", max(2_500, examples(10_000))))
#: The seed of the first of them; those of another UPRIVER_CHAOS_SEED are all others.
FIRST = int(os.environ.get("UPRIVER_CHAOS_SEED", "0")) * HISTORIES
#: How many boundaries an offset keeps: as many as it would, and as a bucket of 1024 vbuckets does.
KEPT = {"the usual": None, "few": 5}
#: A mutant of the rule must be found out within as many histories; the rarest takes two thousand.
PATIENCE = 5_000


@pytest.mark.parametrize(("nth", "boundaries"), list(enumerate(KEPT.values())), ids=KEPT)
def test_the_table_equals_the_documents_whenever_all_was_read(
    nth: int, boundaries: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if boundaries is not None:
        monkeypatch.setattr(offset_planning, "most_boundaries", lambda vbuckets: boundaries)
    seen: Counter[str] = Counter()
    seeds = range(FIRST + nth, FIRST + HISTORIES, len(KEPT))
    wrong = list(wrong_histories(seeds, World(), seen))
    assert not wrong, f"wrong tables with the seeds {wrong[:10]}"
    expected = {verdict.name for verdict in StepVerdict}
    expected |= {"caught up", "replay", "rollback", "rollback to 0", "branch forgotten"}
    expected |= {"read ahead"}
    assert seen.keys() >= expected


def test_a_server_that_tells_no_seqnos_has_a_right_table_too() -> None:
    seen: Counter[str] = Counter()
    seeds = range(FIRST, FIRST + HISTORIES // 2)
    wrong = list(wrong_histories(seeds, World(tells_seqnos=False), seen))
    assert not wrong, f"wrong tables with the seeds {wrong[:10]}"
    assert seen.keys() >= {"caught up", "replay", "rollback to 0", "SKIP", "START_OVER"}


# ---- the simulation can see what it is there for -----------------------------------------


def naive_plan(previous: Offset, facts: Mapping[int, ObservedVBucket], limits: Limits) -> Offset:
    """Claims to be consistent wherever it is, and believes what the producer then says."""
    starts: dict[int, VBucketProgress] = {}
    for vbucket, fact in facts.items():
        at = previous.at(vbucket)
        claim = StreamOffset(at.vbuuid, at.seqno, Snapshot(at.seqno, at.seqno))
        point = rollback_point(fact.failover_log, claim, high_seqno=fact.high_seqno)
        start = at.seqno if point is None else min(at.seqno, point)
        starts[vbucket] = VBucketProgress(
            seqno=start,
            branch=at.branch + (point is not None),
            log=fact.failover_log,
            boundaries=(Boundary(start, start),) if start > at.origin else (),
            origin=min(at.origin, start),
            rolled_back=point is not None,
        )
    granted = spread(
        {v: max(0, facts[v].high_seqno - start.seqno) for v, start in starts.items()}, limits.seqnos
    )
    moved = {
        v: replace(start, seqno=start.seqno + granted[v])
        for v, start in starts.items()
        if granted[v] or start.rolled_back
    }
    return Offset(previous.source, {**previous.progress, **moved}) if moved else previous


def plan_without_bounds(
    previous: Offset, facts: Mapping[int, ObservedVBucket], limits: Limits
) -> Offset:
    planned = plan(previous, facts, limits)
    trusting = {
        v: replace(p, boundaries=tuple(Boundary(b.seqno, b.seqno) for b in p.boundaries))
        for v, p in planned.progress.items()
    }
    return Offset(planned.source, trusting)


def plan_on_one_branch(
    previous: Offset, facts: Mapping[int, ObservedVBucket], limits: Limits
) -> Offset:
    planned = plan(previous, facts, limits)
    flat = {v: replace(p, branch=0) for v, p in planned.progress.items()}
    return Offset(planned.source, flat)


def plan_without_rollback_rows(
    previous: Offset, facts: Mapping[int, ObservedVBucket], limits: Limits
) -> Offset:
    planned = plan(previous, facts, limits)
    silent = {v: replace(p, rolled_back=False) for v, p in planned.progress.items()}
    return Offset(planned.source, silent)


def plan_after_any_refusal(
    previous: Offset, facts: Mapping[int, ObservedVBucket], limits: Limits
) -> Offset:
    deaf = {v: replace(fact, purge_seqno=0, refused=False) for v, fact in facts.items()}
    return plan(previous, deaf, limits)


def plan_with_cut_whole_reads(
    previous: Offset, facts: Mapping[int, ObservedVBucket], limits: Limits
) -> Offset:
    """Reads on in small steps where the rule takes all, so it is refused for ever."""
    planned = plan(previous, facts, limits)
    cut = {
        v: replace(p, seqno=1) if p.rolled_back and p.start == 0 and p.seqno else p
        for v, p in planned.progress.items()
    }
    return Offset(planned.source, cut)


def skips_what_is_unknown(step: ReadStep, asked: StreamOffset, log: FailoverLog) -> StepVerdict:
    verdict = judge(step, asked, log)
    return StepVerdict.SKIP if verdict is StepVerdict.RETRY else verdict


def skips_the_rest(step: ReadStep, asked: StreamOffset, log: FailoverLog) -> StepVerdict:
    verdict = judge(step, asked, log)
    return StepVerdict.SKIP if verdict is StepVerdict.START_OVER else verdict


class SeqnosWithoutFloor(ArrivedSeqnos):
    """Takes what has arrived for all that tasks may have seen."""

    def sampled(self, highs: Mapping[int, int]) -> None:
        super().sampled({})

    def __init__(self, at: Mapping[int, tuple[int, FailoverLog]], floor: object = None) -> None:
        super().__init__(at)


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(World(plan=naive_plan, busy_reading=False, purges=False), id="naive claims"),
        pytest.param(World(plan=plan_without_bounds), id="no sampled bounds"),
        pytest.param(World(plan=plan_on_one_branch), id="the branch number stays"),
        pytest.param(World(plan=plan_without_rollback_rows), id="no rollback rows"),
        pytest.param(World(plan=plan_after_any_refusal), id="refusals are not noticed"),
        pytest.param(World(plan=plan_with_cut_whole_reads), id="whole reads are cut"),
        pytest.param(World(hasty_facts=True), id="a log that is older than the seqno"),
        pytest.param(World(trusts_old_proofs=True), id="only the first step is looked after"),
        pytest.param(World(judge=skips_what_is_unknown), id="unknown branches are skipped"),
        pytest.param(World(judge=skips_the_rest), id="a refused rest is skipped"),
        pytest.param(World(seqnos=SeqnosWithoutFloor), id="tasks saw no more than has arrived"),
        pytest.param(
            World(tells_seqnos=False, admits_it=False), id="what a stream has brought as a bound"
        ),
    ],
)
def test_a_rule_that_lacks_a_part_makes_wrong_tables(mutant: World) -> None:
    wrong = list(islice(wrong_histories(range(PATIENCE), mutant), 3))
    assert len(wrong) == 3


def test_the_calm_world_of_the_naive_claim_is_no_trouble_for_the_rule() -> None:
    calm = World(busy_reading=False, purges=False)
    assert not list(wrong_histories(range(1_000), calm))


# ---- folding -----------------------------------------------------------------------------


def test_a_rollback_row_kills_what_is_above_it_on_lower_branches_of_its_vbucket() -> None:
    rows = [
        Row(0, 0, 1, "a", 10),
        Row(0, 0, 3, "a", 30),
        Row(0, 0, 4, "b", 40),
        Row(1, 0, 4, "c", 41),
        Row(0, 1, 2),
        Row(0, 1, 3, "d", 31),
    ]
    assert fold(rows) == {(0, "a"): 10, (1, "c"): 41, (0, "d"): 31}
    assert fold(reversed(rows)) == fold(rows)


def test_the_newest_row_of_a_key_counts_and_a_deletion_removes_it() -> None:
    assert fold([Row(0, 0, 2, "a", 2), Row(0, 0, 1, "a", 1), Row(0, 0, 3, "b", 3)]) == {
        (0, "a"): 2, (0, "b"): 3,
    }  # fmt: skip
    assert fold([Row(0, 0, 1, "a", 1), Row(0, 0, 2, "a", None)]) == {}
