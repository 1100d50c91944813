"""Makes a failing world smaller: leaves out steps of its plan while the same guarantee breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .plan import Plan
from .running import run
from .world import Outcome

#: Worlds that are tried, at most.
_MOST_TRIES: Final = 300


def shrink(
    plan: Plan, outcome: Outcome, try_plan: Callable[[Plan], Outcome] = run
) -> tuple[Plan, Outcome]:
    """Returns the plan with as few steps as were found, and what becomes of it."""
    assert outcome.violation is not None, "only a world that failed can be shrunk"
    rule, tries = outcome.violation.rule, 0
    size = len(plan.steps) // 2
    while size:
        at = 0
        while at < len(plan.steps) and tries < _MOST_TRIES:
            tries += 1
            smaller = plan.with_steps(plan.steps[:at] + plan.steps[at + size :])
            found = try_plan(smaller)
            if found.violation is not None and found.violation.rule == rule:
                plan, outcome = smaller, found
            else:
                at += size
        size //= 2
    return plan, outcome
