"""Runs worlds of every scope."""

from __future__ import annotations

import traceback
from dataclasses import replace
from typing import Final

from .cluster_faults import CLUSTER_FAULTS
from .cluster_world import CLUSTER, ClusterWorld
from .committed_branches import Violation
from .faults import FAULTS, SINGLE
from .plan import Plan
from .world import Outcome, World

#: One node, and a pipeline that writes a table to an object store.
TABLE: Final = replace(
    SINGLE,
    name="table",
    operations=40,
    faults=8,
    seconds=15.0,
    kinds=(
        "kill",
        "power failure",
        "failover",
        "small failover",
        "small failover",
        "small failover",
        "purge",
        "flush",
        "expire",
        "cut",
        "half-open",
        "partition",
        "driver dies",
        "driver dies",
        "second driver",
        "second driver",
        "stop driver",
        "maintenance",
        "slow store",
        "stop process",
        "clock jump",
    ),
)
#: Calls of the traceback of an exception that are shown.
_SHOWN_CALLS: Final = 6
#: Every scope, by its name.
SCOPES: Final = {scope.name: scope for scope in (SINGLE, CLUSTER, TABLE)}
FAULTS.update(CLUSTER_FAULTS)


def _world(plan: Plan) -> World:
    if plan.scope.name == TABLE.name:
        from .table_world import TableWorld  # needs the extra "spark"

        return TableWorld(plan)
    return World(plan) if plan.scope.nodes == 1 else ClusterWorld(plan)


def run(plan: Plan) -> Outcome:
    """Runs a world to its end; its `Violation`, if there is one, is in the outcome.

    Any other exception is one of our own code, and a violation as well.
    """
    world = _world(plan)
    try:
        return world.run()
    except Exception as problem:
        outcome = world.outcome()
        outcome.violation = _as_violation(problem)
        return outcome


def _as_violation(problem: Exception) -> Violation:
    if isinstance(problem, Violation):
        return problem
    places = traceback.extract_tb(problem.__traceback__)[-_SHOWN_CALLS:]
    where = "\n".join(f"  {one.filename}:{one.lineno} in {one.name}" for one in places)
    return Violation(f"no {type(problem).__name__}", f"{problem}\n{where}")
