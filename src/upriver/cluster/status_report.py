"""The status of a cluster, as ``upriver cluster status`` shows it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from ..model import VBucketState
from .best_copy import Copies
from .cluster_state import ClusterState, NodeEntry

#: Vbuckets are in trouble by the hundred, for the same reason.
_VBUCKETS_SHOWN: Final = 8


def connection_string(state: ClusterState) -> str:
    """What clients are given to find the cluster."""
    hosts = ",".join(f"{state.host}:{node.port}" for node in state.members)
    return f"couchbase://{hosts}/{state.bucket}"


def is_active(facts: Copies, vbucket: int, node: str | None) -> bool:
    copy = facts.get(node or "", {}).get(vbucket)
    return copy is not None and copy.is_active


def without_active(state: ClusterState, facts: Copies) -> int:
    """How many vbuckets have no active copy where their row says."""
    return sum(not is_active(facts, vbucket, row[0]) for vbucket, row in enumerate(state.rows))


def silent_nodes(state: ClusterState, facts: Collection[str]) -> list[str]:
    """The members that do not answer."""
    return [node.name for node in state.members if node.name not in facts]


def problem_lines(problems: Mapping[int, str]) -> list[str]:
    """One line for each thing that is wrong, with the vbuckets of which it is true."""
    by_reason: dict[str, list[int]] = {}
    for vbucket, reason in sorted(problems.items()):
        by_reason.setdefault(reason, []).append(vbucket)
    lines = []
    for reason, vbuckets in by_reason.items():
        named = ", ".join(map(str, vbuckets[:_VBUCKETS_SHOWN]))
        more = len(vbuckets) - _VBUCKETS_SHOWN
        which = f"vbuckets {named}" if len(vbuckets) > 1 else f"vbucket {named}"
        lines.append(f"{which}{f' and {more} more' if more > 0 else ''}: {reason}")
    return lines


def node_status(
    state: ClusterState, facts: Copies, node: NodeEntry, problem: str
) -> dict[str, Any]:
    """One node: where it is, what it has, and what is wrong with it."""
    copies = facts.get(node.name, {})
    behind = 0
    for vbucket, copy in copies.items():
        active = state.rows[vbucket][0]
        if copy.state is VBucketState.REPLICA and active is not None:
            ahead = facts.get(active, {}).get(vbucket)
            behind += max(0, ahead.seqno - copy.seqno) if ahead is not None else 0
    return {
        "name": node.name,
        "address": f"{state.host}:{node.port}",
        "state": "failed over"
        if node.failed
        else "not answering"
        if node.name not in facts
        else "leaving"
        if node.leaving
        else "up",
        "active": sum(copy.is_active for copy in copies.values()),
        "replica": sum(copy.state is VBucketState.REPLICA for copy in copies.values()),
        "behind": behind,
        "problem": problem,
    }
