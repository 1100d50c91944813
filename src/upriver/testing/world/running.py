"""Runs worlds of every scope."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from .cluster_world import CLUSTER, ClusterWorld
from .history import Violation
from .plan import Plan
from .world import SINGLE, Outcome, World

__all__ = ["SCOPES", "TABLE", "run"]

#: One node, and a pipeline that writes a table to an object store.
TABLE: Final = replace(
    SINGLE,
    name="table",
    operations=30,
    faults=6,
    kinds=(
        "kill",
        "power failure",
        "failover",
        "failover",
        "failover",
        "purge",
        "purge",
        "cut",
        "half-open",
        "partition",
        "driver dies",
        "driver dies",
        "second driver",
        "stop process",
    ),
)
#: Every scope, by its name.
SCOPES: Final = {scope.name: scope for scope in (SINGLE, CLUSTER, TABLE)}


def _world(plan: Plan) -> World:
    if plan.scope.name == TABLE.name:
        from .table_world import TableWorld  # needs the extra "spark"

        return TableWorld(plan)
    return World(plan) if plan.scope.nodes == 1 else ClusterWorld(plan)


def run(plan: Plan) -> Outcome:
    """Runs a world to its end; its `Violation`, if there is one, is in the outcome."""
    world = _world(plan)
    try:
        return world.run()
    except Violation as violation:
        outcome = world.outcome()
        outcome.violation = violation
        return outcome
