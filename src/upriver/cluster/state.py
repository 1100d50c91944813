"""What a cluster is, as its manager keeps it on disk: nodes, rows, and the version of the map.

The file is replaced as a whole, so that a manager that is killed finds the old or the new one.
What a node is in the middle of is not kept: whoever starts looks at the nodes themselves.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from ..errors import ConfigError
from ..producer.cluster_config import (
    CAPABILITIES,
    ClusterMap,
    NodeAddress,
    bucket_json,
    cluster_json,
)
from ..store.settings import MAX_VBUCKETS
from .plan import Row

__all__ = ["MAX_NODES", "ClusterState", "NodeEntry", "load", "save"]

#: A manager and its nodes share one machine.
MAX_NODES: Final = 32
#: Copies beside the active one, as many as Couchbase has.
MAX_REPLICAS: Final = 3
_NOBODY: Final = -1


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """One node."""

    name: str
    port: int
    #: Failed over: it is down, and none of its copies counts.
    failed: bool = False
    #: Its vbuckets are being moved away for it to be removed.
    leaving: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """A cluster of one bucket."""

    bucket: str
    host: str
    replicas: int
    nodes: tuple[NodeEntry, ...]
    rows: tuple[Row, ...]
    rev: int = 1

    @property
    def members(self) -> tuple[NodeEntry, ...]:
        """The nodes that take part."""
        return tuple(node for node in self.nodes if not node.failed)

    def node(self, name: str) -> NodeEntry:
        for node in self.nodes:
            if node.name == name:
                return node
        known = ", ".join(node.name for node in self.nodes)
        raise ConfigError(f"there is no node {name!r}; there are {known}")

    def with_node(self, entry: NodeEntry) -> ClusterState:
        """With a node added, or changed if there is one of its name."""
        if any(node.name == entry.name for node in self.nodes):
            nodes = tuple(entry if node.name == entry.name else node for node in self.nodes)
        else:
            nodes = (*self.nodes, entry)
        return replace(self, nodes=nodes, rev=self.rev + 1)

    def without_node(self, name: str) -> ClusterState:
        nodes = tuple(node for node in self.nodes if node.name != name)
        return replace(self, nodes=nodes, rev=self.rev + 1)

    def with_rows(self, rows: tuple[Row, ...]) -> ClusterState:
        return replace(self, rows=rows, rev=self.rev + 1)

    def with_row(self, vbucket: int, row: Row) -> ClusterState:
        return self.with_rows((*self.rows[:vbucket], row, *self.rows[vbucket + 1 :]))

    def maps(self, name: str, manifest_uid: int) -> tuple[bytes, bytes]:
        """The maps that a node hands out: the bucket's and the cluster's."""
        places = {node.name: place for place, node in enumerate(self.members)}
        nodes = tuple(NodeAddress(self.host, node.port, uuid=node.name) for node in self.members)
        rows = tuple(
            tuple(_NOBODY if node is None else places[node] for node in row) for row in self.rows
        )
        cluster = ClusterMap(
            rev=self.rev,
            nodes=nodes,
            this_node=places[name],
            rows=rows,
            replicas=self.replicas,
        )
        bucket = bucket_json(
            cluster,
            self.bucket,
            manifest_uid=manifest_uid,
            capabilities=(*CAPABILITIES, "durableWrite"),
        )
        return bucket, cluster_json(replace(cluster, rows=()))


def save(state: ClusterState, path: Path) -> None:
    """Replaces the file; it is on disk when this returns."""
    fresh = path.with_suffix(".new")
    with fresh.open("w") as file:
        json.dump(asdict(state), file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def load(path: Path) -> ClusterState:
    """Reads `save`; `ConfigError` says what is wrong with the file."""
    try:
        stored: dict[str, Any] = json.loads(path.read_text())
        nodes = tuple(NodeEntry(**node) for node in stored.pop("nodes"))
        rows = tuple(tuple(row) for row in stored.pop("rows"))
        state = ClusterState(nodes=nodes, rows=rows, **stored)
        _check(state)
    except (OSError, ValueError, TypeError, KeyError) as problem:
        raise ConfigError(f"{path} is no state of a cluster: {problem}") from None
    return state


def _check(state: ClusterState) -> None:
    names = {node.name for node in state.members}
    if not 1 <= len(state.nodes) <= MAX_NODES or not 1 <= len(state.rows) <= MAX_VBUCKETS:
        raise ValueError("its numbers of nodes and vbuckets are out of range")
    for row in state.rows:
        held = [node for node in row if node is not None]
        if len(row) != 1 + state.replicas or len(set(held)) != len(held) or not names >= set(held):
            raise ValueError(f"a vbucket has the copies {row}")
