"""Runs worlds of every scope."""

from __future__ import annotations

from typing import Final

from .cluster_world import CLUSTER, ClusterWorld
from .history import Violation
from .plan import Plan
from .world import SINGLE, Outcome, World

__all__ = ["SCOPES", "run"]

#: Every scope, by its name.
SCOPES: Final = {scope.name: scope for scope in (SINGLE, CLUSTER)}


def run(plan: Plan) -> Outcome:
    """Runs a world to its end; its `Violation`, if there is one, is in the outcome."""
    world = World(plan) if plan.scope.nodes == 1 else ClusterWorld(plan)
    try:
        return world.run()
    except Violation as violation:
        outcome = world.outcome()
        outcome.violation = violation
        return outcome
