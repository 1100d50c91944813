"""The whole system in one simulated world: time, network, disks and clients, all from one seed.

    from worlds import SINGLE, Plan, run

    outcome = run(Plan.of(7, SINGLE))
    assert outcome.violation is None, outcome.violation

Server, store, sessions and consumer are the real ones. Event loops, sockets, threads, clocks and
RocksDB are simulated, so that a world of a minute takes milliseconds, and the same seed always
gives the same trace. While the world runs and when it has come to rest, oracles compare what
clients and readers were told with what really happened.
"""

from __future__ import annotations

from .cluster_world import CLUSTER, ClusterWorld
from .committed_branches import Violation
from .failure_report import failure_report
from .faults import SINGLE
from .linearizability import LOSS, WIPE, Operation, explain
from .plan import Plan, Scope, Step
from .running import SCOPES, TABLE, run
from .shrink import shrink
from .world import Outcome, World

__all__ = [
    "CLUSTER",
    "LOSS",
    "SCOPES",
    "SINGLE",
    "TABLE",
    "WIPE",
    "ClusterWorld",
    "Operation",
    "Outcome",
    "Plan",
    "Scope",
    "Step",
    "Violation",
    "World",
    "explain",
    "failure_report",
    "run",
    "shrink",
]
