"""What a cluster is, as its manager keeps it on disk: nodes, rows, epoch and version of the map.

The file is replaced as a whole, so that a manager that is killed finds the old or the new one.
What a node is in the middle of is not kept: whoever starts looks at the nodes themselves.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from .._files import replace_file
from ..errors import ConfigError
from ..producer.bootstrap.cluster_config import (
    ClusterConfig,
    NodeAddress,
    bucket_json,
    cluster_json,
)
from ..store.bucket_settings import MAX_VBUCKETS
from .placement import Row, without

#: The file in a cluster's directory.
STATE_FILE: Final = "cluster.json"
#: A manager and its nodes share one machine.
MAX_NODES: Final = 32
#: Copies beside the active one, as many as Couchbase has.
MAX_REPLICAS: Final = 3
_NOBODY: Final = -1
#: Seconds for which a node answers writes without a word of its manager. Renewals are tried every
#: second, so that a dozen of them must fail in a row on a machine that is merely busy; the longest
#: that a busy node or manager was seen to keep its connections waiting is seven seconds. Only a
#: failover of a process that nobody can end, or prove to have ended, waits for so long.
LEASE: Final = 15.0


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """One node."""

    name: str
    port: int
    #: Of its management over HTTP; 0 for any free one, which the map does not name.
    http_port: int = 0
    #: Failed over: it is down, and none of its copies counts.
    failed: bool = False
    #: Its vbuckets are being moved away for it to be removed.
    leaving: bool = False
    #: The session of its disk in which it was last given a map: see `Bucket.sessions`.
    session: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """A cluster of one bucket."""

    bucket: str
    host: str
    replicas: int
    nodes: tuple[NodeEntry, ...]
    rows: tuple[Row, ...]
    rev: int = 1
    #: Which cluster it is, for its nodes to know it by.
    cluster: str = ""
    #: How often a manager was started: each has a higher epoch than all before it.
    epoch: int = 0
    #: Unlike that of an earlier bucket of its name. Clusters of the first release have none,
    #: and go on with what is made from the name, so that checkpoints stay good.
    bucket_uuid: str = ""
    lease: float = LEASE
    #: Vbuckets that are being handed over, and to which node.
    moves: tuple[tuple[int, str], ...] = ()
    #: Vbuckets that are about to have other copies, and their next rows. A durable write needs a
    #: majority of the copies of both rows, so that none is lost whichever of them counts.
    next_rows: tuple[tuple[int, Row], ...] = ()

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

    def with_session(self, name: str, session: str) -> ClusterState:
        """With a note of which disk a node has; no client's business."""
        noted = (
            replace(node, session=session) if node.name == name else node for node in self.nodes
        )
        return replace(self, nodes=tuple(noted))

    def without_node(self, name: str) -> ClusterState:
        nodes = tuple(node for node in self.nodes if node.name != name)
        return replace(self, nodes=nodes, rev=self.rev + 1)

    def with_rows(self, rows: tuple[Row, ...]) -> ClusterState:
        return replace(self, rows=rows, rev=self.rev + 1)

    def with_row(self, vbucket: int, row: Row) -> ClusterState:
        return self.with_rows((*self.rows[:vbucket], row, *self.rows[vbucket + 1 :]))

    def with_move(self, vbucket: int, node: str) -> ClusterState:
        """With a note of where a vbucket is being handed over to; no client's business."""
        kept = (move for move in self.moves if move[0] != vbucket)
        return replace(self, moves=(*kept, (vbucket, node)))

    def without_moves(self, vbuckets: Collection[int]) -> ClusterState:
        return replace(self, moves=tuple(m for m in self.moves if m[0] not in vbuckets))

    def with_next_row(self, vbucket: int, row: Row) -> ClusterState:
        """With the row that a vbucket is about to have."""
        kept = (known for known in self.next_rows if known[0] != vbucket)
        return replace(self, next_rows=(*kept, (vbucket, row)), rev=self.rev + 1)

    def without_next_rows(self, vbuckets: Collection[int]) -> ClusterState:
        kept = tuple(known for known in self.next_rows if known[0] not in vbuckets)
        return self if kept == self.next_rows else replace(self, next_rows=kept, rev=self.rev + 1)

    def failed_over(self, name: str) -> ClusterState:
        """Without a node's copies; of each vbucket that it had the next one comes first."""
        rows = tuple(without(row, name) for row in self.rows)
        gone = replace(self.node(name), failed=True, leaving=False)
        moves = tuple(move for move in self.moves if move[1] != name)
        # A failover ends a rebalance first, whose next rows may name the node.
        return replace(self.with_rows(rows).with_node(gone), moves=moves, next_rows=())

    def maps(self, name: str, manifest_uid: int) -> tuple[bytes, bytes]:
        """The maps that a node hands out: the bucket's and the cluster's."""
        places = {node.name: place for place, node in enumerate(self.members)}
        nodes = tuple(
            NodeAddress(self.host, node.port, http_port=node.http_port or None, uuid=node.name)
            for node in self.members
        )
        next_rows = dict(self.next_rows)
        moved = [next_rows.get(vb, row) for vb, row in enumerate(self.rows)] if next_rows else ()
        cluster = ClusterConfig(
            rev=self.rev,
            epoch=max(1, self.epoch),
            nodes=nodes,
            this_node=places[name],
            rows=_numbered(self.rows, places),
            forward=_numbered(moved, places),
            replicas=self.replicas,
            cluster_name=self.cluster,
            cluster_uuid=self.cluster,
        )
        bucket = bucket_json(
            cluster,
            self.bucket,
            uuid=self.bucket_uuid or None,
            manifest_uid=manifest_uid,
        )
        return bucket, cluster_json(replace(cluster, rows=(), forward=()))


def _numbered(rows: Iterable[Row], places: Mapping[str, int]) -> tuple[tuple[int, ...], ...]:
    """Rows as a map has them: nodes by their places in its list."""
    return tuple(tuple(_NOBODY if node is None else places[node] for node in row) for row in rows)


def save(state: ClusterState, path: Path) -> None:
    """Replaces the file; it is on disk when this returns."""
    replace_file(path, json.dumps(asdict(state), indent=1).encode())


def load(path: Path) -> ClusterState:
    """Reads `save`; `ConfigError` says what is wrong with the file."""
    try:
        stored: dict[str, Any] = json.loads(path.read_text())
        nodes = tuple(NodeEntry(**node) for node in stored.pop("nodes"))
        rows = tuple(tuple(row) for row in stored.pop("rows"))
        moves = tuple((int(vbucket), str(node)) for vbucket, node in stored.pop("moves", ()))
        next_rows = tuple((int(vb), tuple(row)) for vb, row in stored.pop("next_rows", ()))
        state = ClusterState(nodes=nodes, rows=rows, moves=moves, next_rows=next_rows, **stored)
        _check(state)
    except (OSError, ValueError, TypeError, KeyError) as problem:
        raise ConfigError(f"{path} is no state of a cluster: {problem}") from None
    return state


def _check(state: ClusterState) -> None:
    names = {node.name for node in state.members}
    if not 1 <= len(state.nodes) <= MAX_NODES or not 1 <= len(state.rows) <= MAX_VBUCKETS:
        raise ValueError("its numbers of nodes and vbuckets are out of range")
    for row in (*state.rows, *(row for _, row in state.next_rows)):
        held = [node for node in row if node is not None]
        if len(row) != 1 + state.replicas or len(set(held)) != len(held) or not names >= set(held):
            raise ValueError(f"a vbucket has the copies {row}")
    if not {vbucket for vbucket, _ in state.next_rows} <= set(range(len(state.rows))):
        raise ValueError("a vbucket that there is not is about to move")
    for vbucket, node in state.moves:
        if not 0 <= vbucket < len(state.rows) or node not in names:
            raise ValueError(f"vbucket {vbucket} is being handed over to {node}")
    if state.epoch < 0 or state.lease <= 0:
        raise ValueError(f"epoch {state.epoch} or lease {state.lease} is out of range")
