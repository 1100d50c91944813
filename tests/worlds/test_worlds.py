"""Simulated worlds: a fixed set of seeds, the same trace from the same seed, and shrinking.

A fixed set, so that a change of the code alone can fail it, and in the slow tier a few fresh seeds:
in time these see what no fixed set does. A failure prints its seed and how to repeat it, and the
next run begins with the fresh seeds that failed.
"""

from __future__ import annotations

import logging
import os
import pickle
import secrets
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import failing_worlds
import pytest

from upriver.store import SyncMode
from upriver.wire.protocol_enums import DurabilityLevel
from worlds import (
    SCOPES,
    SINGLE,
    Outcome,
    Plan,
    Step,
    Violation,
    World,
    failure_report,
    run,
    shrink,
)

#: Seeds of every scope that run with the other tests.
SEEDS = {"single": range(60), "cluster": range(12), "table": range(12)}


#: How many fresh seeds of every scope run besides.
FRESH = {"single": 40, "cluster": 8, "table": 8}
#: The first fresh seed, to run the same ones again.
FRESH_SEED = "UPRIVER_WORLD_SEED"


def require_kept(seed: int, scope: str) -> None:
    plan = Plan.of(seed, SCOPES[scope])
    outcome = run(plan)
    assert outcome.violation is None, failure_report(plan, outcome)


@pytest.mark.parametrize(("scope", "part"), [(scope, part) for scope in SEEDS for part in range(4)])
def test_guarantees_hold_whatever_breaks(scope: str, part: int) -> None:
    for seed in SEEDS[scope][part::4]:
        require_kept(seed, scope)


@pytest.mark.slow
@pytest.mark.parametrize("scope", list(FRESH))
def test_guarantees_hold_with_fresh_seeds(scope: str) -> None:
    first = int(os.environ.get(FRESH_SEED) or secrets.randbelow(2**40))
    logging.getLogger(__name__).info("%s=%d runs the same worlds again", FRESH_SEED, first)
    require_kept_or_remember(scope, range(first, first + FRESH[scope]))


def require_kept_or_remember(
    scope: str, fresh: Iterable[int], directory: Path = failing_worlds.DIRECTORY
) -> None:
    """All seeds run, those that failed before first; each that fails is kept for the next run."""
    reports = []
    for seed in (*failing_worlds.failing(scope, directory), *fresh):
        plan = Plan.of(seed, SCOPES[scope])
        outcome = run(plan)
        failing_worlds.remember(
            scope, seed, broke=outcome.violation is not None, directory=directory
        )
        if outcome.violation is not None:
            reports.append(failure_report(plan, outcome))
    assert not reports, "\n\n".join(reports)


def test_a_fresh_seed_that_fails_is_repeated_until_it_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 7 breaks a rule until that is mended; later runs draw other seeds."""
    ran: list[int] = []
    mended = False

    def judged(plan: Plan) -> Outcome:
        ran.append(plan.seed)
        outcome = Outcome(plan.seed, "", Counter(), 0.0)
        if plan.seed == 7 and not mended:
            outcome.violation = Violation("example", "a write was lost")
        return outcome

    monkeypatch.setattr(sys.modules[__name__], "run", judged)
    monkeypatch.setattr(
        sys.modules[__name__], "failure_report", lambda plan, outcome: f"seed {plan.seed} broke it"
    )
    with pytest.raises(AssertionError, match="seed 7 broke it"):
        require_kept_or_remember("single", range(6, 9), tmp_path)
    assert ran == [6, 7, 8]
    with pytest.raises(AssertionError, match="seed 7 broke it"):
        require_kept_or_remember("single", range(20, 21), tmp_path)
    assert ran[3:] == [7, 20]
    mended = True
    for _ in range(2):
        require_kept_or_remember("single", range(30, 31), tmp_path)
    assert ran[5:] == [7, 30, 30]


@pytest.mark.parametrize(
    "seed",
    [
        458123038798,  # a power failure took a failover back
        716697350958,  # a power failure took a flush back
        716697350913,  # a document expired while the last maintenance ran
        655992817384,  # a driver died whose clock was ahead, and its lease stayed
        359702743304,  # the log of a table that had no checkpoint yet was not shortened
    ],
)
def test_guarantees_hold_where_a_table_broke_them_once(seed: int) -> None:
    require_kept(seed, "table")


@pytest.mark.parametrize("scope", list(SCOPES))
def test_nothing_breaks_after_a_world_is_mended(scope: str) -> None:
    latest = max(step.at for seed in range(200) for step in Plan.of(seed, SCOPES[scope]).steps)
    assert latest <= SCOPES[scope].seconds


def test_a_power_failure_may_take_back_a_failover() -> None:
    """A reader of the branch that is gone goes back, and reads what the failover had undone."""
    sets = [_set(at, key) for at, key in ((1.0, b"k1"), (3.0, b"k2"), (3.1, b"k1"))]
    failover = Step(3.5, "failover", (0, 0.0, 1))
    lost = [_set(3.6, b"k3"), Step(3.8, "power failure", (0, 1.0, 0))]
    gone = 0
    for seed in range(16):
        plan = replace(Plan.of(seed, SINGLE), vbuckets=1, sync=SyncMode.RELAXED)
        world = World(plan.with_steps((*sets, failover, *lost)))
        world.run()
        gone += world.documents(0)[b"k1"] == b"31"
    assert 0 < gone < 16  # or nothing was decided


def test_a_power_failure_may_take_back_a_flush() -> None:
    steps = [Step(3.5, "flush", (0, 0.0, 0)), Step(3.8, "power failure", (0, 1.0, 0))]
    back = 0
    for seed in range(16):
        plan = replace(Plan.of(seed, SINGLE), vbuckets=1, sync=SyncMode.RELAXED)
        world = World(plan.with_steps((_set(1.0, b"k1"), *steps)))
        world.run()
        back += bool(world.documents(0))
    assert 0 < back < 16  # or nothing was decided


def _set(at: float, key: bytes) -> Step:
    return Step(at, "operation", (0, "set", key, b"%d" % (at * 10), DurabilityLevel.NONE))


def test_a_seed_is_a_trace() -> None:
    hashes = [run(Plan.of(seed, SINGLE)).trace_hash for seed in (3, 3, 4)]
    assert hashes[0] == hashes[1] != hashes[2]


def test_what_breaks_happens() -> None:
    """A world in which nothing happens would show nothing."""
    happened = {step.action for seed in range(60) for step in Plan.of(seed, SINGLE).steps}
    assert happened >= set(SINGLE.kinds)
    outcome = run(Plan.of(0, SINGLE))
    assert outcome.counts["change"] > 5


def test_a_violation_reaches_another_process() -> None:
    """`make simulate` runs its worlds in several."""
    sent = pickle.loads(pickle.dumps(Violation("one rule", "was broken")))
    assert (sent.rule, str(sent)) == ("one rule", "one rule: was broken")


def test_a_failing_world_is_shrunk() -> None:
    """A rule that two steps together break is shrunk to these two."""
    plan = Plan.of(1, SINGLE)
    steps = (*plan.steps, Step(3.0, "kill", (0, 1.0, 0)), Step(4.0, "purge", (0, 1.0, 0)))

    def judge(tried: Plan) -> Outcome:
        outcome = Outcome(tried.seed, "", run(tried.with_steps(())).counts, 0.0)
        if {"kill", "purge"} <= {step.action for step in tried.steps}:
            outcome.violation = Violation("example", "both")
        return outcome

    whole = plan.with_steps(steps)
    shrunk, outcome = shrink(whole, judge(whole), judge)
    assert sorted(step.action for step in shrunk.steps) == ["kill", "purge"]
    assert outcome.violation is not None


def test_a_failure_says_what_repeats_it() -> None:
    """Here the rule breaks with the first operation of a client."""
    plan = Plan.of(8, SINGLE)

    def judge(tried: Plan) -> Outcome:
        outcome = run(tried)
        if outcome.counts["step"]:
            outcome.violation = Violation("example", "a step was made")
        return outcome

    lines = failure_report(plan, judge(plan), judge).splitlines()
    assert lines[0] == "scope single, seed 8: example: a step was made"
    assert lines[1] == f"shrunk from {len(plan.steps)} to 1 steps: example: a step was made"
    assert any(line.endswith("mend") for line in lines)
    assert lines[-1] == "repeat it: make simulate SEEDS=8 SCOPE=single"


def test_an_exception_of_our_own_code_is_a_violation() -> None:
    plan = Plan.of(8, SINGLE).with_steps([Step(1.0, "no such fault")])
    violation = run(plan).violation
    assert violation is not None
    assert violation.rule == "no KeyError"
    assert "world.py" in violation.text
