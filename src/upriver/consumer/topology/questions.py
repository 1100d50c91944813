"""Requests to a node for cluster map, collections, seqnos, failover logs and statistics.

Every request is a conversation (`session.conversation`), which the blocking and the asyncio
connection drive in the same way. Differences between server releases are handled here and nowhere
else: where a server does not know a command, another command is sent. A refusal raises an error
that names the request and the status; it never becomes an empty result.

    request         first command       fallback                which servers need it
    cluster map     0xb5                statistics vbucket      a node without a cluster manager
    high seqnos     0x48                statistics              April 2014, 3.0.2
                                        0x48 per collection     (a user limited to collections)
    failover log    0x96 or 0x54        statistics failovers    3.0.2, 4.1.2
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from ...errors import RemoteProtocolError, Status, StatusError
from ...model import FailoverEntry, FailoverLog
from ...session.client_handshake import refusal_context
from ...session.conversation import MORE, Conversation
from ...session.dcp_open import refused
from ...wire import kv_messages as kv
from ...wire import messages as m
from ...wire.protocol_enums import RequestedState
from .collection_names import Collections

_T = TypeVar("_T")

#: The statuses with which servers reject a command that they do not know.
UNKNOWN_REQUEST: Final = frozenset({Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED})
_STATES: Final = "vbucket"
_ACTIVE: Final = "active"
_SEQNOS: Final = "vbucket-seqno"
_HISTORIES: Final = "failovers"
#: Most statistics in one group: ten for each of 65,536 vbuckets, with a margin.
_MAX_STATISTICS: Final = 2**20
#: An entry of a failover log in statistics: ``vb_3:0:id``; the oldest servers add a prefix.
_HISTORY = re.compile(r"(?:failovers:)?vb_(\d{1,5}):(\d{1,4}):(id|seq)")


#: The state of a vbucket in statistics: ``vb_3`` is ``active``.
_STATE = re.compile(r"vb_(\d{1,5})")
_VERSION = re.compile(rb"(\d{1,4})\.(\d{1,4})\.(\d{1,6})")
_LAST_VBUCKET: Final = 65_535


class NoHistory(RemoteProtocolError):
    """A node has a vbucket but no failover log for it, so the vbucket cannot be read safely."""

    def __init__(self, vbucket: int) -> None:
        super().__init__(
            f"the server sends no failover log of vbucket {vbucket}, although it is active there"
        )


@dataclass(frozen=True, slots=True)
class VBucketSeqnos:
    """Branch and seqnos of an active vbucket at one moment, as its node reports them."""

    vbuuid: int
    high_seqno: int
    #: None if the node does not report it.
    purge_seqno: int | None


# ---- cluster and collections -------------------------------------------------------------


def cluster_map() -> Conversation[bytes | dict[int, str]]:
    """Gets the cluster map as JSON; from a node that has none, the states of its vbuckets.

    A node without a cluster manager answers with an empty map. A server older than cluster maps
    does not know the command. Both hold all vbuckets of the bucket themselves.
    """
    answer: m.Response = yield kv.GetClusterConfig()
    if answer.status is Status.SUCCESS and isinstance(answer, m.PlainResponse) and answer.value:
        return answer.value
    if answer.status is not Status.SUCCESS and answer.status not in UNKNOWN_REQUEST:
        raise StatusError(answer.status, request="the cluster map", context=refusal_context(answer))
    states = yield from vbucket_states()
    if not states:
        raise RemoteProtocolError("the server has neither a cluster map nor any vbucket")
    return states


def vbucket_states() -> Conversation[dict[int, str]]:
    """Gets the state of each vbucket of a node, such as ``active``, from its statistics."""
    states: dict[int, str] = {}
    for name, state in (yield from statistics(_STATES)).items():
        part = _STATE.fullmatch(name)
        if part is not None and int(part[1]) <= _LAST_VBUCKET:
            states[int(part[1])] = state
    return states


def manifest() -> Conversation[Collections]:
    """Gets the current names of the bucket's scopes and collections."""
    return Collections.parse((yield from manifest_json()))


def manifest_json() -> Conversation[bytes]:
    """Gets the collections manifest as the node sends it."""
    answer: m.Response = yield kv.GetManifest()
    if answer.status is Status.SUCCESS and isinstance(answer, m.PlainResponse):
        return answer.value
    raise refused(answer, "the collections manifest")


def server_version() -> Conversation[tuple[int, int, int] | None]:
    """Gets the release of a server; None if the server sends no version that can be parsed."""
    answer: m.Response = yield kv.Version()
    text = answer.value if isinstance(answer, m.PlainResponse) else b""
    found = _VERSION.match(text) if answer.status is Status.SUCCESS else None
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


# ---- seqnos and failover logs ------------------------------------------------------------


def high_seqnos(
    vbuckets: Collection[int], collections: Collection[int] = ()
) -> Conversation[dict[int, int]]:
    """Gets the high seqnos of those ``vbuckets`` for which the node is active.

    A user with access to ``collections`` only gets the high seqno of these collections.
    """
    answer: m.Response = yield kv.GetAllSeqnos(state=RequestedState.ACTIVE)
    if isinstance(answer, kv.AllSeqnosResponse):
        active = dict(answer.seqnos)
    elif answer.status is Status.NO_ACCESS and collections:
        active = yield from _collection_seqnos(collections)
    elif answer.status in UNKNOWN_REQUEST:
        active = yield from _seqnos_of_active(vbuckets)
    else:
        raise refused(answer, "the high seqnos")
    return {vbucket: active[vbucket] for vbucket in vbuckets if vbucket in active}


def seqnos_in_state(state: RequestedState) -> Conversation[dict[int, int]]:
    """Gets the high seqnos of the vbuckets that a node has in one state."""
    answer: m.Response = yield kv.GetAllSeqnos(state=state)
    if isinstance(answer, kv.AllSeqnosResponse):
        return dict(answer.seqnos)
    raise refused(answer, f"the high seqnos of {state.name.lower()} vbuckets")


def _collection_seqnos(collections: Collection[int]) -> Conversation[dict[int, int]]:
    highest: dict[int, int] = {}
    for collection in collections:
        answer: m.Response = yield kv.GetAllSeqnos(
            state=RequestedState.ACTIVE, collection=collection
        )
        if not isinstance(answer, kv.AllSeqnosResponse):
            raise refused(answer, f"the high seqnos of the collection {collection:#x}")
        for vbucket, seqno in answer.seqnos:
            highest[vbucket] = max(seqno, highest.get(vbucket, 0))
    return highest


def _seqnos_of_active(vbuckets: Collection[int]) -> Conversation[dict[int, int]]:
    """Gets high seqnos from statistics, which also list vbuckets that are not active."""
    states = yield from vbucket_states()
    stats = yield from statistics(_SEQNOS)
    return {
        vbucket: _number(stats, f"vb_{vbucket}:high_seqno")
        for vbucket in vbuckets
        if states.get(vbucket) == _ACTIVE
    }


def vbucket_seqnos(vbuckets: Sequence[int]) -> Conversation[dict[int, VBucketSeqnos]]:
    """Gets seqnos and branches of those ``vbuckets`` for which the node is active."""
    few = len(vbuckets) == 1
    stats = yield from (_statistics_of(_SEQNOS, vbuckets[0]) if few else statistics(_SEQNOS))
    return {
        vbucket: VBucketSeqnos(
            vbuuid=_number(stats, f"vb_{vbucket}:uuid"),
            high_seqno=_number(stats, f"vb_{vbucket}:high_seqno"),
            purge_seqno=_number(stats, name)
            if (name := f"vb_{vbucket}:purge_seqno") in stats
            else None,
        )
        for vbucket in vbuckets
        if f"vb_{vbucket}:high_seqno" in stats  # else it is on another node by now
    }


def _number(stats: Mapping[str, str], name: str) -> int:
    try:
        return int(stats[name])
    except (KeyError, ValueError):
        value = stats.get(name)
        raise RemoteProtocolError(f"the statistic {name} is {value!r}, and no number") from None


def failover_log(vbucket: int, *, streaming: bool = False) -> Conversation[FailoverLog]:
    """Gets the failover log of a vbucket, newest branch first.

    ``streaming`` selects the command for connections that were opened for DCP. Raises `StatusError`
    if the node refuses or does not have the vbucket, `NoHistory` if the vbucket has no log.
    """
    request = (
        m.FailoverLogRequest(vbucket=vbucket) if streaming else kv.GetFailoverLog(vbucket=vbucket)
    )
    answer: m.Response = yield request
    if isinstance(answer, m.FailoverLogResponse | kv.GetFailoverLogResponse):
        if answer.failover_log:
            return FailoverLog(answer.failover_log).newest_first().sanitised()
        raise NoHistory(vbucket)
    if answer.status not in UNKNOWN_REQUEST:
        raise refused(answer, f"the failover log of vbucket {vbucket}")
    entries: dict[int, dict[str, int]] = {}
    for name, value in (yield from _statistics_of(_HISTORIES, vbucket)).items():
        part = _HISTORY.fullmatch(name)
        if part is not None and int(part[1]) == vbucket and value.isdecimal():
            entries.setdefault(int(part[2]), {})[part[3]] = int(value[:20])
    log = tuple(
        FailoverEntry(entry["id"], entry["seq"])
        for _, entry in sorted(entries.items())
        if len(entry) == len(("id", "seq"))
    )
    if log:
        return FailoverLog(log).newest_first().sanitised()
    if (yield from vbucket_states()).get(vbucket) == _ACTIVE:
        raise NoHistory(vbucket)
    raise StatusError(Status.NOT_MY_VBUCKET, request=f"the failover log of vbucket {vbucket}")


def has_history(vbucket: int) -> Conversation[bool]:
    """Whether a node answers for a vbucket, on a connection for streams; in every draft."""
    answer: m.Response = yield m.FailoverLogRequest(vbucket=vbucket)
    return answer.status is Status.SUCCESS


def persisted_seqno(vbucket: int, vbuuid: int) -> Conversation[int]:
    """Gets the last seqno of a branch that a node has on disk; 0 if it has no such branch."""
    answer: m.Response = yield kv.ObserveSeqno(vbucket=vbucket, vbuuid=vbuuid)
    if isinstance(answer, kv.ObserveSeqnoResponse):
        if answer.old_seqno is not None:  # the branch ended there; later seqnos are of another one
            return min(answer.persisted_seqno, answer.old_seqno)
        return answer.persisted_seqno
    if answer.status in (Status.NOT_FOUND, Status.NOT_MY_VBUCKET):
        return 0  # the node has no copy yet, or its copy has not received the branch yet
    raise refused(answer, f"what is persisted of vbucket {vbucket}")


# ---- statistics, commands and refusals ---------------------------------------------------


def statistics(group: str) -> Conversation[dict[str, str]]:
    """Gets a group of statistics by name; raises `StatusError` if the server refuses it."""
    found: dict[str, str] = {}
    answer: m.Response = yield kv.Stat(group=group)
    while True:
        if not isinstance(answer, kv.StatResponse) or answer.status is not Status.SUCCESS:
            raise refused(answer, f"the statistics {group!r}")
        if not answer.key:
            return found
        found[answer.key] = answer.value.decode(errors="replace")
        if len(found) > _MAX_STATISTICS:
            raise RemoteProtocolError(f"the statistics {group!r} do not end")
        answer = yield MORE


def _statistics_of(group: str, vbucket: int) -> Conversation[dict[str, str]]:
    """Gets a group for one vbucket; for all vbuckets if the server cannot select one."""
    try:
        return (yield from statistics(f"{group} {vbucket}"))
    except StatusError as refusal:
        if refusal.status not in (Status.NOT_FOUND, Status.INVALID, *UNKNOWN_REQUEST):
            raise
    return (yield from statistics(group))


def command(request: m.Request, name: str) -> Conversation[m.Response]:
    """Sends a command that changes a node; raises `StatusError` with its ``name`` if refused."""
    answer: m.Response = yield request
    if answer.status is not Status.SUCCESS:
        raise StatusError(answer.status, request=name, context=refusal_context(answer))
    return answer


def unless(
    talk: Conversation[_T], excused: Callable[[StatusError], bool]
) -> Conversation[_T | None]:
    """The result of a request, or None if the server refuses it with an ``excused`` status.

    With it, the refusal of one request does not fail the others of the same visit.
    """
    try:
        return (yield from talk)
    except StatusError as refusal:
        if not excused(refusal):
            raise
        return None
