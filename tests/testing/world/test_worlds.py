"""Simulated worlds: a fixed set of seeds, the same trace from the same seed, and shrinking.

`make simulate` runs fresh seeds. These are fixed, so that a change of the code alone can fail them.
"""

from __future__ import annotations

import pickle

import pytest

from upriver.testing.world import SCOPES, SINGLE, Outcome, Plan, Step, Violation, run, shrink

#: Seeds of every scope that run with the other tests.
SEEDS = {"single": range(60), "cluster": range(12), "table": range(12)}


@pytest.mark.parametrize(("scope", "part"), [(scope, part) for scope in SEEDS for part in range(4)])
def test_guarantees_hold_whatever_breaks(scope: str, part: int) -> None:
    for seed in SEEDS[scope][part::4]:
        outcome = run(Plan.of(seed, SCOPES[scope]))
        assert outcome.violation is None, f"make simulate SEEDS={seed} SCOPE={scope} shows it"


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
