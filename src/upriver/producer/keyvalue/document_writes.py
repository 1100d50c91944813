"""Commands that write whole documents: store, count, append, delete, touch and flush."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from ...errors import Status, StoreError, StoreRefusal
from ...escaping import quoted
from ...store import (
    AddDocument,
    AppendToDocument,
    Applied,
    ChangeRequest,
    Counter,
    DeleteDocument,
    PrependToDocument,
    RecordKind,
    ReplaceDocument,
    SetDocument,
    StoredRecord,
    TouchDocument,
)
from ...wire import kv_messages as kv
from ...wire.frameinfo import PreserveTtl
from ...wire.messages import Request
from . import document_values
from .handler_results import Answer, BackgroundWork, Blocking, Responses, Write
from .request_context import Call, key_of

#: How often a change is retried because another writer changed the document first. Each try waits
#: for a group commit, so a document that is still contended after these is refused to the client.
_MAX_TRIES: Final = 32
#: Seconds added to the longest random pause before each further try.
_LONGER_PAUSE: Final = 0.001

#: The expiry by which a counter request says that the document must exist. No document can have it.
_MUST_EXIST: Final = 0xFFFFFFFF


# ---- storing -----------------------------------------------------------------------------


def _set(call: Call, request: kv.Set) -> Answer:
    return _store(call, request, SetDocument)


def _replace(call: Call, request: kv.Replace) -> Answer:
    return _store(call, request, ReplaceDocument)


def _store(
    call: Call, request: kv.Set | kv.Replace, kind: type[SetDocument] | type[ReplaceDocument]
) -> Write | Blocking:
    vbucket, key, value = request.vbucket, key_of(request), request.value
    datatype = datatype_of(call, request)
    cas = call.locks.condition(vbucket, key, request.cas)
    change = kind(vbucket, key, value, request.flags, request.expiry, datatype, cas)
    if request.frames and keeps_expiry(request):
        return Blocking(
            BackgroundWork.EDITING, partial(_store_keeping_expiry, call, request, change)
        )
    return Write(change, partial(written, call, request))


def _store_keeping_expiry(
    call: Call, request: kv.Set | kv.Replace, change: SetDocument | ReplaceDocument
) -> Responses:
    def attempt() -> ChangeRequest:
        there = live_record(call, change.vbucket, change.key)
        if there is not None:
            return change._replace(expiry=there.time, cas=change.cas or there.cas)
        if isinstance(change, ReplaceDocument) or change.cas:
            raise StoreRefusal(Status.NOT_FOUND, f"there is no document {quoted(request.key)}")
        return AddDocument(
            *change[:-1]
        )  # refused if another writer comes first: then there is an expiry

    done = write_over(call, attempt, retry=not request.cas)
    return written(call, request, done)


def _add(call: Call, request: kv.Add) -> Answer:
    vbucket, key, value = request.vbucket, key_of(request), request.value
    datatype = datatype_of(call, request)
    change = AddDocument(vbucket, key, value, request.flags, request.expiry, datatype)
    return Write(change, partial(written, call, request))


def _append(call: Call, request: kv.Append) -> Answer:
    return _extend(call, request, AppendToDocument)


def _prepend(call: Call, request: kv.Prepend) -> Answer:
    return _extend(call, request, PrependToDocument)


def _extend(
    call: Call, request: kv.Append, kind: type[AppendToDocument] | type[PrependToDocument]
) -> Answer:
    vbucket, key = request.vbucket, key_of(request)
    value = document_values.checked_body(call.client, request.value, request.datatype)
    cas = call.locks.condition(vbucket, key, request.cas)
    return Write(kind(vbucket, key, value, cas), partial(written, call, request))


def _delete(call: Call, request: kv.Delete) -> Answer:
    vbucket, key = request.vbucket, key_of(request)
    cas = call.locks.condition(vbucket, key, request.cas)
    return Write(DeleteDocument(vbucket, key, cas), partial(written, call, request))


def written(
    call: Call,
    request: kv.StoreRequest | kv.Append | kv.Delete | kv.SetWithMeta | kv.DeleteWithMeta,
    outcome: Applied | StoreError,
) -> Responses:
    """Returns the response to a write. A write that carried a lock token has released the lock."""
    if isinstance(outcome, StoreError):
        return call.refused(outcome)
    cas = getattr(request, "cas", 0)  # an ADD has none
    if cas:
        call.locks.release(request.vbucket, key_of(request), cas)
    return () if request.quiet else (_mutation(call, outcome),)


def _mutation(call: Call, done: Applied) -> kv.MutationResponse:
    vbuuid, seqno = call.token(done)
    # No CAS for a DELETE of a memcached client, as from memcached: such a client sends no HELLO.
    plain = isinstance(call.request, kv.Delete) and not call.client.features
    return kv.MutationResponse(
        opaque=call.request.opaque,
        command=call.command,
        cas=0 if plain else done.cas,
        vbuuid=vbuuid,
        seqno=seqno,
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
        # Couchbase Server gives no seqno here, whatever was negotiated.
        response = kv.MutationResponse(opaque=request.opaque, command=call.command, cas=outcome.cas)
        return (response,)

    return Write(TouchDocument(vbucket, key, request.expiry), respond)


# ---- the whole bucket --------------------------------------------------------------------


def _flush(call: Call, request: kv.FlushAll) -> Answer:
    if not call.node.may_flush(call.bucket):
        raise StoreRefusal(Status.NOT_SUPPORTED, "flushing is not allowed here")
    if request.delay:
        raise StoreRefusal(Status.NOT_SUPPORTED, "a flush happens at once or not at all")

    def flush() -> Responses:
        call.bucket.flush(copies=False)
        call.locks.clear()
        return () if request.quiet else (call.plain(),)

    return Blocking(BackgroundWork.ADMINISTERING, flush)


# ---- shared helpers ----------------------------------------------------------------------


def datatype_of(call: Call, request: kv.StoreRequest | kv.SetWithMeta) -> int:
    """Checks a document and returns the datatype to store it with."""
    max_value = call.bucket.settings.max_value
    # A plain int: bit operations on an enum cost a microsecond each.
    datatype = int(request.datatype)
    return document_values.stored_datatype(call.client, request.value, datatype, max_value)


def keeps_expiry(request: Request) -> bool:
    """Whether an existing document keeps its expiry."""
    return any(isinstance(info, PreserveTtl) for info in request.frames)


def live_record(call: Call, vbucket: int, key: bytes) -> StoredRecord | None:
    """Returns the record of a document, or None if there is no live document."""
    try:
        record = call.bucket.meta(vbucket, key)
    except StoreRefusal as refusal:
        if refusal.status is not Status.NOT_FOUND:
            raise
        return None
    gone = record.kind != RecordKind.MUTATION or record.expired(int(call.node.now()))
    return None if gone else record


def write_over(call: Call, attempt: Callable[[], ChangeRequest], *, retry: bool) -> Applied:
    """Makes a change that depends on the current document; with ``retry``, again if that changed.

    ``attempt`` reads the document and returns a change. The store refuses the change if another
    write came in between.
    """
    for tried in range(_MAX_TRIES if retry else 1):
        time.sleep(random.uniform(0, tried * _LONGER_PAUSE))  # gives every writer a chance
        change = attempt()
        try:
            return call.write(change)
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
