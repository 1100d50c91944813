"""Rollback: restores a vbucket to its state at an earlier seqno.

A change that replaces a version stores it in history under the seqno of the change. So the
versions of a key form a chain from the newest one backwards. A commit also stores the prepare that
it completed. A rollback scans the changes above the target, follows the chain of each key to the
version at the target, and restores that. Below the vbucket's history floor a link may be missing;
there the only exact result is seqno 0, an empty vbucket.
"""

from __future__ import annotations

from ..model import FailoverLog, Snapshot, VBucketState
from ..wire import canonical, stored_prepares
from .manifest import Manifest, events_between
from .rocksdb_layout import collection_of, seqno_key, vbucket_range
from .vbucket import Standing, new_vbuuid
from .writes import system_event_records
from .writes.write_group import WriteGroup

#: Bytes of the time of the change, with which a history entry begins.
_TIME_SIZE = 4


def roll_back(group: WriteGroup, vbucket: int, seqno: int) -> int:
    """Rolls a vbucket back to ``seqno``, or to 0 if history is missing. Returns the seqno."""
    standing = group.standing(vbucket)
    if seqno >= group.open(vbucket).high:
        return group.open(vbucket).high
    if seqno < max(standing.history_floor, standing.purge_seqno):
        seqno = 0
    if seqno:
        _undo(group, vbucket, seqno)
        group.change_standing(vbucket, failover=_fork(standing.failover.truncated(seqno), seqno))
    else:
        group.clear(vbucket)
        group.change_standing(
            vbucket,
            failover=_fork(standing.failover.truncated(0), 0),
            purge_seqno=0,
            history_floor=0,
        )
    group.change_standing(
        vbucket,
        snapshot=Snapshot(seqno, seqno),
        whole_before=seqno,
        active_from=min(standing.active_from, seqno),
        consistent=standing.forgetting(seqno),
    )
    if standing.state is VBucketState.ACTIVE:
        # Its next change reuses a seqno. Only a new branch distinguishes the two changes.
        branch = group.standing(vbucket).failover.branch(new_vbuuid(), seqno)
        group.change_standing(vbucket, failover=branch)
        align(group, vbucket, empty=seqno == 0)
    return seqno


def _fork(log: FailoverLog, seqno: int) -> FailoverLog:
    """Returns the log, or one with a new branch if it is empty: old entries may be truncated."""
    return log if len(log) else FailoverLog.of((new_vbuuid(), seqno))


def _undo(group: WriteGroup, vbucket: int, seqno: int) -> None:
    progress = group.open(vbucket)
    above = vbucket_range(vbucket, seqno)
    restored: list[tuple[bytes, bytes]] = []
    for _, frame in group.engine.seqnos.scan(above):
        path = system_event_records.path_of(vbucket, frame)
        group.remove(vbucket, progress, path, system_event_records.record_for(frame))
        newer = [frame]
        while newer:
            entry = group.engine.history.get(seqno_key(vbucket, canonical.seqno_of(newer.pop())))
            progress.history_bytes -= len(entry or b"")
            for version in versions_in(entry or b""):
                if canonical.seqno_of(version) > seqno:
                    newer.append(version)
                else:
                    restored.append((system_event_records.path_of(vbucket, version), version))
    group.set_highs(vbucket, progress, _highs_at(group, vbucket, seqno, restored))
    for path, version in restored:
        group.restore(vbucket, progress, path, version)
    group.batch.delete_range(group.engine.history, above)
    group.forget_erasures(vbucket, seqno)
    progress.high = seqno
    progress.hidden = _hidden_at(group, vbucket, seqno, restored)


def versions_in(entry: bytes) -> list[bytes]:
    """Returns what a change replaced: a version of its document, a prepare, or both."""
    return list(canonical.frames_in(entry[_TIME_SIZE:]))


def committed_seqno(entry: bytes) -> int | None:
    """Returns the seqno of the prepare in a history entry; None if its change was no commit."""
    last = versions_in(entry)[-1:]
    return next((canonical.seqno_of(one) for one in last if stored_prepares.is_prepare(one)), None)


def _hidden_at(
    group: WriteGroup, vbucket: int, seqno: int, restored: list[tuple[bytes, bytes]]
) -> tuple[int, int]:
    """Returns `Progress.hidden` at ``seqno``; (0, 0) if the vbucket never had durable writes."""
    if not group.open(vbucket).sync_seqno:
        return 0, 0
    visible = hidden = 0
    for _, version in restored:
        if stored_prepares.is_hidden(version):
            hidden = max(hidden, canonical.seqno_of(version))
        else:
            visible = max(visible, canonical.seqno_of(version))
    below = seqno_key(vbucket, 0), seqno_key(vbucket, seqno + 1)
    for key, frame in group.engine.seqnos.scan_back(below):
        at = int.from_bytes(key[2:])
        if not stored_prepares.is_hidden(frame):
            visible = max(visible, at)
            break
        hidden = max(hidden, at)
    return (visible, seqno) if hidden == seqno else (0, 0)


def _highs_at(
    group: WriteGroup, vbucket: int, seqno: int, restored: list[tuple[bytes, bytes]]
) -> dict[int, int]:
    """Returns the high seqnos of collections at ``seqno``. ``restored`` are the restored versions.

    If a collection has changed since, its last change up to ``seqno`` is either stored, or among
    the restored versions, or was purged. The reverse scan to it is short, except for collections
    that had no change for long.
    """
    highs = group.open(vbucket).collection_highs()
    sought = {collection for collection, high in highs.items() if high > seqno}
    highs |= {collection: group.purged_until(vbucket, collection) for collection in sought}
    for path, version in restored:
        collection = collection_of(path)
        if collection in sought:
            highs[collection] = max(highs[collection], canonical.seqno_of(version))
    below = seqno_key(vbucket, 0), seqno_key(vbucket, seqno + 1)
    for key, frame in group.engine.seqnos.scan_back(below):
        at = int.from_bytes(key[2:])
        sought = {collection for collection in sought if highs[collection] < at}
        if not sought:
            break
        collection = collection_of(system_event_records.path_of(vbucket, frame))
        if collection in sought:
            highs[collection] = at
    return {collection: high for collection, high in highs.items() if high}


def begin_again(group: WriteGroup, vbucket: int) -> None:
    """Resets a cleared vbucket to one that never had a change, with a new vbuuid."""
    state = group.standing(vbucket).state
    group.standings[vbucket] = Standing.fresh(state)
    if state is VBucketState.ACTIVE:
        align(group, vbucket, empty=True)


def align(group: WriteGroup, vbucket: int, *, empty: bool = False) -> None:
    """Stores the system events that lead from the vbucket's collections to the bucket's manifest.

    Some may be missing because the vbucket was a replica until now, or was rolled back past them.
    """
    known = Manifest() if empty else group.known_manifest(vbucket)
    for event in events_between(known, group.manifest):
        group.event(vbucket, event)


def trim(group: WriteGroup, vbucket: int, *, before: int, spare: int, limit: int) -> int:
    """Drops up to ``limit`` of a vbucket's oldest history entries. Returns how many.

    It drops entries that are older than the time ``before``, that lie below the history floor, or
    that exceed ``spare`` bytes in total.
    """
    progress, standing = group.open(vbucket), group.standing(vbucket)
    floor = max(standing.history_floor, standing.purge_seqno)
    dropped = last = 0
    size = progress.history_bytes
    for key, entry in group.engine.history.scan(vbucket_range(vbucket)):
        seqno = int.from_bytes(key[2:])
        written = int.from_bytes(entry[:_TIME_SIZE])
        if dropped == limit or (seqno > floor and written >= before and size <= spare):
            break
        last = seqno
        size -= len(entry)
        dropped += 1
    if dropped:
        bounds = seqno_key(vbucket, 0), seqno_key(vbucket, last + 1)
        group.batch.delete_range(group.engine.history, bounds)
        progress.history_bytes = size
        group.change_standing(vbucket, history_floor=max(floor, last))
    return dropped
