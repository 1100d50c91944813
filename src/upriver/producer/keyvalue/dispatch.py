"""Dispatcher of key-value requests: calls the handler of a command and turns errors into responses.

It checks which frame infos a document command may carry. It knows nothing of single commands.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from ...errors import Status, StoreError, StoreRefusal
from ...store import Bucket
from ...wire import frameinfo as f
from ...wire.messages import Request
from ...wire.protocol_enums import DurabilityLevel
from ..connections.client_info import ClientInfo
from . import (
    collection_commands,
    document_reads,
    document_writes,
    range_scans,
    stat_groups,
    vbucket_commands,
    with_meta_writes,
)
from .command_counts import counts_of
from .document_locks import Locks
from .durability_requirements import PreparedWrite
from .frameinfo_commands import DURABLE, KEEPS_EXPIRY
from .handler_results import Answer, Blocking, Later, Now, Responses, Several, Write
from .range_scans import RangeScans
from .request_context import Call, NodeView
from .subdoc import commands as subdoc_commands

logger = logging.getLogger("upriver.producer")


_HANDLERS: Final[dict[type[Request], Callable[[Call, Any], Answer]]] = {
    **document_reads.HANDLERS,
    **range_scans.HANDLERS,
    **document_writes.HANDLERS,
    **with_meta_writes.HANDLERS,
    **subdoc_commands.HANDLERS,
    **vbucket_commands.HANDLERS,
    **collection_commands.HANDLERS,
    **stat_groups.HANDLERS,
}

_T = TypeVar("_T")
_IMPERSONATION: Final = (f.Impersonate, f.ExtraPrivilege, f.TokenId)


class KeyValue:
    """Answers the key-value requests of all clients of one node. It holds the document locks."""

    def __init__(self, node: NodeView) -> None:
        self._node = node
        self._locks: WeakKeyDictionary[Bucket, Locks] = WeakKeyDictionary()
        self._scans: WeakKeyDictionary[Bucket, RangeScans] = WeakKeyDictionary()

    def has_locks(self, bucket: Bucket) -> bool:
        """Whether any document of a bucket may be locked; its writes then need this class."""
        locks = self._locks.get(bucket)
        return locks is not None and locks.in_use

    def _scans_of(self, bucket: Bucket) -> RangeScans:
        scans = self._scans.get(bucket)
        if scans is None:
            scans = self._scans[bucket] = RangeScans(self._node.now)
        return scans

    def drop_old_scans(self) -> None:
        """Closes the range scans that have been open for too long."""
        for scans in list(self._scans.values()):
            scans.drop_old()

    def answer(
        self, client: ClientInfo, request: Request, durable: PreparedWrite | None = None
    ) -> Answer:
        """Handles one request of a client that has selected a bucket.

        With ``durable``, changes that are made in a thread are prepared. Changes that are returned
        as a `Write` must be prepared by the caller.

        Every answer other than a `Write` depends on committed data. Unless the request is a plain
        write, the caller must commit earlier writes of the same connection first. Locking and
        unlocking take effect in this call, so such a request must not be handled twice.
        """
        bucket = client.bucket
        assert bucket is not None, "the server selects a bucket first"
        locks = self._locks.get(bucket)
        if locks is None:
            locks = self._locks[bucket] = Locks(self._node.now)
        call = Call(self._node, client, bucket, locks, request, self._scans_of(bucket), durable)
        try:
            if request.frames:
                _check_frames(call)
            handler = _HANDLERS.get(type(request))
            if handler is None:
                raise StoreRefusal(Status.UNKNOWN_COMMAND, "there is no such command here")
            answer = handler(call, request)
        except Exception as error:
            answer = Now(_refused(call, error))
        return _counted(call, answer)


def _counted(call: Call, answer: Answer) -> Answer:
    """Returns the same answer, wrapped so that it is counted once its responses are known.

    What fails after this call returned is answered with a refusal.
    """
    counts, request = counts_of(call.bucket), call.request

    def counted(responses: Responses) -> Responses:
        counts.add(request, responses)
        return responses

    if isinstance(answer, Now):
        counted(answer.responses)
    elif isinstance(answer, Write):
        respond = answer.respond
        return Write(answer.change, lambda outcome: counted(respond(outcome)))
    elif isinstance(answer, Blocking):
        work = _refusing(call, answer.call)
        return Blocking(answer.work, lambda: counted(work()), call.refused)
    elif isinstance(answer, Later):
        poll = _refusing(call, answer.poll)

        def polled() -> Responses | None:
            responses = poll()
            return responses if responses is None else counted(responses)

        return Later(polled)
    elif isinstance(answer, Several):
        return Several(_counted_steps(call, _refusing_steps(call, answer.steps)))
    return answer


def _counted_steps(call: Call, steps: Iterator[Responses]) -> Iterator[Responses]:
    counts = counts_of(call.bucket)
    for responses in steps:
        counts.add_responses(responses)
        yield responses


def _refusing(call: Call, action: Callable[[], _T]) -> Callable[[], _T | Responses]:
    def run() -> _T | Responses:
        try:
            return action()
        except Exception as error:
            return _refused(call, error)

    return run


def _refusing_steps(call: Call, steps: Iterator[Responses]) -> Iterator[Responses]:
    try:
        yield from steps
    except Exception as error:
        yield _refused(call, error)


def _refused(call: Call, error: Exception) -> Responses:
    """Returns the response to a failed request. An internal error is logged and reported."""
    if not isinstance(error, StoreError):
        logger.error("%s of %s failed", call.command, call.client.peer, exc_info=error)
        error = StoreError("a fault of the server")
    return call.refused(error)


def _check_frames(call: Call) -> None:
    """Refuses a frame info that asks for something this server does not support."""
    for info in call.request.frames:
        if isinstance(info, f.UnknownFrameInfo):
            raise StoreRefusal(Status.UNKNOWN_FRAME_INFO, f"there is no frame info {info.id}")
        if isinstance(info, _IMPERSONATION):
            raise StoreRefusal(Status.NO_ACCESS, "nobody acts for another user here")
        if isinstance(info, f.StreamId):
            raise StoreRefusal(Status.INVALID, "a stream id belongs to the change stream")
        if isinstance(info, f.PreserveTtl) and call.command not in KEEPS_EXPIRY:
            raise StoreRefusal(Status.NOT_SUPPORTED, f"{call.command} keeps no expiry")
        if isinstance(info, f.Durability) and call.command not in DURABLE:
            raise StoreRefusal(Status.INVALID, f"{call.command} cannot be durable")
        wants_more = isinstance(info, f.Durability) and info.level is not DurabilityLevel.NONE
        if wants_more and not call.node.durable_writes:
            raise StoreRefusal(Status.DURABILITY_IMPOSSIBLE, "there is no other copy to write to")
