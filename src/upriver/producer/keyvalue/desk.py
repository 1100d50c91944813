"""The front desk: takes a request to whoever can answer it, and refusals back to its client.

It knows which frame infos a document command may carry, and nothing of single commands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from ...errors import Status, StoreError, StoreRefusal
from ...store import Bucket
from ...wire import frameinfo as f
from ...wire.messages import Request
from ...wire.names import DurabilityLevel
from ..client import Client
from . import manifests, reading, stats, subdocuments, vbuckets, with_meta, writing
from .answers import Answer, Blocking, Later, Now, Responses
from .call import Call, NodeView
from .locks import Locks

__all__ = ["KeyValue"]


_HANDLERS: Final[dict[type[Request], Callable[[Call, Any], Answer]]] = {
    **reading.HANDLERS,
    **writing.HANDLERS,
    **with_meta.HANDLERS,
    **subdocuments.HANDLERS,
    **vbuckets.HANDLERS,
    **manifests.HANDLERS,
    **stats.HANDLERS,
}

_T = TypeVar("_T")
_IMPERSONATION: Final = (f.Impersonate, f.ExtraPrivilege, f.TokenId)


class KeyValue:
    """Answers the key-value requests of any client of one node. It holds the locks."""

    def __init__(self, node: NodeView) -> None:
        self._node = node
        self._locks: WeakKeyDictionary[Bucket, Locks] = WeakKeyDictionary()

    def has_locks(self, bucket: Bucket) -> bool:
        """Whether any document of a bucket may be locked, so that its writes must come by here."""
        locks = self._locks.get(bucket)
        return locks is not None and locks.in_use

    def answer(self, client: Client, request: Request) -> Answer:
        """What becomes of a request, of a client that has a bucket.

        Any answer but a write is about what was committed before, so the writes of the same
        connection must be. Locking and unlocking happen here, so nothing is to be asked twice.
        """
        bucket = client.bucket
        assert bucket is not None, "the server selects a bucket first"
        locks = self._locks.get(bucket)
        if locks is None:
            locks = self._locks[bucket] = Locks(self._node.now)
        call = Call(self._node, client, bucket, locks, request)
        try:
            if request.frames:
                _check_frames(call)
            handler = _HANDLERS.get(type(request))
            if handler is None:
                raise StoreRefusal(Status.UNKNOWN_COMMAND, "there is no such command here")
            answer = handler(call, request)
        except StoreError as error:
            return Now(call.refused(error))
        if isinstance(answer, Blocking):
            return Blocking(_refusing(call, answer.call))
        if isinstance(answer, Later):
            return Later(_refusing(call, answer.poll))
        return answer


def _refusing(call: Call, action: Callable[[], _T]) -> Callable[[], _T | Responses]:
    def run() -> _T | Responses:
        try:
            return action()
        except StoreError as error:
            return call.refused(error)

    return run


def _check_frames(call: Call) -> None:
    """Refuses what a frame info asks for and this server does not do."""
    for info in call.request.frames:
        if isinstance(info, f.UnknownFrameInfo):
            raise StoreRefusal(Status.UNKNOWN_FRAME_INFO, f"there is no frame info {info.id}")
        if isinstance(info, _IMPERSONATION):
            raise StoreRefusal(Status.NO_ACCESS, "nobody acts for another user here")
        if isinstance(info, f.StreamId):
            raise StoreRefusal(Status.INVALID, "a stream id belongs to the change stream")
        wants_more = isinstance(info, f.Durability) and info.level is not DurabilityLevel.NONE
        if wants_more and not call.node.durable_writes:
            raise StoreRefusal(Status.DURABILITY_IMPOSSIBLE, "there is no other copy to write to")
