"""Going back: a vbucket as it was at an earlier seqno.

A change that replaced a version left it in history under its own seqno, so the versions of a key
form a chain from the newest one back. Rolling back walks the changes above the target, follows
each key's chain to the version at the target, and puts that in place. Below the vbucket's
history floor a link may be missing; there the only exact answer is 0, an empty vbucket.
"""

from __future__ import annotations

from ..model import FailoverLog, Snapshot, VBucketState
from . import events
from .group import Group
from .layout import collection_of, frame_seqno, seqno_key, vbucket_range
from .manifest import Manifest, events_between
from .vbucket import Standing, new_vbuuid

__all__ = ["align", "begin_again", "roll_back", "trim"]

#: History entries begin with the time of the change.
_TIME_SIZE = 4


def roll_back(group: Group, vbucket: int, seqno: int) -> int:
    """Takes a vbucket back to ``seqno``, or to 0 if that is out of reach; returns which."""
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
        # Its next change takes a seqno that was used before: only a new branch makes them two.
        branch = group.standing(vbucket).failover.branch(new_vbuuid(), seqno)
        group.change_standing(vbucket, failover=branch)
        align(group, vbucket, empty=seqno == 0)
    return seqno


def _fork(log: FailoverLog, seqno: int) -> FailoverLog:
    """A log that is never empty: its oldest entries may have been dropped for its size."""
    return log if len(log) else FailoverLog.of((new_vbuuid(), seqno))


def _undo(group: Group, vbucket: int, seqno: int) -> None:
    progress = group.open(vbucket)
    above = vbucket_range(vbucket, seqno)
    restored: list[tuple[bytes, bytes]] = []
    for _, frame in group.engine.seqnos.scan(above):
        path = events.path_of(vbucket, frame)
        group.remove(vbucket, progress, path, events.record_for(frame))
        version: bytes | None = frame
        while version is not None and frame_seqno(version) > seqno:
            entry = group.engine.history.get(seqno_key(vbucket, frame_seqno(version)))
            progress.history_bytes -= len(entry or b"")
            version = None if entry is None else entry[_TIME_SIZE:]
        if version is not None:
            restored.append((path, version))
    group.set_highs(vbucket, progress, _highs_at(group, vbucket, seqno, restored))
    for path, version in restored:
        group.restore(vbucket, progress, path, version)
    group.batch.delete_range(group.engine.history, above)
    group.forget_erasures(vbucket, seqno)
    progress.high = seqno


def _highs_at(
    group: Group, vbucket: int, seqno: int, restored: list[tuple[bytes, bytes]]
) -> dict[int, int]:
    """The high seqnos that collections had at ``seqno``; ``restored`` is what comes back there.

    Of those that had a change since, the last one before is either there, or comes back, or was
    purged. The walk down to it is short for all but those that had none for long.
    """
    highs = group.open(vbucket).collection_highs()
    sought = {collection for collection, high in highs.items() if high > seqno}
    highs |= {collection: group.purged_until(vbucket, collection) for collection in sought}
    for path, version in restored:
        collection = collection_of(path)
        if collection in sought:
            highs[collection] = max(highs[collection], frame_seqno(version))
    below = seqno_key(vbucket, 0), seqno_key(vbucket, seqno + 1)
    for key, frame in group.engine.seqnos.scan_back(below):
        at = int.from_bytes(key[2:])
        sought = {collection for collection in sought if highs[collection] < at}
        if not sought:
            break
        collection = collection_of(events.path_of(vbucket, frame))
        if collection in sought:
            highs[collection] = at
    return {collection: high for collection, high in highs.items() if high}


def begin_again(group: Group, vbucket: int) -> None:
    """Makes a vbucket that was cleared one that never had a change, under a name of its own."""
    state = group.standing(vbucket).state
    group.standings[vbucket] = Standing.fresh(state)
    if state is VBucketState.ACTIVE:
        align(group, vbucket, empty=True)


def align(group: Group, vbucket: int, *, empty: bool = False) -> None:
    """Gives a vbucket the events that lead from the collections it knows to the bucket's.

    It may lack some: it was a replica until now, or was rolled back behind them.
    """
    known = Manifest() if empty else group.known_manifest(vbucket)
    for event in events_between(known, group.manifest):
        group.event(vbucket, event)


def trim(group: Group, vbucket: int, *, before: int, spare: int, limit: int) -> int:
    """Drops up to ``limit`` of a vbucket's oldest history entries; returns how many.

    Those go that are older than the time ``before``, that lie below the floor already, or that
    make up more than ``spare`` bytes.
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
