"""Vbuckets: their states, seqnos and failover logs, and whether changes are on disk."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from ...errors import Status, StoreRefusal
from ...model import VBucketState
from ...store import Kind
from ...wire import kv
from ...wire.messages import Request
from ...wire.names import Feature, RequestedState
from .answers import Answer, Blocking, Later, Now, Responses
from .call import Call

__all__ = ["HANDLERS"]

#: How long a client may wait for a seqno to be on disk, in seconds: as on real servers.
_PERSISTENCE_TIMEOUT: Final = 30

#: Keys in one observation: more would keep an event loop busy for tens of milliseconds.
_MAX_OBSERVED: Final = 10_000

_STATES: Final = {
    RequestedState.ACTIVE: frozenset({VBucketState.ACTIVE}),
    RequestedState.REPLICA: frozenset({VBucketState.REPLICA}),
    RequestedState.PENDING: frozenset({VBucketState.PENDING}),
    RequestedState.DEAD: frozenset({VBucketState.DEAD}),
    RequestedState.ALIVE: frozenset(
        {VBucketState.ACTIVE, VBucketState.REPLICA, VBucketState.PENDING}
    ),
}

#: The only collection of clients that know of none.
_DEFAULT_COLLECTION: Final = 0

#: What is observed of a key.
_NOT_PERSISTED: Final = 0x00
_PERSISTED: Final = 0x01
_NOT_FOUND: Final = 0x80
_DELETED: Final = 0x81

_OBSERVED_KEY = struct.Struct(
    ">"
    "H"  # vbucket
    "H"  # key length
)
_OBSERVED_STATE = struct.Struct(
    ">"
    "B"  # state
    "Q"  # cas
)


# ---- states ------------------------------------------------------------------------------


def _set_vbucket(call: Call, request: kv.SetVBucket) -> Answer:
    """Changes a state. The topology that may come along matters only to synchronous writes."""
    call.bucket.state(request.vbucket)
    if request.value and request.state is not VBucketState.ACTIVE:
        raise StoreRefusal(Status.INVALID, "only an active vbucket has a topology")

    def change() -> Responses:
        call.bucket.set_state(request.vbucket, request.state)
        return (call.plain(),)

    return Blocking(change)


def _get_vbucket(call: Call, request: kv.GetVBucket) -> Answer:
    state = call.bucket.state(request.vbucket)
    return Now((kv.VBucketResponse(opaque=request.opaque, state=state),))


def _delete_vbucket(call: Call, request: kv.DeleteVBucket) -> Answer:
    """Empties a vbucket and leaves it dead; a bucket always has all its vbuckets."""
    call.bucket.state(request.vbucket)

    def delete() -> Responses:
        call.bucket.set_state(request.vbucket, VBucketState.DEAD)
        call.bucket.rollback(request.vbucket, 0)
        return (call.plain(),)

    return Blocking(delete)


# ---- seqnos and branches -----------------------------------------------------------------


def _get_all_seqnos(call: Call, request: kv.GetAllSeqnos) -> Answer:
    """High seqnos by vbucket, of everything or of one collection.

    Clients without collections know only the default one, and are told of that. A vbucket that
    has not heard of a collection yet, as a replica may not, is left out.
    """
    collection = request.collection
    if not call.has(Feature.COLLECTIONS):
        if collection is not None:
            raise StoreRefusal(Status.INVALID, "collections were not negotiated")
        collection = _DEFAULT_COLLECTION
    if collection is not None:
        call.bucket.manifest.collection(collection)
    wanted = _STATES[request.state or RequestedState.ALIVE]
    seqnos = []
    for vbucket in range(call.bucket.settings.vbuckets):
        stats = call.bucket.vbucket_stats(vbucket)
        high = stats.high_seqno if collection is None else _high_of(call, vbucket, collection)
        if stats.state in wanted and high is not None:
            seqnos.append((vbucket, high))
    return Now((kv.AllSeqnosResponse(opaque=request.opaque, seqnos=tuple(seqnos)),))


def _high_of(call: Call, vbucket: int, collection: int) -> int | None:
    """The high seqno of a collection; every vbucket begins with the default one, at 0."""
    nothing_yet = 0 if collection == _DEFAULT_COLLECTION else None
    return call.bucket.collection_seqnos(vbucket).get(collection, nothing_yet)


def _get_failover_log(call: Call, request: kv.GetFailoverLog) -> Answer:
    log = call.bucket.failover_log(request.vbucket)
    return Now((kv.GetFailoverLogResponse(opaque=request.opaque, failover_log=log.entries),))


def _observe_seqno(call: Call, request: kv.ObserveSeqno) -> Answer:
    vbucket = request.vbucket
    stats = call.bucket.vbucket_stats(vbucket)
    _check_alive(vbucket, stats.state)
    log = call.bucket.failover_log(vbucket)
    branch_end = log.branch_end(request.vbuuid, stats.high_seqno)
    if branch_end is None:
        raise StoreRefusal(Status.NOT_FOUND, f"vbucket {vbucket} has no branch {request.vbuuid:#x}")
    failed_over = request.vbuuid != log.newest.vbuuid
    response = kv.ObserveSeqnoResponse(
        opaque=request.opaque,
        vbucket=vbucket,
        vbuuid=log.newest.vbuuid,
        persisted_seqno=stats.persisted_seqno,
        current_seqno=stats.high_seqno,
        old_vbuuid=request.vbuuid if failed_over else None,
        old_seqno=branch_end if failed_over else None,
    )
    return Now((response,))


def _check_alive(vbucket: int, state: VBucketState) -> None:
    if state is VBucketState.DEAD:
        raise StoreRefusal(Status.NOT_MY_VBUCKET, f"vbucket {vbucket} is dead")


# ---- on disk -----------------------------------------------------------------------------


def _observe(call: Call, request: kv.Observe) -> Answer:
    if len(request.keys) > _MAX_OBSERVED:
        raise StoreRefusal(Status.INVALID, f"up to {_MAX_OBSERVED} keys can be observed at once")
    observed = b"".join(_observed(call, vbucket, key) for vbucket, key in request.keys)
    return Now((call.plain(observed),))


def _observed(call: Call, vbucket: int, key: bytes) -> bytes:
    stored_key = key if call.has(Feature.COLLECTIONS) else b"\0" + key
    persisted = call.bucket.vbucket_stats(vbucket).persisted_seqno
    state, cas = _NOT_FOUND, 0
    try:
        record = call.bucket.meta(vbucket, stored_key)
    except StoreRefusal as refusal:
        if refusal.status is not Status.NOT_FOUND:
            raise
    else:
        cas = record.cas
        if record.kind != Kind.MUTATION:
            state = _DELETED
        else:
            state = _PERSISTED if record.seqno <= persisted else _NOT_PERSISTED
    return _OBSERVED_KEY.pack(vbucket, len(key)) + key + _OBSERVED_STATE.pack(state, cas)


def _seqno_persistence(call: Call, request: kv.SeqnoPersistence) -> Answer:
    vbucket = request.vbucket
    _check_alive(vbucket, call.bucket.state(vbucket))
    deadline = call.node.now() + _PERSISTENCE_TIMEOUT

    def poll() -> Responses | None:
        if call.bucket.vbucket_stats(vbucket).persisted_seqno >= request.seqno:
            return (call.plain(),)
        if call.node.now() >= deadline:
            raise StoreRefusal(
                Status.TEMPORARY_FAILURE, f"seqno {request.seqno} is not on disk yet"
            )
        return None

    return Later(poll)


def _start_persistence(call: Call, request: kv.StartPersistence) -> Answer:
    return _switch_persistence(call, running=True)


def _stop_persistence(call: Call, request: kv.StopPersistence) -> Answer:
    return _switch_persistence(call, running=False)


def _switch_persistence(call: Call, *, running: bool) -> Answer:
    def switch() -> Responses:
        call.node.set_persistence(call.bucket, running=running)
        return (call.plain(),)

    return Blocking(switch)


def _compact(call: Call, request: kv.Compact) -> Answer:
    """Compacts the bucket, of which all vbuckets share the files."""
    call.bucket.state(request.vbucket)
    if request.purge_before_time or request.purge_before_seqno or request.drop_deletes:
        raise StoreRefusal(
            Status.NOT_SUPPORTED, "when tombstones are purged is a setting of the bucket"
        )

    def compact() -> Responses:
        call.bucket.compact()
        return (call.plain(),)

    return Blocking(compact)


HANDLERS: dict[type[Request], Callable[[Call, Any], Answer]] = {
    kv.SetVBucket: _set_vbucket,
    kv.GetVBucket: _get_vbucket,
    kv.DeleteVBucket: _delete_vbucket,
    kv.GetAllSeqnos: _get_all_seqnos,
    kv.GetFailoverLog: _get_failover_log,
    kv.ObserveSeqno: _observe_seqno,
    kv.Observe: _observe,
    kv.SeqnoPersistence: _seqno_persistence,
    kv.StartPersistence: _start_persistence,
    kv.StopPersistence: _stop_persistence,
    kv.Compact: _compact,
}
