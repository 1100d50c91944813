"""Blocking survey of a bucket: high seqnos, purge seqnos and failover logs, without streaming.

Spark's driver uses it to plan. It gets the high seqno, the branch (vbuuid) and the purge seqno of
each vbucket with one request to each node, and failover logs only for the vbuckets asked for. When
a node does not answer, the survey gets a new cluster map and asks the owner that it names.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Final, Self, TypeVar

from ..._unclosed import warn_unclosed
from ...errors import ConnectionFailed, ProtocolError, Status, StatusError, UpriverError
from ...model import FailoverLog
from ...session.conversation import Conversation
from ..transport.access import Access
from ..transport.blocking_connection import ANSWER_SECONDS, BlockingNodes
from ..transport.connection_string import Address, Source
from .cluster_map import ClusterMap, Network
from .cluster_view import ClusterConversation, Topology, is_final
from .collection_names import Collections
from .questions import VBucketSeqnos, cluster_map, high_seqnos, vbucket_seqnos
from .request_routing import ask_failover_logs, ask_node, ask_owners, renew_map

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

#: Up to this many vbuckets are requested one by one; for more, the statistics of all vbuckets are
#: requested at once. The answer has ten packets for each vbucket, and a separate request for one
#: vbucket costs about as much again.
_FEW: Final = 512


class Survey:
    """Asks the nodes of a bucket. Failed requests are repeated for ``patience`` seconds.

    After ``partial_after`` seconds, by default as many, the seqnos of those vbuckets are enough
    whose nodes answer.
    """

    #: Whether high seqnos are bounds of what readers had seen before they were asked for.
    is_tight: Final = True

    def __init__(
        self,
        source: Source,
        access: Access,
        *,
        timeout: float = ANSWER_SECONDS,
        patience: float = 0.0,
        partial_after: float | None = None,
        network: Network = "auto",
        collections: tuple[str, ...] = (),
        scope: str = "",
    ) -> None:
        self._topology = Topology(source, network=network)
        self._nodes = BlockingNodes(self._topology, access, timeout=timeout)
        self._patience = patience
        self._partial_after = patience if partial_after is None else partial_after
        #: Names of the collections, or of the scope, that are read. The user may have access to
        #: these only.
        self._wanted = collections, scope
        self._chosen: tuple[int, ...] | None = None
        #: Whether the server denies statistics to this user.
        self._no_statistics = False

    def close(self) -> None:
        self._nodes.close()

    def interrupt(self) -> None:
        """Ends what waits for a node in another thread, with `Interrupted`."""
        self._nodes.interrupt()

    def __del__(self) -> None:
        nodes = getattr(self, "_nodes", None)
        if nodes is not None and nodes.connected:
            warn_unclosed(self, self._topology.source)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def map(self, *, patience: float | None = None) -> ClusterMap:
        """The cluster map; asks for a new one if the known map may be outdated.

        ``patience`` is for this question, instead of that for all.
        """
        if self._topology.map_is_old:
            self._nodes.run(self._renewed_map(patience=patience))
        return self._topology.map

    def collections(self) -> Collections:
        """The names of the scopes and collections, asked of a node now."""
        self._nodes.run(self._renewed_map(names=True))
        return self._topology.collections

    def _renewed_map(
        self, *, names: bool = False, patience: float | None = None
    ) -> ClusterConversation[Address]:
        connected = self._nodes.connected
        patience = self._patience if patience is None else patience
        return renew_map(self._topology, connected, names=names, patience=patience)

    @property
    def nodes(self) -> list[Address]:
        """The nodes of the newest map that is known."""
        return self._topology.nodes

    @property
    def waits(self) -> tuple[float, str] | None:
        """Since when no node answers, and why; None while nodes do. Any thread may ask."""
        return self._topology.waiting.now

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
        return self._ask_owners(vbuckets, lambda its: (high_seqnos(its, chosen),))

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
        return self._ask_owners(
            vbuckets,
            lambda its: (
                tuple(vbucket_seqnos([vb]) for vb in its)
                if len(its) <= _FEW
                else (vbucket_seqnos(its),)
            ),
        )

    def _ask_owners(
        self,
        vbuckets: Collection[int] | None,
        questions: Callable[[list[int]], tuple[Conversation[dict[int, _T]], ...]],
    ) -> dict[int, _T]:
        return self._nodes.run(
            ask_owners(
                self._topology,
                vbuckets,
                questions,
                connected=self._nodes.connected,
                patience=self._patience,
                partial_after=self._partial_after,
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
        topology = self._topology
        if topology.map_is_old:
            yield from self._renewed_map()
        by_owner = topology.by_owner(vbuckets)
        asked = ask_failover_logs(topology, by_owner, lambda refusal: refusal.retriable)
        found: dict[int, FailoverLog] = {}
        for outcome in (yield from asked).values():
            if not isinstance(outcome, UpriverError):
                found |= outcome
            elif is_final(outcome) or not isinstance(outcome, ConnectionFailed | ProtocolError):
                raise outcome
            else:
                _log.warning("%s", outcome)
                topology.map_is_old = True
        return found

    def branches(self, vbuckets: Collection[int]) -> dict[int, int]:
        """The newest vbuuid of each vbucket; leaves out those of which `look` says nothing."""
        return {vb: seen.vbuuid for vb, seen in self.look(vbuckets).items()}

    def known_branches(self, vbucket: int) -> set[int]:
        """Every vbuuid in the failover logs of a vbucket, over all nodes with a copy.

        Asks every node for its cluster map first, to find the newest map. Raises `UpriverError`
        unless all nodes of the newest map answer.
        """
        return self._nodes.run(self._known_branches(vbucket))

    def _known_branches(self, vbucket: int) -> ClusterConversation[set[int]]:
        topology = self._topology
        yield from renew_map(topology, self._nodes.connected)
        for address in topology.nodes:
            (text,) = yield from ask_node(address, cluster_map())
            topology.learn_map(text, address)
        found: set[int] = set()
        nodes = {address: [vbucket] for address in topology.nodes}
        asked = ask_failover_logs(topology, nodes, _has_no_copy)
        for outcome in (yield from asked).values():
            if isinstance(outcome, UpriverError):
                raise outcome
            found |= {entry.vbuuid for log in outcome.values() for entry in log}
        return found


def _has_no_copy(refusal: StatusError) -> bool:
    return refusal.status is Status.NOT_MY_VBUCKET
