"""Blocking survey of a bucket: high seqnos, purge seqnos and failover logs, without streaming.

Spark's driver uses it to plan. It gets the high seqno, the branch (vbuuid) and the purge seqno of
each vbucket with one request to each node, and failover logs only for the vbuckets asked for. When
a node does not answer, the survey gets a new cluster map and asks the owner that it names.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final, Self

from ..._unclosed import warn_unclosed
from ...errors import ConnectionFailed, ProtocolError, Status, StatusError, UpriverError
from ...model import FailoverLog
from ..transport.access import Access
from ..transport.blocking_connection import ANSWER_SECONDS, BlockingNodes
from ..transport.connection_string import Address, Source
from .cluster_map import ClusterMap, Network
from .cluster_view import (
    ClusterConversation,
    Topology,
    Visit,
    VisitOutcome,
    ask_owners,
    is_final,
    renew_map,
)
from .collection_names import Collections
from .questions import VBucketSeqnos, cluster_map, failover_log, high_seqnos, unless, vbucket_seqnos

_log = logging.getLogger(__name__)

#: Up to this many vbuckets are requested one by one; for more, the statistics of all vbuckets are
#: requested at once. The answer has ten packets for each vbucket, and a separate request for one
#: vbucket costs about as much again.
_FEW: Final = 512


class Survey:
    """Asks the nodes of a bucket. Failed requests are repeated for ``patience`` seconds."""

    def __init__(
        self,
        source: Source,
        access: Access,
        *,
        timeout: float = ANSWER_SECONDS,
        patience: float = 0.0,
        network: Network = "auto",
        collections: tuple[str, ...] = (),
        scope: str = "",
    ) -> None:
        self._topology = Topology(source, network=network)
        self._nodes = BlockingNodes(self._topology, access, timeout=timeout)
        self._patience = patience
        #: Names of the collections, or of the scope, that are read. The user may have access to
        #: these only.
        self._wanted = collections, scope
        self._chosen: tuple[int, ...] | None = None
        #: Nodes that return failover logs only on a connection that was opened for DCP.
        self._by_stream: set[Address] = set()
        #: Whether the server denies statistics to this user.
        self._no_statistics = False

    def close(self) -> None:
        self._nodes.close()

    def __del__(self) -> None:
        nodes = getattr(self, "_nodes", None)
        if nodes is not None and nodes.connected:
            warn_unclosed(self, self._topology.source)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def map(self) -> ClusterMap:
        """The cluster map; asks for a new one if the known map may be outdated."""
        if self._topology.map_is_old:
            self._nodes.run(renew_map(self._topology, self._nodes.connected))
        return self._topology.map

    def collections(self) -> Collections:
        """The names of the scopes and collections, asked of a node now."""
        self._nodes.run(renew_map(self._topology, self._nodes.connected, names=True))
        return self._topology.collections

    @property
    def nodes(self) -> list[Address]:
        """The nodes of the newest map that is known."""
        return self._topology.nodes

    def choose(self, collections: tuple[str, ...], scope: str = "") -> None:
        """Surveys other collections from now on."""
        self._wanted = collections, scope
        self._chosen = None

    def _collection_ids(self) -> tuple[int, ...]:
        """The ids of the wanted collections; empty if all are wanted."""
        names, scope = self._wanted
        if not (names or scope):
            return ()
        if self._chosen is None:
            self._chosen = self.collections().chosen(names, scope)
        return self._chosen

    def high_seqnos(self, vbuckets: Collection[int] | None = None) -> dict[int, int]:
        """The high seqno of each vbucket, with one small request to each node."""
        chosen = self._collection_ids()
        return self._nodes.run(
            ask_owners(
                self._topology,
                vbuckets,
                lambda its: (high_seqnos(its, chosen),),
                connected=self._nodes.connected,
                patience=self._patience,
                partial=True,
            )
        )

    def look(self, vbuckets: Collection[int] | None = None) -> dict[int, VBucketSeqnos]:
        """Seqnos and branches of some or all vbuckets.

        Leaves out vbuckets without an active copy, and those of nodes that do not answer.
        """
        if not self._no_statistics:
            try:
                return self._look_at_statistics(vbuckets)
            except StatusError as refusal:
                if refusal.status is not Status.NO_ACCESS or not self._collection_ids():
                    raise
                self._no_statistics = True
        # The user has access to collections only. Planning needs the seqnos asked for before the
        # failover logs.
        highs = self.high_seqnos(vbuckets)
        logs = self.failover_logs(list(highs))
        return {vb: VBucketSeqnos(log.newest.vbuuid, highs[vb], None) for vb, log in logs.items()}

    def _look_at_statistics(self, vbuckets: Collection[int] | None) -> dict[int, VBucketSeqnos]:
        return self._nodes.run(
            ask_owners(
                self._topology,
                vbuckets,
                lambda its: (
                    tuple(vbucket_seqnos([vb]) for vb in its)
                    if len(its) <= _FEW
                    else (vbucket_seqnos(its),)
                ),
                connected=self._nodes.connected,
                patience=self._patience,
                partial=True,
            )
        )

    def failover_logs(self, vbuckets: Collection[int]) -> dict[int, FailoverLog]:
        """The failover logs of some vbuckets, newest branch first.

        Leaves out the vbuckets of a node that is unreachable or no longer owns them.
        """
        return self._nodes.run(self._failover_logs(vbuckets))

    def _failover_logs(
        self, vbuckets: Collection[int]
    ) -> ClusterConversation[dict[int, FailoverLog]]:
        if self._topology.map_is_old:
            yield from renew_map(self._topology, self._nodes.connected)
        by_owner = self._topology.by_owner(vbuckets)
        outcomes = yield from self._ask_logs(by_owner, lambda refusal: refusal.retriable)
        found: dict[int, FailoverLog] = {}
        for its, outcome in zip(by_owner.values(), outcomes, strict=True):
            if not isinstance(outcome, UpriverError):
                found |= {vb: log for vb, log in zip(its, outcome, strict=True) if log is not None}
            elif is_final(outcome) or not isinstance(outcome, ConnectionFailed | ProtocolError):
                raise outcome
            else:
                _log.warning("%s", outcome)
                self._topology.map_is_old = True
        return found

    def _ask_logs(
        self, by_node: Mapping[Address, list[int]], excused: Callable[[StatusError], bool]
    ) -> ClusterConversation[list[VisitOutcome]]:
        """Asks nodes for failover logs; repeats on a DCP connection where access is denied."""
        while True:
            outcomes = yield [
                Visit(
                    address,
                    tuple(
                        unless(failover_log(vb, streaming=address in self._by_stream), excused)
                        for vb in its
                    ),
                    streaming=address in self._by_stream,
                )
                for address, its in by_node.items()
            ]
            denied = {
                address
                for address, outcome in zip(by_node, outcomes, strict=True)
                if isinstance(outcome, StatusError) and outcome.status is Status.NO_ACCESS
            }
            if denied <= self._by_stream:
                return outcomes
            self._by_stream |= denied

    def known_branches(self, vbucket: int) -> set[int]:
        """Every vbuuid in the failover logs of a vbucket, over all nodes with a copy.

        Asks every node for its cluster map first, to find the newest map. Raises `UpriverError`
        unless all nodes of the newest map answer.
        """
        return self._nodes.run(self._known_branches(vbucket))

    def _known_branches(self, vbucket: int) -> ClusterConversation[set[int]]:
        yield from renew_map(self._topology, self._nodes.connected)
        topology = self._topology
        addresses = [node.address for node in topology.map.nodes]
        maps = yield [Visit(address, (cluster_map(),)) for address in addresses]
        for address, outcome in zip(addresses, maps, strict=True):
            if isinstance(outcome, UpriverError):
                raise outcome
            topology.learn_map(outcome[0], address)
        found: set[int] = set()
        nodes = {node.address: [vbucket] for node in topology.map.nodes}
        for outcome in (yield from self._ask_logs(nodes, _has_no_copy)):
            if isinstance(outcome, UpriverError):
                raise outcome
            if outcome[0] is not None:
                found |= {entry.vbuuid for entry in outcome[0]}
        return found


def _has_no_copy(refusal: StatusError) -> bool:
    return refusal.status is Status.NOT_MY_VBUCKET
