"""Commands that read whole documents and their metadata, or lock documents."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, Final

from ...errors import Status, StoreError, StoreRefusal
from ...escaping import quoted
from ...model import Datatype, Op, VBucketState
from ...store import Applied, Bucket, RecordKind, TouchDocument, document_key
from ...wire import canonical
from ...wire import kv_messages as kv
from ...wire.canonical import CanonicalChange
from ...wire.messages import Request, Response
from ...wire.protocol_enums import Feature
from ...wire.stored_prepares import is_hidden
from . import document_values
from .handler_results import Answer, BackgroundWork, Blocking, Now, Responses, Write
from .request_context import Call, key_of

#: The version of the metadata response that includes the datatype.
_META_WITH_DATATYPE: Final = 2
_META_VERSIONS: Final = (None, 0, 1, _META_WITH_DATATYPE)

#: Bytes that the search for a random document reads at a time. The first document found ends it.
_SEARCH_CHUNK: Final = 64 * 1024


def _get(call: Call, request: kv.Get) -> Answer:
    return _found_or_silent(call, request.quiet, lambda: _document(call, request, request.with_key))


def _get_replica(call: Call, request: kv.GetReplica) -> Answer:
    return Now((_document(call, request, replica=True),))


def _get_and_touch(call: Call, request: kv.GetAndTouch) -> Answer:
    """Reads the document after its expiry is stored, so the response is never older than that."""
    key = key_of(request)
    call.locks.condition(request.vbucket, key, 0)

    def respond(outcome: Applied | StoreError) -> Responses:
        if isinstance(outcome, StoreError):
            return _unless_silent(call, request.quiet, outcome)
        return _found_or_silent(call, request.quiet, lambda: _document(call, request)).responses

    return Write(TouchDocument(request.vbucket, key, request.expiry), respond)


def _get_locked(call: Call, request: kv.GetLocked) -> Answer:
    vbucket, key = request.vbucket, key_of(request)
    found = call.bucket.get(vbucket, key)
    token = call.locks.take(vbucket, key, found.cas, request.lock_time)
    return Now((_response(call, found, cas=token),))


def _unlock(call: Call, request: kv.Unlock) -> Answer:
    vbucket, key = request.vbucket, key_of(request)
    call.bucket.get(vbucket, key)
    if not call.locks.release(vbucket, key, request.cas):
        call.locks.condition(vbucket, key, request.cas)  # refused if another client holds it
        raise StoreRefusal(Status.NOT_LOCKED, f"the document {quoted(request.key)} is not locked")
    return Now((call.plain(),))


def _get_meta(call: Call, request: kv.GetMeta) -> Answer:
    return _found_or_silent(call, request.quiet, lambda: _metadata(call, request))


def _metadata(call: Call, request: kv.GetMeta) -> Response:
    vbucket, key = request.vbucket, key_of(request)
    if request.version not in _META_VERSIONS:
        raise StoreRefusal(
            Status.INVALID, f"there is no version {request.version} of the metadata: ask for 1 or 2"
        )
    record = call.bucket.meta(vbucket, key)
    with_datatype = request.version == _META_WITH_DATATYPE
    return kv.MetaResponse(
        opaque=request.opaque,
        command=call.command,
        deleted=record.kind != RecordKind.MUTATION or record.expired(int(call.node.now())),
        flags=record.flags,
        expiry=record.time,
        rev=record.rev,
        cas=call.locks.shown_cas(vbucket, key, record.cas),
        document_datatype=Datatype(record.datatype) if with_datatype else None,
    )


def _get_random(call: Call, request: kv.GetRandomKey) -> Answer:
    """Returns a random document: the first one after a random seqno of a random vbucket."""
    if (request.collection is not None) is not call.has(Feature.COLLECTIONS):
        raise StoreRefusal(
            Status.INVALID, "the collection is named if and only if collections were negotiated"
        )
    collection = request.collection or 0
    call.bucket.manifest.collection(collection)

    def search() -> Responses:
        now = call.node.now()
        for found in _scattered(call.bucket):
            alive = found.op is Op.MUTATION and not 0 < found.time <= now
            if alive and found.collection == collection:
                collections = call.has(Feature.COLLECTIONS)
                key = document_key(found.key, collection) if collections else found.key
                return (_response(call, found, key=key, cas=found.cas),)
        raise StoreRefusal(Status.NOT_FOUND, "there is no document")

    return Blocking(BackgroundWork.SEARCHING, search)


def _scattered(bucket: Bucket) -> Iterator[CanonicalChange]:
    """Yields the changes of all active vbuckets, each from a random seqno and then from 0."""
    order = list(range(bucket.settings.vbuckets))
    random.shuffle(order)
    for vbucket in order:
        stats = bucket.vbucket_stats(vbucket)
        if stats.items and stats.state is VBucketState.ACTIVE:
            for start in (random.randrange(stats.high_seqno), 0):
                with bucket.open_reader(vbucket, start) as reader:
                    while (chunk := reader.read(_SEARCH_CHUNK)) is not None:
                        yield from _changes(chunk.frames)


def _changes(frames: bytes) -> Iterator[CanonicalChange]:
    for frame in canonical.frames_in(frames):
        if not canonical.is_event(frame) and not is_hidden(frame):
            yield canonical.parse(frame)


# ---- shared helpers ----------------------------------------------------------------------


def _found_or_silent(call: Call, quiet: bool, read: Callable[[], Response]) -> Now:
    try:
        return Now((read(),))
    except StoreError as error:
        return Now(_unless_silent(call, quiet, error))


def _unless_silent(call: Call, quiet: bool, error: StoreError) -> Responses:
    """Returns the refusal, or nothing if a quiet read did not find its document."""
    if quiet and isinstance(error, StoreRefusal) and error.status is Status.NOT_FOUND:
        return ()
    return call.refused(error)


def _document(
    call: Call, request: kv.DocumentRequest, with_key: bool = False, *, replica: bool = False
) -> Response:
    key = key_of(request)
    found = call.bucket.get(request.vbucket, key, replica=replica)
    shown_key = b""
    if with_key:
        shown_key = request.key if request.collection is None else key
    cas = call.locks.shown_cas(request.vbucket, key, found.cas)
    return _response(call, found, key=shown_key, cas=cas)


def _response(call: Call, found: CanonicalChange, *, cas: int, key: bytes = b"") -> Response:
    value, datatype = document_values.shown(call.client, found.value, found.datatype)
    return kv.DocumentResponse(
        opaque=call.request.opaque,
        command=call.command,
        value=value,
        flags=found.flags,
        cas=cas,
        datatype=datatype,
        key=key,
    )


HANDLERS: dict[type[Request], Callable[[Call, Any], Answer]] = {
    kv.Get: _get,
    kv.GetReplica: _get_replica,
    kv.GetAndTouch: _get_and_touch,
    kv.GetLocked: _get_locked,
    kv.Unlock: _unlock,
    kv.GetMeta: _get_meta,
    kv.GetRandomKey: _get_random,
}
