"""How far the vbuckets of a bucket are, asked of their nodes without streaming anything.

For those who plan a reading that others do: the newest seqno and branch of each vbucket, and what
was purged, in one question to each node; histories only of those that are asked for. It blocks,
and mends itself: a node that does not answer is asked again where the newest map says.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self, TypeVar

from ..errors import (
    AuthenticationFailed,
    BucketNotFound,
    ConnectionFailed,
    ProtocolError,
    RemoteProtocolError,
    Status,
    StatusError,
    UpriverError,
)
from ..model import FailoverLog
from ..wire import kv
from ..wire.names import Feature, RequestedState
from .access import Access
from .collections import Collections
from .link import Link
from .readers import Backoff
from .source import Address, Source
from .topology import ClusterMap, Network

__all__ = ["Sight", "Survey"]

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

_FEATURES: Final = (Feature.SELECT_BUCKET, Feature.XERROR, Feature.JSON, Feature.COLLECTIONS)
_GROUP: Final = "vbucket-seqno"
#: So many vbuckets are asked for one by one, more of them all at once: an answer has ten packets
#: for each, and a question of its own costs about as much as these again.
_FEW: Final = 512
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0


@dataclass(frozen=True, slots=True)
class Sight:
    """What was seen of a vbucket at one moment."""

    vbuuid: int
    high_seqno: int
    purge_seqno: int


class Survey:
    """Looks at a bucket. ``patience`` is for how many seconds it goes on trying."""

    def __init__(
        self,
        source: Source,
        access: Access,
        *,
        timeout: float = 30.0,
        patience: float = 0.0,
        network: Network = "auto",
    ) -> None:
        self._source = source
        self._access = access
        self._timeout = timeout
        self._patience = patience
        self._network = network
        self._links: dict[Address, Link] = {}
        self._map: ClusterMap | None = None

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ---- looking -------------------------------------------------------------------------

    def map(self) -> ClusterMap:
        """The newest map that is known."""
        return self._map or self._renew_map()

    def collections(self) -> Collections:
        """What the collections are called now."""
        return self._any_link().collections() or Collections()

    def high_seqnos(self) -> dict[int, int]:
        """Only the newest seqno of each vbucket: one small question to each node."""
        return self._of_all_nodes(None, self._highs_of)

    def look(self, vbuckets: Collection[int] | None = None) -> dict[int, Sight]:
        """Some vbuckets, or all, as far as a node is active for them and answers."""
        return self._of_all_nodes(vbuckets, self._sights_of)

    def _of_all_nodes(
        self,
        vbuckets: Collection[int] | None,
        ask: Callable[[Link, list[int]], dict[int, _T]],
    ) -> dict[int, _T]:
        """Asks every node for its vbuckets, again and again while there is patience left."""
        deadline = time.monotonic() + self._patience
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            found, missing, trouble = self._round(vbuckets, ask)
            left = deadline - time.monotonic()
            if not missing or (found and left <= 0):
                return found
            if left <= 0:
                raise trouble or ConnectionFailed("has no vbucket", "is the cluster whole?")
            time.sleep(min(backoff.next_pause(), left))
            self._forget_map()

    def _round(
        self,
        vbuckets: Collection[int] | None,
        ask: Callable[[Link, list[int]], dict[int, _T]],
    ) -> tuple[dict[int, _T], bool, UpriverError | None]:
        """What was found, whether something is missing, and why."""
        found: dict[int, _T] = {}
        trouble: UpriverError | None = None
        try:
            wanted = range(len(self.map().vbuckets)) if vbuckets is None else vbuckets
            nodes = self._by_node(wanted)
        except (ConnectionFailed, ProtocolError, StatusError) as error:
            if self._is_final(error):
                raise
            return found, True, error
        for address, its in nodes.items():
            try:
                found.update(ask(self._link(address), its))
            except (ConnectionFailed, ProtocolError, StatusError) as error:
                if self._is_final(error):
                    raise
                self._drop(address)
                trouble = error
        return found, len(found) < len(wanted), trouble

    @staticmethod
    def _highs_of(link: Link, vbuckets: list[int]) -> dict[int, int]:
        answer = link.ask(kv.GetAllSeqnos(state=RequestedState.ACTIVE))
        if not isinstance(answer, kv.AllSeqnosResponse):
            raise StatusError(answer.status, request="the high seqnos")
        active = dict(answer.seqnos)
        return {vbucket: active[vbucket] for vbucket in vbuckets if vbucket in active}

    @staticmethod
    def _sights_of(link: Link, vbuckets: list[int]) -> dict[int, Sight]:
        groups = [_GROUP]
        if len(vbuckets) <= _FEW:
            groups = [f"{_GROUP} {vbucket}" for vbucket in vbuckets]
        return _sights(link.statistics(*groups), vbuckets)

    def failover_logs(self, vbuckets: Collection[int]) -> dict[int, FailoverLog]:
        """The histories of some vbuckets, newest branch first, as far as they can be asked."""
        found: dict[int, FailoverLog] = {}
        for address, wanted in self._by_node(vbuckets).items():
            try:
                requests = [kv.GetFailoverLog(vbucket=vbucket) for vbucket in wanted]
                answers = self._link(address).ask_all(requests)
            except (ConnectionFailed, ProtocolError) as error:
                _log.warning("%s", error)
                self._drop(address)
                continue
            for vbucket, answer in zip(wanted, answers, strict=True):
                if isinstance(answer, kv.GetFailoverLogResponse) and answer.failover_log:
                    found[vbucket] = FailoverLog(answer.failover_log).sanitised()
        return found

    def known_branches(self, vbucket: int) -> set[int]:
        """Every branch in the histories of a vbucket, whichever node has a copy.

        `UpriverError` unless all nodes of the newest map answer, which is looked for at each.
        """
        self._forget_map()
        newest = self.map()
        for node in newest.nodes:
            told = self._link(node.address).cluster_map(self._network)
            newest = told if told.is_newer_than(newest) else newest
        found: set[int] = set()
        for node in newest.nodes:
            answer = self._link(node.address).ask(kv.GetFailoverLog(vbucket=vbucket))
            if isinstance(answer, kv.GetFailoverLogResponse):
                found.update(entry.vbuuid for entry in answer.failover_log)
            elif answer.status is not Status.NOT_MY_VBUCKET:
                raise StatusError(answer.status, request="a history")
        return found

    # ---- nodes ---------------------------------------------------------------------------

    def _by_node(self, vbuckets: Iterable[int]) -> dict[Address, list[int]]:
        nodes: dict[Address, list[int]] = {}
        for vbucket in vbuckets:
            node = self.map().owner(vbucket)
            if node is not None:
                nodes.setdefault(node.address, []).append(vbucket)
        return nodes

    def _link(self, address: Address) -> Link:
        link = self._links.get(address)
        if link is None:
            link = Link(
                address, self._source, self._access, features=_FEATURES, timeout=self._timeout
            )
            self._links[address] = link
        return link

    def _any_link(self) -> Link:
        known = [] if self._map is None else [node.address for node in self._map.nodes]
        trouble: UpriverError | None = None
        for address in dict.fromkeys((*self._links, *known, *self._source.hosts)):
            try:
                return self._link(address)
            except ConnectionFailed as error:
                if self._is_final(error):
                    raise
                trouble = trouble or error
        raise trouble or ConnectionFailed("is not known", "give a host")

    def _drop(self, address: Address) -> None:
        link = self._links.pop(address, None)
        if link is not None:
            link.close()
        self._forget_map()

    def _forget_map(self) -> None:
        self._map = None

    def _renew_map(self) -> ClusterMap:
        link = self._any_link()
        try:
            found = link.cluster_map(self._network)
        except (ConnectionFailed, RemoteProtocolError):
            self._drop(link.address)
            raise
        if found.bucket not in ("", self._source.bucket):
            raise RemoteProtocolError(f"{link.where} sent the map of {found.bucket!r}")
        self._map = found
        return found

    @staticmethod
    def _is_final(error: UpriverError) -> bool:
        """Whether trying again is of no use."""
        if isinstance(error, StatusError):
            return not error.retriable
        return isinstance(error, AuthenticationFailed | BucketNotFound)


def _sights(statistics: dict[str, str], vbuckets: Iterable[int]) -> dict[int, Sight]:
    """What a node tells of the vbuckets that are its own; others are copies, or on the move."""
    found: dict[int, Sight] = {}
    for vbucket in vbuckets:
        name = f"vb_{vbucket}"
        try:
            found[vbucket] = Sight(
                vbuuid=int(statistics[f"{name}:uuid"]),
                high_seqno=int(statistics[f"{name}:high_seqno"]),
                purge_seqno=int(statistics.get(f"{name}:purge_seqno", "0")),
            )
        except KeyError:
            continue  # the node is not active for it any more, or not yet
        except ValueError as problem:
            raise RemoteProtocolError(f"the statistics {_GROUP!r} are wrong: {problem}") from None
    return found
