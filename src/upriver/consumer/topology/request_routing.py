"""Questions to a cluster, by its map, without I/O: which node to ask next, and what to ask again.

`questions` has the questions to one node. The conversations here visit nodes with them and decide
which errors are retried and which are final, once for the blocking and for the asyncio pool.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from copy import copy
from typing import Any, TypeVar

from ...errors import ConnectionFailed, ProtocolError, Status, StatusError, UpriverError
from ...model import FailoverLog
from ...session.conversation import Conversation
from ...wire.protocol_enums import Feature
from ..transport.connection_string import Address
from .cluster_view import (
    NODE_TROUBLE,
    ClusterConversation,
    Pause,
    Topology,
    Visit,
    is_final,
    may_heal,
)
from .questions import cluster_map, failover_log, manifest, unless

_T = TypeVar("_T")

_log = logging.getLogger(__name__)


def ask_node(address: Address, *talks: Conversation[Any]) -> ClusterConversation[list[Any]]:
    """Visits one node; raises the error of the visit."""
    (outcome,) = yield [Visit(address, talks)]
    if isinstance(outcome, UpriverError):
        raise outcome
    return outcome


def renew_map(
    topology: Topology,
    connected: Collection[Address] = (),
    *,
    names: bool = False,
    patience: float = 0.0,
) -> ClusterConversation[Address]:
    """Gets the cluster map, and with ``names`` the collections, from the first node that answers.

    Returns the address of that node. If none answers, all are asked again, with back-off, for
    ``patience`` seconds; but not if all of them speak another protocol and always did.
    """
    deadline = topology.clock() + patience
    backoff = topology.new_backoff()
    while True:
        troubles: list[UpriverError] = []
        for address in topology.addresses(connected):
            try:
                (text,) = yield from ask_node(address, cluster_map())
                topology.learn_map(text, address)
                if names:
                    yield from learn_collections(topology, address)
            except StatusError as refusal:  # the node may have no map yet
                troubles.append(_without_answer(refusal, address))
                continue
            except (ConnectionFailed, ProtocolError) as error:
                if is_final(error):
                    raise
                troubles.append(error)
                continue
            topology.map_is_old = False
            topology.reached(address)
            if patience:  # otherwise who asked for the map knows whether all have answered
                topology.waiting.over()
            return address
        left = deadline - topology.clock()
        trouble = _most_telling(troubles)
        if left <= 0 or not (topology.has_map or any(map(may_heal, troubles))):
            raise trouble
        topology.waiting.in_vain(trouble)
        yield Pause(min(left, backoff.next_pause()))


def _without_answer(refusal: StatusError, address: Address) -> ConnectionFailed:
    error = ConnectionFailed(
        f"refused to send {refusal.request}, with {refusal.status.name}",
        refusal.context or "see what its log says",
        where=str(address),
    )
    error.__cause__ = refusal
    return error


def refusal_of(error: UpriverError) -> StatusError | None:
    """With which status a node refused to send the map or the collections; None if none did."""
    return error.__cause__ if isinstance(error.__cause__, StatusError) else None


def _most_telling(troubles: list[UpriverError]) -> UpriverError:
    """The last refusal, or else the last error, with the other nodes' errors in its message."""
    *others, last = sorted(troubles, key=lambda error: refusal_of(error) is not None)
    if not others or not isinstance(last, ConnectionFailed):
        return last
    earlier = [e.summary if isinstance(e, ConnectionFailed) else str(e) for e in others]
    told = copy(last)  # a pool may return the same error again
    told.__cause__ = last.__cause__
    told.problem += f" (before it, {', '.join(earlier)})"
    return told


def learn_collections(topology: Topology, address: Address) -> ClusterConversation[None]:
    """Gets the names of the collections from a node, if it has collections."""
    if topology.has_feature(address, Feature.COLLECTIONS):
        (topology.collections,) = yield from ask_node(address, manifest())


def ask_owners(
    topology: Topology,
    vbuckets: Collection[int] | None,
    questions: Callable[[list[int]], tuple[Conversation[dict[int, _T]], ...]],
    *,
    connected: Collection[Address] = (),
    patience: float = 0.0,
    partial_after: float = float("inf"),
    whole: bool = False,
) -> ClusterConversation[dict[int, _T]]:
    """Asks the owner of each vbucket (all if None); retries for ``patience`` seconds.

    After ``partial_after`` seconds, the answers of the nodes that could be asked are enough. Before
    that all nodes must answer, and with ``whole`` there must be an answer for every vbucket.
    """
    began = topology.clock()
    backoff = topology.new_backoff()
    while True:
        found: dict[int, _T] = {}
        wanted: Collection[int] = vbuckets or ()
        trouble: UpriverError | None = None
        try:
            if topology.map_is_old or not topology.has_map:
                yield from renew_map(topology, connected)
            wanted = range(len(topology.map.vbuckets)) if vbuckets is None else vbuckets
            owners = topology.by_owner(wanted)
            outcomes = yield [Visit(node, questions(its)) for node, its in owners.items()]
            for outcome in outcomes:
                if isinstance(outcome, UpriverError):
                    if is_final(outcome):
                        raise outcome
                    trouble = outcome
                else:
                    for result in outcome:
                        found |= result
            if len(found) == len(wanted):
                topology.waiting.over()
                return found
        except NODE_TROUBLE as error:
            if is_final(error):
                raise
            trouble = error
        topology.map_is_old = True
        left = min(patience, partial_after if found else patience) - (topology.clock() - began)
        if left <= 0:
            if found and (partial_after <= patience or (trouble is None and not whole)):
                topology.waiting.over()
                return found
            raise trouble or topology.no_owner_error(_first_missing(wanted, found))
        topology.waiting.in_vain(trouble or topology.no_owner_error(_first_missing(wanted, found)))
        yield Pause(min(backoff.next_pause(), left))


def _first_missing(wanted: Iterable[int], found: Collection[int]) -> int:
    return next((vb for vb in wanted if vb not in found), 0)


def ask_copies(
    topology: Topology, vbuckets: Iterable[int], question: Callable[[int], Conversation[_T]]
) -> ClusterConversation[dict[int, list[_T]]]:
    """Asks all nodes with a copy of each vbucket, once.

    Leaves out the vbuckets without copies, and those of which not every copy could be asked.
    """
    copies = {vb: [node.address for node in topology.map.copies(vb)] for vb in vbuckets}
    by_node: dict[Address, list[int]] = {}
    for vbucket, nodes in copies.items():
        for address in nodes:
            by_node.setdefault(address, []).append(vbucket)
    outcomes = yield [Visit(node, tuple(map(question, its))) for node, its in by_node.items()]
    found: dict[int, list[_T]] = {}
    for its, outcome in zip(by_node.values(), outcomes, strict=True):
        if isinstance(outcome, UpriverError):
            if is_final(outcome):
                raise outcome
            _log.warning("cannot ask every copy of %d vbuckets: %s", len(its), outcome)
            continue
        for vbucket, answer in zip(its, outcome, strict=True):
            found.setdefault(vbucket, []).append(answer)
    return {vb: answers for vb, answers in found.items() if len(answers) == len(copies[vb])}


def ask_failover_logs(
    topology: Topology,
    by_node: Mapping[Address, Collection[int]],
    excused: Callable[[StatusError], bool] = lambda refusal: False,
    *,
    streaming: bool = False,
) -> ClusterConversation[dict[Address, dict[int, FailoverLog] | UpriverError]]:
    """Asks each node for the failover logs of some vbuckets; the answer, or the error, by node.

    Leaves out vbuckets that a node refuses with an ``excused`` status. Nodes are asked on
    connections opened for DCP if ``streaming``, or where they deny access on others: a user who may
    read only some collections gets failover logs there.
    """
    by_stream = set(by_node) if streaming else topology.logs_by_stream
    while True:
        outcomes = yield [
            Visit(
                address,
                tuple(
                    unless(failover_log(vb, streaming=address in by_stream), excused) for vb in its
                ),
                streaming=address in by_stream,
            )
            for address, its in by_node.items()
        ]
        denied = {
            address
            for address, outcome in zip(by_node, outcomes, strict=True)
            if isinstance(outcome, StatusError) and outcome.status is Status.NO_ACCESS
        }
        if denied <= by_stream:
            break
        by_stream |= denied
    return {
        address: outcome
        if isinstance(outcome, UpriverError)
        else {vb: log for vb, log in zip(its, outcome, strict=True) if log is not None}
        for (address, its), outcome in zip(by_node.items(), outcomes, strict=True)
    }
