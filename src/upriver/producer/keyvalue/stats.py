"""Groups of statistics as tools ask for them: names and texts, one response for each.

What the store knows is told here; groups that only the server knows are asked of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from ...errors import Status, StoreRefusal
from ...model import VBucketState
from ...wire import kv
from ...wire.messages import Request
from .answers import Answer, Now
from .call import Call

__all__ = ["HANDLERS"]

_Stats = Iterator[tuple[str, object]]


def _general(call: Call, argument: str) -> _Stats:
    stats = call.bucket.stats()
    states = [call.bucket.state(vbucket) for vbucket in range(call.bucket.settings.vbuckets)]
    yield "version", call.node.version
    yield "time", int(call.node.now())
    yield "curr_items", stats.items
    yield "curr_items_tot", stats.items
    yield "ep_tombstones", stats.tombstones
    yield "ep_history_bytes", stats.history_bytes
    yield "ep_db_file_size", stats.disk_bytes
    yield "ep_backfills_open", stats.readers
    yield "ep_item_num", stats.items
    for state in VBucketState:
        yield f"vb_{state.name.lower()}_num", states.count(state)
    yield from (call.node.statistics(call.client, "", argument) or {}).items()


def _states(call: Call, argument: str) -> _Stats:
    for vbucket in _chosen(call, argument):
        yield f"vb_{vbucket}", call.bucket.state(vbucket).name.lower()


def _details(call: Call, argument: str) -> _Stats:
    for vbucket in _chosen(call, argument):
        stats, name = call.bucket.vbucket_stats(vbucket), f"vb_{vbucket}"
        yield name, stats.state.name.lower()
        yield f"{name}:num_items", stats.items
        yield f"{name}:num_tombstones", stats.tombstones
        yield f"{name}:high_seqno", stats.high_seqno
        yield f"{name}:last_persisted_seqno", stats.persisted_seqno
        yield f"{name}:purge_seqno", stats.purge_seqno
        yield f"{name}:history_floor", stats.history_floor
        yield f"{name}:history_bytes", stats.history_bytes
        yield f"{name}:uuid", stats.vbuuid


def _seqnos(call: Call, argument: str) -> _Stats:
    for vbucket in _chosen(call, argument):
        stats, name = call.bucket.vbucket_stats(vbucket), f"vb_{vbucket}"
        snapshot = call.bucket.replica_snapshot(vbucket)
        persisted = stats.persisted_seqno
        yield f"{name}:high_seqno", stats.high_seqno
        yield f"{name}:abs_high_seqno", stats.high_seqno
        yield f"{name}:last_persisted_seqno", persisted
        yield f"{name}:uuid", stats.vbuuid
        yield f"{name}:purge_seqno", stats.purge_seqno
        # An active vbucket is consistent at every seqno, so there its snapshot is the last one.
        active = stats.state is VBucketState.ACTIVE
        yield f"{name}:last_persisted_snap_start", persisted if active else snapshot.start
        yield f"{name}:last_persisted_snap_end", persisted if active else snapshot.end
        yield f"{name}:high_prepared_seqno", 0
        yield f"{name}:high_completed_seqno", 0
        yield f"{name}:max_visible_seqno", stats.high_seqno


def _failovers(call: Call, argument: str) -> _Stats:
    for vbucket in _chosen(call, argument):
        log = call.bucket.failover_log(vbucket)
        yield f"vb_{vbucket}:num_entries", len(log)
        for position, entry in enumerate(log):
            yield f"vb_{vbucket}:{position}:id", entry.vbuuid
            yield f"vb_{vbucket}:{position}:seq", entry.seqno


def _takeover(call: Call, argument: str) -> _Stats:
    """How far the takeover of a vbucket is; the server knows, if a connection does one."""
    vbucket, _, connection = argument.partition(" ")
    stats = call.bucket.vbucket_stats(_number(vbucket))
    known = call.node.statistics(call.client, "dcp-vbtakeover", argument) if connection else None
    if known is not None:
        yield from known.items()
        return
    yield "name", connection
    yield "status", "does_not_exist"
    yield "estimate", stats.items + stats.tombstones
    yield "chk_items", 0
    yield "vb_items", stats.items
    yield "on_disk_deletes", stats.tombstones
    yield "backfillRemaining", stats.items + stats.tombstones


def _collections(call: Call, argument: str) -> _Stats:
    manifest = call.bucket.manifest
    scopes = {scope.id: scope.name for scope in manifest.scopes}
    yield "manifest_uid", f"{manifest.uid:x}"
    for collection in manifest.collections:
        name = f"{collection.scope:#x}:{collection.id:#x}"
        yield f"{name}:name", collection.name
        yield f"{name}:scope_name", scopes[collection.scope]
        if collection.max_ttl is not None:
            yield f"{name}:maxTTL", collection.max_ttl


def _reset(call: Call, argument: str) -> _Stats:
    call.node.reset_statistics(call.client)
    return iter(())


_GROUPS: Final[dict[str, Callable[[Call, str], _Stats]]] = {
    "": _general,
    "vbucket": _states,
    "vbucket-details": _details,
    "vbucket-seqno": _seqnos,
    "failovers": _failovers,
    "dcp-vbtakeover": _takeover,
    "collections": _collections,
    "reset": _reset,
}


def _chosen(call: Call, argument: str) -> Iterable[int]:
    """The vbucket that was named, or all of them."""
    if not argument:
        return range(call.bucket.settings.vbuckets)
    vbucket = _number(argument)
    call.bucket.state(vbucket)
    return (vbucket,)


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 5:
        raise StoreRefusal(Status.INVALID, f"{text!r} is no vbucket")
    return int(text)


def _stat(call: Call, request: kv.Stat) -> Answer:
    group, _, argument = request.group.partition(" ")
    tell = _GROUPS.get(group)
    stats: Iterable[tuple[str, object]]
    if tell is not None:
        stats = tell(call, argument)
    else:
        told = call.node.statistics(call.client, group, argument)
        if told is None:
            raise StoreRefusal(Status.NOT_FOUND, f"there are no statistics {group!r}")
        stats = told.items()
    opaque = request.opaque
    responses = [
        kv.StatResponse(opaque=opaque, key=name, value=str(value).encode()) for name, value in stats
    ]
    return Now((*responses, kv.StatResponse(opaque=opaque)))


HANDLERS: dict[type[Request], Callable[[Call, Any], Answer]] = {kv.Stat: _stat}
