"""The report of a world that broke a guarantee: its seed, the shortest plan and its trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .plan import Plan
from .running import run
from .shrink import shrink
from .world import Outcome

#: Lines of the trace that are shown; the last ones, since the violation is at its end.
_SHOWN_LINES: Final = 60


def failure_report(plan: Plan, outcome: Outcome, try_plan: Callable[[Plan], Outcome] = run) -> str:
    """Shrinks a failing world; returns what it takes to understand it and to repeat it."""
    scope, seed = plan.scope.name, plan.seed
    shortest, found = shrink(plan, outcome, try_plan)
    shown = found.trace[-_SHOWN_LINES:]
    left_out = len(found.trace) - len(shown)
    return "\n".join(
        [
            f"scope {scope}, seed {seed}: {outcome.violation}",
            f"shrunk from {len(plan.steps)} to {len(shortest.steps)} steps: {found.violation}",
            *(f"  {step}" for step in shortest.steps),
            f"its trace{f' without the first {left_out} lines' if left_out else ''}:",
            *(f"  {line}" for line in shown),
            f"repeat it: make simulate SEEDS={seed} SCOPE={scope}",
        ]
    )
