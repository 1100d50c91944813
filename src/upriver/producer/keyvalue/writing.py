"""Writing whole documents: storing, counting, appending, deleting, touching, flushing."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from ...errors import Status, StoreError, StoreRefusal
from ...model import Datatype
from ...store import (
    Add,
    Append,
    Applied,
    Change,
    Counter,
    Delete,
    Kind,
    Prepend,
    Record,
    Replace,
    Set,
    Touch,
)
from ...wire import kv
from ...wire.frameinfo import PreserveTtl
from ...wire.messages import Request
from . import bodies
from .answers import Answer, Blocking, Responses, Write
from .call import Call, key_of

__all__ = ["HANDLERS", "datatype_of", "keeps_expiry", "live_record", "write_over", "written"]

#: How often a change is made anew because another writer came first. Each try waits for a group,
#: so a document that is still contended then is one for its clients to sort out.
_MAX_TRIES: Final = 32
#: Seconds by which a writer that was too slow may wait longer before each further try.
_LONGER_PAUSE: Final = 0.001

#: An expiry that no document can have, with which a counter says that it must exist.
_MUST_EXIST: Final = 0xFFFFFFFF


# ---- storing -----------------------------------------------------------------------------


def _set(call: Call, request: kv.Set) -> Answer:
    return _store(call, request, Set)


def _replace(call: Call, request: kv.Replace) -> Answer:
    return _store(call, request, Replace)


def _store(
    call: Call, request: kv.Set | kv.Replace, kind: type[Set] | type[Replace]
) -> Write | Blocking:
    vbucket, key, value = request.vbucket, key_of(request), request.value
    datatype = datatype_of(call, request)
    cas = call.locks.condition(vbucket, key, request.cas)
    change = kind(vbucket, key, value, request.flags, request.expiry, datatype, cas)
    if request.frames and keeps_expiry(request):
        return Blocking(partial(_store_keeping_expiry, call, request, change))
    return Write(change, partial(written, call, request))


def _store_keeping_expiry(
    call: Call, request: kv.Set | kv.Replace, change: Set | Replace
) -> Responses:
    def attempt() -> Change:
        there = live_record(call, change.vbucket, change.key)
        if there is not None:
            return change._replace(expiry=there.time, cas=change.cas or there.cas)
        if isinstance(change, Replace) or change.cas:
            raise StoreRefusal(Status.NOT_FOUND, f"there is no document {request.key!r}")
        return Add(*change[:-1])  # refused if another writer comes first: then there is an expiry

    done = write_over(call, attempt, retry=not request.cas)
    return written(call, request, done)


def _add(call: Call, request: kv.Add) -> Answer:
    vbucket, key, value = request.vbucket, key_of(request), request.value
    datatype = datatype_of(call, request)
    change = Add(vbucket, key, value, request.flags, request.expiry, datatype)
    return Write(change, partial(written, call, request))


def _append(call: Call, request: kv.Append) -> Answer:
    return _extend(call, request, Append)


def _prepend(call: Call, request: kv.Prepend) -> Answer:
    return _extend(call, request, Prepend)


def _extend(call: Call, request: kv.Append, kind: type[Append] | type[Prepend]) -> Answer:
    vbucket, key = request.vbucket, key_of(request)
    if request.datatype & Datatype.XATTR:
        raise StoreRefusal(Status.INVALID, "extended attributes cannot be appended")
    value = bodies.checked_body(call.client, request.value, request.datatype)
    cas = call.locks.condition(vbucket, key, request.cas)
    return Write(kind(vbucket, key, value, cas), partial(written, call, request))


def _delete(call: Call, request: kv.Delete) -> Answer:
    vbucket, key = request.vbucket, key_of(request)
    cas = call.locks.condition(vbucket, key, request.cas)
    return Write(Delete(vbucket, key, cas), partial(written, call, request))


def written(
    call: Call,
    request: kv.StoreRequest | kv.Append | kv.Delete | kv.SetWithMeta | kv.DeleteWithMeta,
    outcome: Applied | StoreError,
) -> Responses:
    """The answer to a write; one with the token of a lock has ended it."""
    if isinstance(outcome, StoreError):
        return call.refused(outcome)
    cas = getattr(request, "cas", 0)  # adding has none
    if cas:
        call.locks.release(request.vbucket, key_of(request), cas)
    return () if request.quiet else (_mutation(call, outcome),)


def _mutation(call: Call, done: Applied) -> kv.MutationResponse:
    vbuuid, seqno = call.token(done)
    return kv.MutationResponse(
        opaque=call.request.opaque, command=call.command, cas=done.cas, vbuuid=vbuuid, seqno=seqno
    )


# ---- counting and touching ---------------------------------------------------------------


def _increment(call: Call, request: kv.Increment) -> Answer:
    return _count(call, request, request.delta)


def _decrement(call: Call, request: kv.Decrement) -> Answer:
    return _count(call, request, -request.delta)


def _count(call: Call, request: kv.Increment, delta: int) -> Answer:
    vbucket, key, expiry = request.vbucket, key_of(request), request.expiry
    call.locks.condition(vbucket, key, 0)
    if expiry == _MUST_EXIST:
        change = Counter(vbucket, key, delta)
    else:
        change = Counter(vbucket, key, delta, request.initial, expiry)

    def respond(outcome: Applied | StoreError) -> Responses:
        if isinstance(outcome, StoreError):
            return call.refused(outcome)
        if request.quiet:
            return ()
        vbuuid, seqno = call.token(outcome)
        response = kv.CounterResponse(
            opaque=request.opaque,
            command=call.command,
            cas=outcome.cas,
            value=outcome.number or 0,
            vbuuid=vbuuid,
            seqno=seqno,
        )
        return (response,)

    return Write(change, respond)


def _touch(call: Call, request: kv.Touch) -> Answer:
    vbucket, key = request.vbucket, key_of(request)
    call.locks.condition(vbucket, key, 0)

    def respond(outcome: Applied | StoreError) -> Responses:
        if isinstance(outcome, StoreError):
            return call.refused(outcome)
        # Real servers give no seqno here, whatever was negotiated.
        response = kv.MutationResponse(opaque=request.opaque, command=call.command, cas=outcome.cas)
        return (response,)

    return Write(Touch(vbucket, key, request.expiry), respond)


# ---- the whole bucket --------------------------------------------------------------------


def _flush(call: Call, request: kv.FlushAll) -> Answer:
    if not call.node.flush_allowed:
        raise StoreRefusal(Status.NOT_SUPPORTED, "flushing is not allowed here")
    if request.delay:
        raise StoreRefusal(Status.NOT_SUPPORTED, "a flush happens at once or not at all")

    def flush() -> Responses:
        call.bucket.flush(copies=False)
        call.locks.clear()
        return () if request.quiet else (call.plain(),)

    return Blocking(flush)


# ---- shared ------------------------------------------------------------------------------


def datatype_of(call: Call, request: kv.StoreRequest | kv.SetWithMeta) -> int:
    """What a document is stored as, after a look at it."""
    max_value = call.bucket.settings.max_value
    # A plain number: bits of an enum cost a microsecond each.
    datatype = int(request.datatype)
    return bodies.stored_datatype(call.client, request.value, datatype, max_value)


def keeps_expiry(request: Request) -> bool:
    """Whether a document that is there shall keep its expiry."""
    return any(isinstance(info, PreserveTtl) for info in request.frames)


def live_record(call: Call, vbucket: int, key: bytes) -> Record | None:
    """What is known of a document that is there."""
    try:
        record = call.bucket.meta(vbucket, key)
    except StoreRefusal as refusal:
        if refusal.status is not Status.NOT_FOUND:
            raise
        return None
    gone = record.kind != Kind.MUTATION or record.expired(int(call.node.now()))
    return None if gone else record


def write_over(call: Call, attempt: Callable[[], Change], *, retry: bool) -> Applied:
    """Makes a change that depends on what was there; with ``retry`` anew if that changed.

    ``attempt`` reads and gives a change that the store refuses if another came in between.
    """
    for tried in range(_MAX_TRIES if retry else 1):
        time.sleep(random.uniform(0, tried * _LONGER_PAUSE))  # so that all come to their turn
        change = attempt()
        try:
            return call.bucket.write(change)
        except StoreRefusal as refusal:
            if not retry or refusal.status not in (Status.EXISTS, Status.NOT_FOUND):
                raise
    raise StoreRefusal(Status.TEMPORARY_FAILURE, "other writers were always faster")


HANDLERS: dict[type[Request], Callable[[Call, Any], Answer]] = {
    kv.Set: _set,
    kv.Add: _add,
    kv.Replace: _replace,
    kv.Append: _append,
    kv.Prepend: _prepend,
    kv.Delete: _delete,
    kv.Increment: _increment,
    kv.Decrement: _decrement,
    kv.Touch: _touch,
    kv.FlushAll: _flush,
}
