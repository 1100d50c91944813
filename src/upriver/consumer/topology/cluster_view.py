"""`Topology`: what a client knows of a cluster (map, collections, node features, back-off).

The engine, the survey, the writer and the probe each have a `Topology`. It does no I/O. A task that
needs answers from nodes is a `ClusterConversation`: a generator that yields visits to nodes, or
pauses, and is sent the outcomes (`request_routing`). The blocking and the asyncio connection pool
run it (`blocking_connection`, `async_pool`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from ... import _entropy
from ...errors import (
    AuthenticationFailed,
    BucketNotFound,
    ConfigError,
    ConnectionFailed,
    NotADcpServer,
    ProtocolError,
    RemoteProtocolError,
    StatusError,
    UpriverError,
)
from ...session.conversation import Conversation
from ...wire.protocol_enums import Feature
from ..transport.connection_string import Address, Source
from .cluster_map import ClusterMap, Network, Node
from .collection_names import Collections
from .questions import NoHistory
from .waiting import Waiting

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

#: Nodes used in place of named hosts that do not answer, for which a warning was logged already.
_told_of: set[tuple[Source, Address]] = set()

_GROWTH: Final = 2.0
#: The errors with which a request to a node fails: lost connection, protocol violation, refusal.
NODE_TROUBLE: Final = (ConnectionFailed, ProtocolError, StatusError)


@dataclass(slots=True)
class Backoff:
    """Exponential back-off with jitter, so that many clients do not reconnect at the same time."""

    first: float
    most: float
    attempts: int = 0

    def next_pause(self) -> float:
        longest = min(self.most, self.first * _GROWTH ** min(self.attempts, 32))
        self.attempts += 1
        return _entropy.uniform(longest / 2, longest)

    def reset(self) -> None:
        self.attempts = 0


@dataclass(frozen=True, slots=True)
class Visit:
    """Conversations to run with one node, all at the same time."""

    address: Address
    talks: tuple[Conversation[Any], ...]
    #: Whether they need a connection that was opened for DCP.
    streaming: bool = False


@dataclass(frozen=True, slots=True)
class Pause:
    """Asks the pool to wait for this many seconds before it resumes the conversation."""

    seconds: float


#: Outcome of a visit: the results of its conversations, or the error.
VisitOutcome: TypeAlias = list[Any] | UpriverError
#: Asks several nodes, by the map. A `Conversation` asks one.
ClusterConversation: TypeAlias = Generator[list[Visit] | Pause, list[VisitOutcome], _T]


class Topology:
    """What a client knows of a cluster: map, collections, features of nodes, back-off."""

    def __init__(
        self,
        source: Source,
        *,
        network: Network = "auto",
        first_pause: float = 0.05,
        longest_pause: float = 2.0,
        clock: Callable[[], float] = lambda: time.monotonic(),
    ) -> None:
        self.source = source
        self.collections = Collections()
        #: Whether a newer map probably exists, for example after a connection was lost.
        self.map_is_old = True
        #: Whether the map was made up because the server has none to ask for.
        self.map_is_assumed = False
        self.clock = clock
        self.waiting = Waiting(source)
        #: Nodes that send failover logs to this user only on connections opened for DCP.
        self.logs_by_stream: set[Address] = set()
        self._network = network
        self._pauses = first_pause, longest_pause
        self._map: ClusterMap | None = None
        self._features: dict[Address, frozenset[Feature | int]] = {}
        self._backoffs: dict[Address, Backoff] = {}

    # ---- the map -------------------------------------------------------------------------

    @property
    def map(self) -> ClusterMap:
        if self._map is None:
            raise RuntimeError("the cluster map was not asked for yet")
        return self._map

    @property
    def has_map(self) -> bool:
        return self._map is not None

    def learn_map(self, text: bytes | str | Mapping[int, str], reached: Address) -> ClusterMap:
        """Stores the map that a node sent, unless a newer one is known; returns the newest.

        From a node without a map, ``text`` is the states of its vbuckets. Raises
        `RemoteProtocolError` if the map is of another bucket, `ConfigError` if the number of
        vbuckets changed, which means that it is another bucket.
        """
        if isinstance(text, Mapping):
            return self._learn_states(text, reached)
        found = ClusterMap.parse(text, reached=reached, tls=self.source.tls, network=self._network)
        if found.bucket not in ("", self.source.bucket):
            raise RemoteProtocolError(f"{reached} sent the map of the bucket {found.bucket!r}")
        known = self._map
        if known is not None and len(found.vbuckets) != len(known.vbuckets):
            raise _other_bucket(len(known.vbuckets), len(found.vbuckets))
        if known is None or not known.is_newer_than(found):
            self._map = found
        return self.map

    def _learn_states(self, states: Mapping[int, str], reached: Address) -> ClusterMap:
        """Builds a map from the vbucket states of a single node without a cluster manager."""
        known = self._map
        if known is not None and (known.rev or known.epoch or len(known.nodes) > 1):
            raise ConnectionFailed(
                "has no cluster map, though there was one",
                "wait until it has joined its cluster again",
                where=str(reached),
            )
        count = max(states) + 1
        if known is not None and len(known.vbuckets) != count:
            raise _other_bucket(len(known.vbuckets), count)
        self._map = ClusterMap(
            rev=0,
            epoch=0,
            bucket=self.source.bucket,
            bucket_uuid="",
            nodes=(Node(0, reached),),
            vbuckets=tuple((0,) if states.get(vb) == "active" else (-1,) for vb in range(count)),
        )
        return self._map

    def assume_one_node(self, address: Address, vbuckets: Collection[int]) -> None:
        """Assumes one node that owns these vbuckets, for a server older than cluster maps."""
        self.map_is_assumed = True
        self.map_is_old = False
        self._map = ClusterMap(
            rev=0,
            epoch=0,
            bucket=self.source.bucket,
            bucket_uuid="",
            nodes=(Node(0, address),),
            vbuckets=tuple((0,) if vb in vbuckets else (-1,) for vb in range(max(vbuckets) + 1)),
        )

    def addresses(self, connected: Iterable[Address] = ()) -> list[Address]:
        """Addresses to ask, in this order: connected nodes, nodes of the map, named hosts."""
        return list(dict.fromkeys((*connected, *self.nodes, *self.source.addresses)))

    @property
    def nodes(self) -> list[Address]:
        """The addresses of the nodes in the newest map."""
        return [] if self._map is None else [node.address for node in self._map.nodes]

    def reached(self, address: Address) -> None:
        """Notes that a node answered; warns once if it is not one of the named hosts."""
        source = self.source
        if address in source.also and (source, address) not in _told_of:
            _told_of.add((source, address))
            hosts = ", ".join(map(str, source.hosts))
            _log.warning(
                "no host that was named answers (%s): going on with %s, which was in the last "
                "cluster map of %s; name a host that is alive",
                hosts,
                address,
                source.bucket,
            )

    def owner(self, vbucket: int) -> Address | None:
        """The address of the node with the active copy; None if no node has it."""
        node = self.map.owner(vbucket)
        return None if node is None else node.address

    def by_owner(self, vbuckets: Iterable[int]) -> dict[Address, list[int]]:
        """Groups vbuckets by owner; leaves out vbuckets without an owner."""
        nodes: dict[Address, list[int]] = {}
        for vbucket in vbuckets:
            address = self.owner(vbucket)
            if address is not None:
                nodes.setdefault(address, []).append(vbucket)
        return nodes

    def no_owner_error(self, vbucket: int) -> ConnectionFailed:
        """The error for a vbucket without an owner."""
        return ConnectionFailed(
            f"has vbucket {vbucket} of {self.source.bucket} on no node that answers for it",
            "wait until the cluster is whole",
            where=str(self.source.hosts[0]),
        )

    # ---- features of nodes ---------------------------------------------------------------

    def learn_features(self, address: Address, features: frozenset[Feature | int]) -> None:
        """Stores the features that a node accepted on the newest connection."""
        self._features[address] = features

    def has_feature(self, address: Address, feature: Feature) -> bool:
        return feature in self._features.get(address, frozenset())

    # ---- back-off ------------------------------------------------------------------------

    def new_backoff(self) -> Backoff:
        return Backoff(*self._pauses)

    def backoff(self, address: Address) -> Backoff:
        """The back-off between attempts to reach a node."""
        return self._backoffs.setdefault(address, self.new_backoff())


def _other_bucket(before: int, now: int) -> ConfigError:
    return ConfigError(
        f"the bucket had {before} vbuckets and now has {now}: it is another one, start from its "
        "beginning"
    )


def is_final(error: UpriverError) -> bool:
    """Whether a retry cannot succeed, at this node or at another one.

    A wrong password, bucket name or request stays wrong. `NotADcpServer` is not final: a node that
    restarts behind a proxy can look like another kind of server, so the next node is tried.
    """
    if isinstance(error, StatusError):
        return not error.retriable
    return isinstance(error, AuthenticationFailed | BucketNotFound | ConfigError | NoHistory)


def may_heal(error: UpriverError) -> bool:
    """Whether a retry at the same node may succeed."""
    return not is_final(error) and not isinstance(error, NotADcpServer)
