"""Consistency check: verifies that the data and indexes of a bucket agree.

It is for disks that may be damaged, and for tests. It reads the whole bucket, one vbucket at a
time, and writers wait meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import StoreRefusal
from ..wire import canonical
from .bucket_core import BucketCore
from .rocksdb_layout import (
    NO_COLLECTION,
    Meta,
    RecordKind,
    StoredRecord,
    collection_of,
    due_key,
    vbucket_key,
    vbucket_range,
)
from .vbucket import Progress
from .writes import system_event_records
from .writes.write_group import WriteGroup


def problems(core: BucketCore) -> Iterator[str]:
    """Yields a description of each inconsistency; none if the bucket is consistent."""
    for vbucket in core.vbuckets:
        with core.change() as group:
            found = list(_vbucket_problems(group, vbucket.id))
        for problem in found:
            yield f"vbucket {vbucket.id}: {problem}"


def _vbucket_problems(group: WriteGroup, vbucket: int) -> Iterator[str]:
    engine = group.engine
    progress = group.open(vbucket)
    counted = Progress()
    by_seqno: dict[bytes, int] = {}
    highs: dict[int, int] = {}
    for at, frame in engine.seqnos.scan(vbucket_range(vbucket)):
        seqno = counted.high = int.from_bytes(at[2:])
        try:
            path, record = (
                system_event_records.path_of(vbucket, frame),
                system_event_records.record_for(frame),
            )
        except (ValueError, StoreRefusal) as problem:
            yield f"the frame at seqno {seqno} cannot be read: {problem}"
            continue
        if record.seqno != seqno:
            yield f"the frame at seqno {seqno} says {record.seqno}"
        if path in by_seqno:
            yield f"{path!r} is at seqno {by_seqno[path]} and at {seqno}"
        by_seqno[path] = seqno
        highs[collection_of(path)] = seqno
        counted.items += record.kind == RecordKind.MUTATION
        counted.tombstones += record.is_tombstone
        yield from _version_problems(group, vbucket, path, record)
    keys = vbucket_key(vbucket), vbucket_key(vbucket) + b"\xff" * 256
    for path, raw in engine.keys.scan(keys):
        if path not in by_seqno:
            seqno = StoredRecord.load(raw).seqno
            yield f"{path!r} is known by key at seqno {seqno}, which is not there"
    for at, entry in engine.history.scan(vbucket_range(vbucket)):
        counted.history_bytes += len(entry)
        if canonical.seqno_of(entry[4:]) >= int.from_bytes(at[2:]):
            yield f"the change at seqno {int.from_bytes(at[2:])} replaced a later one"
    yield from _high_problems(group, vbucket, highs)
    for name in ("items", "tombstones", "history_bytes"):
        if getattr(counted, name) != getattr(progress, name):
            yield f"{getattr(counted, name)} {name} are there, {getattr(progress, name)} counted"
    if counted.high > progress.high:
        yield f"there is seqno {counted.high}, above the high seqno {progress.high}"


def _high_problems(group: WriteGroup, vbucket: int, there: dict[int, int]) -> Iterator[str]:
    """Checks the high seqnos of collections. ``there`` are the ones found in their changes."""
    there.pop(NO_COLLECTION, None)
    for name, _ in group.engine.meta.scan(Meta.all_purged(vbucket)):
        collection = Meta.parse(name)[1]
        purged = group.purged_until(vbucket, collection)
        there[collection] = max(there.get(collection, 0), purged)
    known = group.open(vbucket).collection_highs()
    for collection in sorted(there.keys() | known.keys()):
        is_at, said = there.get(collection, 0), known.get(collection, 0)
        if is_at != said:
            yield f"collection {collection:#x} ends at seqno {is_at}, but {said} is known"


def _version_problems(
    group: WriteGroup, vbucket: int, path: bytes, record: StoredRecord
) -> Iterator[str]:
    raw = group.engine.keys.get(path)
    if raw is None:
        yield f"{path!r} at seqno {record.seqno} is not known by key"
    elif StoredRecord.load(raw)[:7] != record[:7]:
        yield f"{path!r} is {StoredRecord.load(raw)} by key and {record} by seqno"
    due = due_key(vbucket, record)
    if due is not None and group.engine.due.get(due) != path:
        yield f"{path!r} at seqno {record.seqno} is missing among what is due"
