"""Commands on vbuckets: states, seqnos, failover logs and persistence."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, Final

from ...errors import Status, StoreRefusal
from ...model import VBucketState
from ...store import RecordKind
from ...wire import kv_messages as kv
from ...wire.messages import Request
from ...wire.protocol_enums import Feature, RequestedState
from .durability_requirements import parse_topology
from .handler_results import Answer, BackgroundWork, Blocking, Later, Now, Responses, Several
from .request_context import Call

#: Seconds that a client may wait for a seqno to be on disk, as on Couchbase Server.
_PERSISTENCE_TIMEOUT: Final = 30

#: Keys in one OBSERVE request: its response is held in memory until the last key is looked up.
_MAX_OBSERVED: Final = 10_000
#: Keys that one step looks up: a few hundred microseconds.
_OBSERVED_AT_ONCE: Final = 64

_STATES: Final = {
    RequestedState.ACTIVE: frozenset({VBucketState.ACTIVE}),
    RequestedState.REPLICA: frozenset({VBucketState.REPLICA}),
    RequestedState.PENDING: frozenset({VBucketState.PENDING}),
    RequestedState.DEAD: frozenset({VBucketState.DEAD}),
    RequestedState.ALIVE: frozenset(
        {VBucketState.ACTIVE, VBucketState.REPLICA, VBucketState.PENDING}
    ),
}

#: The only collection that clients without collections see.
_DEFAULT_COLLECTION: Final = 0

#: States of a key in an OBSERVE response.
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
    """Sets a vbucket's state. An optional topology names the copies that durable writes need."""
    call.bucket.state(request.vbucket)
    if request.value and request.state is not VBucketState.ACTIVE:
        raise StoreRefusal(Status.INVALID, "only an active vbucket has a topology")
    topology = parse_topology(request.value) if request.value else None

    def change() -> Responses:
        call.bucket.set_state(request.vbucket, request.state)
        call.node.set_topology(call.bucket, request.vbucket, topology)
        return (call.plain(),)

    return Blocking(BackgroundWork.ADMINISTERING, change)


def _get_vbucket(call: Call, request: kv.GetVBucket) -> Answer:
    state = call.bucket.state(request.vbucket)
    return Now((kv.VBucketResponse(opaque=request.opaque, state=state),))


def _delete_vbucket(call: Call, request: kv.DeleteVBucket) -> Answer:
    """Empties a vbucket and sets it dead. It remains: a bucket always has all its vbuckets."""
    call.bucket.state(request.vbucket)

    def delete() -> Responses:
        call.bucket.set_state(request.vbucket, VBucketState.DEAD)
        call.bucket.rollback(request.vbucket, 0)
        return (call.plain(),)

    return Blocking(BackgroundWork.ADMINISTERING, delete)


# ---- seqnos and failover logs ------------------------------------------------------------


def _get_all_seqnos(call: Call, request: kv.GetAllSeqnos) -> Answer:
    """Returns the high seqno of each vbucket, for all changes or for one collection.

    Clients without collections get the seqnos of the default collection, the only one they see. A
    vbucket that does not know the collection yet, such as a replica, is left out.
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
    for vbucket, high in call.bucket.high_seqnos(wanted, collection):
        if high is not None:
            seqnos.append((vbucket, high))
        elif collection == _DEFAULT_COLLECTION:  # every vbucket has it from the start, at 0
            seqnos.append((vbucket, 0))
    return Now((kv.AllSeqnosResponse(opaque=request.opaque, seqnos=tuple(seqnos)),))


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


# ---- persistence -------------------------------------------------------------------------


def _observe(call: Call, request: kv.Observe) -> Answer:
    if len(request.keys) > _MAX_OBSERVED:
        raise StoreRefusal(Status.INVALID, f"up to {_MAX_OBSERVED} keys can be observed at once")
    return Several(_observations(call, request.keys))


def _observations(call: Call, keys: tuple[tuple[int, bytes], ...]) -> Iterator[Responses]:
    """Looks up keys, some per step, and responds with all of them at the end."""
    observed = bytearray()
    for number, (vbucket, key) in enumerate(keys, 1):
        observed += _observed(call, vbucket, key)
        if not number % _OBSERVED_AT_ONCE:
            yield ()
    yield (call.plain(bytes(observed)),)


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
        if record.kind != RecordKind.MUTATION:
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

    return Blocking(BackgroundWork.ADMINISTERING, switch)


def _compact(call: Call, request: kv.Compact) -> Answer:
    """Compacts the bucket; all vbuckets share its files.

    Tombstones of the vbucket are purged regardless of their age: all of them, or those before a
    time and, if one is given, up to a seqno.
    """
    vbucket = request.vbucket
    call.bucket.state(vbucket)

    def compact() -> Responses:
        if request.drop_deletes:
            call.bucket.purge_tombstones(vbucket)
        elif request.purge_before_time:
            last = request.purge_before_seqno or None
            before = request.purge_before_time - 1
            call.bucket.purge_tombstones(vbucket, until=before, last_seqno=last)
        call.bucket.compact()
        return (call.plain(),)

    return Blocking(BackgroundWork.COMPACTING, compact)


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
