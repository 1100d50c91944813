"""Groups of the STAT command: names and values, one response for each.

Statistics of the store are produced here. Groups that only the server knows are requested from it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final

from ...errors import Status, StoreRefusal
from ...model import Datatype, VBucketState
from ...wire import kv_messages as kv
from ...wire.enum_codes import STATUSES
from ...wire.json_check import is_json
from ...wire.messages import Request
from .command_counts import counts_of
from .handler_results import Answer, Responses, Several
from .request_context import Call

_Stats = Iterator[tuple[str, object]]

#: Statistics that one step produces and sends: a few hundred microseconds.
_STEP: Final = 64
#: Digits of an argument that may be a vbucket id. The bucket refuses ids that are too large.
_MAX_DIGITS: Final = 10


def _general(call: Call, argument: str) -> _Stats:
    stats = call.bucket.stats()
    yield "version", call.node.version
    yield "time", int(call.node.now())
    yield "pid", os.getpid()
    yield "ep_dbname", call.bucket.name
    yield "ep_flusher_state", "paused" if call.bucket.persistence_held else "running"
    yield from counts_of(call.bucket)
    yield "curr_items", stats.items
    yield "curr_items_tot", stats.items
    yield "ep_tombstones", stats.tombstones
    yield "ep_history_bytes", stats.history_bytes
    yield "ep_db_file_size", stats.disk_bytes
    yield "ep_backfills_open", stats.readers
    yield "ep_item_num", stats.items
    yield "ep_commit_num", stats.commits
    yield "ep_queue_size", sum(_unpersisted(call))
    for state in VBucketState:
        yield f"vb_{state.name.lower()}_num", stats.states.get(state, 0)
    yield from call.node.statistics(call.client, "", argument) or ()


def _unpersisted(call: Call) -> Iterator[int]:
    """Yields how many seqnos of each vbucket are not on disk yet."""
    for vbucket in range(call.bucket.settings.vbuckets):
        stats = call.bucket.vbucket_stats(vbucket)
        yield stats.high_seqno - stats.persisted_seqno


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
        # An active vbucket is consistent at every seqno, so its snapshot is its last seqno.
        active = stats.state is VBucketState.ACTIVE
        yield f"{name}:last_persisted_snap_start", persisted if active else snapshot.start
        yield f"{name}:last_persisted_snap_end", persisted if active else snapshot.end
        yield f"{name}:high_prepared_seqno", stats.high_prepared_seqno
        yield f"{name}:high_completed_seqno", stats.high_completed_seqno
        yield f"{name}:max_visible_seqno", stats.visible_seqno


def _failovers(call: Call, argument: str) -> _Stats:
    for vbucket in _chosen(call, argument):
        log = call.bucket.failover_log(vbucket)
        for name in (f"vb_{vbucket}", f"failovers:vb_{vbucket}"):  # releases up to 3 use the latter
            yield f"{name}:num_entries", len(log)
            for position, entry in enumerate(log):
                yield f"{name}:{position}:id", entry.vbuuid
                yield f"{name}:{position}:seq", entry.seqno


def _takeover(call: Call, argument: str) -> _Stats:
    """Reports the progress of a vbucket's takeover, which the server knows if a stream does one."""
    vbucket, _, connection = argument.partition(" ")
    stats = call.bucket.vbucket_stats(_number(vbucket))
    known = call.node.statistics(call.client, "dcp-vbtakeover", argument) if connection else None
    if known is not None:
        yield from known
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


def _scopes(call: Call, argument: str) -> _Stats:
    manifest = call.bucket.manifest
    yield "manifest_uid", f"{manifest.uid:x}"
    for scope in manifest.scopes:
        inside = [one for one in manifest.collections if one.scope == scope.id]
        yield f"{scope.id:#x}:name", scope.name
        yield f"{scope.id:#x}:collections", len(inside)


def _responses(call: Call, argument: str) -> _Stats:
    """Counts responses of documents by status, as one JSON object of hexadecimal statuses."""
    counted = counts_of(call.bucket).statuses()
    numbers = {
        f"{number:x}": counted[status] for number, status in STATUSES.items() if status in counted
    }
    yield "responses", json.dumps(numbers)


def _detail(call: Call, argument: str) -> _Stats:
    """Counts by key prefix are not supported: switching them on or off has no effect."""
    if argument not in ("on", "off", "dump"):
        raise StoreRefusal(Status.INVALID, "detail is followed by on, off or dump")
    return iter(())


def _settings(call: Call, argument: str) -> _Stats:
    yield "item_size_max", call.bucket.settings.max_value
    yield "cas_enabled", "yes"
    yield "flush_enabled", "yes" if call.node.may_flush(call.bucket) else "no"
    yield "domain_socket", "NULL"
    yield "evictions", "off"  # a document stays until it is deleted or expires
    yield from call.node.statistics(call.client, "settings", argument) or ()


def _reset(call: Call, argument: str) -> _Stats:
    if argument not in ("", "timings"):
        raise StoreRefusal(Status.INVALID, f"{argument!r} cannot be reset")
    counts_of(call.bucket).reset()
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
    "scopes": _scopes,
    "responses": _responses,
    "detail": _detail,
    "settings": _settings,
    "reset": _reset,
}


def _chosen(call: Call, argument: str) -> Iterable[int]:
    """Returns the vbucket that the argument names, or all of them."""
    if not argument:
        return range(call.bucket.settings.vbuckets)
    vbucket = _number(argument)
    call.bucket.state(vbucket)
    return (vbucket,)


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > _MAX_DIGITS:
        raise StoreRefusal(Status.INVALID, f"{text!r} is no vbucket")
    return int(text)


def _stat(call: Call, request: kv.Stat) -> Answer:
    if request.value and not (request.datatype & Datatype.JSON and is_json(request.value)):
        raise StoreRefusal(Status.INVALID, "the value of a question for statistics is JSON")
    group, _, argument = request.group.partition(" ")
    produce = _GROUPS.get(group)
    stats: Iterable[tuple[str, object]]
    if produce is not None:
        stats = produce(call, argument)
    else:
        known = call.node.statistics(call.client, group, argument)
        if known is None:
            raise StoreRefusal(Status.NOT_FOUND, f"there are no statistics {group!r}")
        stats = known
    return Several(_steps(iter(stats), request.opaque))


def _steps(stats: _Stats, opaque: int) -> Iterator[Responses]:
    """Yields one response for each statistic, and an empty one at the end."""
    while taken := tuple(islice(stats, _STEP)):
        yield tuple(
            kv.StatResponse(opaque=opaque, key=name, value=str(value).encode())
            for name, value in taken
        )
    yield (kv.StatResponse(opaque=opaque),)


HANDLERS: dict[type[Request], Callable[[Call, Any], Answer]] = {kv.Stat: _stat}
