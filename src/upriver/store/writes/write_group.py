"""Write group: collects changes in one write batch, with the resulting state of the vbuckets.

Everything that changes a bucket goes through a group: client operations, replication, state
changes, rollbacks and purges. A group reads its own changes; readers do not see them before the
batch is written. It updates the vbuckets' own `Progress`, so the caller that drops a group must
reload the progress of the vbuckets in ``progress``.

Only this module maintains the invariants of the layout: the newest version of a key is in seqnos
and keys, the versions it replaced are in history, versions with a due time are in due, and the
counts match.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...errors import Status, StoreDamaged, StoreRefusal
from ...model import VBucketState
from ...wire.stored_prepares import parse_prepare
from ..manifest import Manifest, ManifestEvent
from ..rocksdb import Batch, Database
from ..rocksdb_layout import (
    NO_COLLECTION,
    SYSTEM_COLLECTION,
    Meta,
    RecordKind,
    StoredRecord,
    collection_of,
    collection_range,
    document_path,
    due_key,
    pack_record,
    seqno_key,
    vbucket_key,
    vbucket_range,
)
from ..vbucket import PendingPrepare, Progress, Standing, VBucket, dump
from . import system_event_records
from .cas_clock import HybridClock

#: Marks a key that the group has not changed. None marks a key that it deletes.
UNCHANGED = b""

_MUTATION, _EVENT = RecordKind.MUTATION, RecordKind.EVENT
_PREPARE, _ABORT = RecordKind.PREPARE, RecordKind.ABORT
_TOMBSTONES = frozenset({RecordKind.DELETION, RecordKind.EXPIRATION})


class _ActiveVBuckets(dict[int, Progress]):
    """The progress of active vbuckets, opened on first access. Other vbuckets are refused."""

    __slots__ = ("_group",)

    def __init__(self, group: WriteGroup) -> None:
        super().__init__()
        self._group = group

    def __missing__(self, vbucket: int) -> Progress:
        group = self._group
        if vbucket in group.standings or not 0 <= vbucket < len(group.vbuckets):
            group.require(vbucket, VBucketState.ACTIVE)
        known = group.vbuckets[vbucket]
        if known.standing.state is not VBucketState.ACTIVE and vbucket not in group.standings:
            group.require(vbucket, VBucketState.ACTIVE)  # raises the refusal
        if known.held:
            raise StoreRefusal(Status.TEMPORARY_FAILURE, f"vbucket {vbucket} is moving")
        progress = self[vbucket] = group.progress.setdefault(vbucket, known.progress)
        return progress


class WriteGroup:
    """Changes that are committed together. Created and filled under the bucket's write lock."""

    def __init__(
        self,
        engine: Database,
        vbuckets: Sequence[VBucket],
        clock: HybridClock,
        manifest: Manifest,
        collections: Mapping[int, int | None],
        max_value: int,
    ) -> None:
        self.engine = engine
        self.clock = clock
        self.now = clock.seconds()
        self.batch = Batch()
        self.manifest = self._manifest_before = manifest
        #: The existing collections with the longest expiry of their documents.
        self.collections = collections
        self.max_value = max_value
        #: The durability level of the current write. If it is not 0, the write becomes a prepare.
        self.level = 0
        #: The state that this group may have changed, by vbucket.
        self.progress: dict[int, Progress] = {}
        self.standings: dict[int, Standing] = {}
        self.vbuckets = vbuckets
        #: The progress of active vbuckets. Access to any other vbucket raises a refusal.
        self.active = _ActiveVBuckets(self)
        self._cleared: set[int] = set()
        #: The vbuckets whose `Progress.highs` this group has already copied.
        self._own_highs: set[int] = set()
        self._time = self.now.to_bytes(4)
        #: Reads keys from disk, without the changes of this group.
        self.look_up = engine.keys.get
        self.look_up_many = engine.keys.get_many
        self._seqnos = self.batch.seqnos
        self._keys = self.batch.keys

    # ---- vbuckets ------------------------------------------------------------------------

    def standing(self, vbucket: int) -> Standing:
        """Returns the standing of a vbucket, including the changes of this group."""
        return self.standings.get(vbucket) or self.vbuckets[vbucket].standing

    def change_standing(self, vbucket: int, **fields: Any) -> None:
        self.standings[vbucket] = replace(self.standing(vbucket), **fields)

    def open(self, vbucket: int) -> Progress:
        """Returns the progress of a vbucket, for changes by this group."""
        progress = self.progress.get(vbucket)
        if progress is None:
            progress = self.progress[vbucket] = self.vbuckets[vbucket].progress
        return progress

    def require(self, vbucket: int, *states: VBucketState) -> None:
        """Refuses a vbucket that is in none of these states."""
        if not 0 <= vbucket < len(self.vbuckets):
            raise StoreRefusal(Status.NOT_MY_VBUCKET, f"there is no vbucket {vbucket}")
        state = self.standing(vbucket).state
        if state not in states:
            wanted = " or ".join(other.name.lower() for other in states)
            raise StoreRefusal(
                Status.NOT_MY_VBUCKET, f"vbucket {vbucket} is {state.name.lower()}, not {wanted}"
            )

    # ---- versions ------------------------------------------------------------------------

    def record(self, path: bytes) -> StoredRecord | None:
        """Returns the newest version at ``path``, including the changes of this group."""
        raw = self._keys.get(path, UNCHANGED)
        if raw is UNCHANGED:
            raw = self.look_up(path)
        return None if raw is None else StoredRecord.load(raw)

    def frame(self, vbucket: int, record: StoredRecord) -> bytes:
        """Returns the stored frame of an existing version."""
        at = seqno_key(vbucket, record.seqno)
        frame = self._seqnos.get(at) or self.engine.seqnos.get(at)
        if frame is None:
            raise StoreDamaged(
                path=str(self.engine.path),
                problem=f"seqno {record.seqno} of vbucket {vbucket} is known by key but not there",
            )
        return bytes(frame)

    def install(
        self,
        vbucket: int,
        progress: Progress,
        path: bytes,
        old: StoredRecord | None,
        frame: bytes,
        version: tuple[int, int, int, int, int, RecordKind, int],
        committed: bytes = b"",
    ) -> None:
        """Makes ``frame`` the newest version at ``path``, and moves ``old`` to history.

        ``version`` has the fields of the `StoredRecord` without the counts. ``committed`` is the
        prepare that this version completes, which is kept in history for rollbacks.
        """
        seqno, rev, cas, flags, time, kind, datatype = version
        at = seqno_key(vbucket, seqno)
        if old is not None or committed:
            replaced = b"" if old is None else self.frame(vbucket, old)
            archived = self._time + replaced + committed
            self.batch.history[at] = archived
            progress.history_bytes += len(archived)
            if old is not None:
                self._retire(vbucket, progress, old)
        if kind is _MUTATION:
            progress.items += 1
        elif kind in _TOMBSTONES:
            progress.tombstones += 1
        elif kind is _PREPARE or kind is _ABORT:
            progress.hide(seqno)
        record = pack_record(
            seqno,
            rev,
            cas,
            flags,
            time,
            kind,
            datatype,
            progress.items,
            progress.tombstones,
            progress.history_bytes,
        )
        self._seqnos[at] = frame
        self._keys[path] = record
        if time or kind is not _MUTATION:
            self._schedule(vbucket, path, StoredRecord.load(record))
        collection = collection_of(path) if path[2] else 0  # most are in the default collection
        if collection != progress.last_collection:
            self.turn_to(vbucket, progress, collection)
        progress.high = seqno

    def remove(self, vbucket: int, progress: Progress, path: bytes, record: StoredRecord) -> None:
        """Removes a version without a tombstone or a history entry."""
        self._retire(vbucket, progress, record)
        self._keys[path] = None
        if record.kind == _PREPARE:
            progress.drop_prepare(document_path(path))

    def restore(self, vbucket: int, progress: Progress, path: bytes, frame: bytes) -> None:
        """Restores an older version at its seqno. The version after it was removed before."""
        record = system_event_records.record_for(frame)
        self._seqnos[seqno_key(vbucket, record.seqno)] = frame
        self._keys[path] = record.dump()
        self._schedule(vbucket, path, record)
        if record.kind == RecordKind.MUTATION:
            progress.items += 1
        elif record.is_tombstone:
            progress.tombstones += 1
        elif record.kind == _PREPARE:
            pending = PendingPrepare(record.seqno, parse_prepare(frame).level, maybe_committed=True)
            progress.add_prepare(document_path(path), pending)

    def _retire(self, vbucket: int, progress: Progress, record: StoredRecord) -> None:
        self._seqnos[seqno_key(vbucket, record.seqno)] = None
        due = due_key(vbucket, record)
        if due is not None:
            self.batch.due[due] = None
        if record.kind == RecordKind.MUTATION:
            progress.items -= 1
        elif record.is_tombstone:
            progress.tombstones -= 1

    def _schedule(self, vbucket: int, path: bytes, record: StoredRecord) -> None:
        due = due_key(vbucket, record)
        if due is not None:
            self.batch.due[due] = path

    # ---- high seqnos of collections ------------------------------------------------------

    def turn_to(self, vbucket: int, progress: Progress, collection: int) -> None:
        """Switches the vbucket to another collection, and stores the high seqno of the last one."""
        left = progress.last_collection
        if left != NO_COLLECTION:
            self._own(vbucket, progress)[left] = progress.high
            self.batch.meta[Meta.high(vbucket, left)] = progress.high.to_bytes(8)
        progress.last_collection = collection

    def set_highs(self, vbucket: int, progress: Progress, highs: dict[int, int]) -> None:
        """Sets the high seqnos of collections after a rollback."""
        self._own_highs.add(vbucket)
        progress.highs, progress.last_collection = highs, NO_COLLECTION
        self.batch.delete_range(self.engine.meta, Meta.highs(vbucket))
        for collection, seqno in highs.items():
            self.batch.meta[Meta.high(vbucket, collection)] = seqno.to_bytes(8)

    def _own(self, vbucket: int, progress: Progress) -> dict[int, int]:
        if vbucket not in self._own_highs:
            self._own_highs.add(vbucket)
            progress.highs = dict(progress.highs)
        return progress.highs

    def note_purged(self, vbucket: int, path: bytes, seqno: int) -> None:
        """Stores the highest purged seqno of a collection: no version shows it any more."""
        collection = collection_of(path)
        if seqno > self.purged_until(vbucket, collection):
            self.batch.meta[Meta.purged(vbucket, collection)] = seqno.to_bytes(8)

    def purged_until(self, vbucket: int, collection: int) -> int:
        """Returns the highest purged seqno of a collection."""
        name = Meta.purged(vbucket, collection)
        return int.from_bytes(self.batch.meta.get(name) or self.engine.meta.get(name) or b"")

    # ---- events, erasure, clearing -------------------------------------------------------

    def event(self, vbucket: int, event: ManifestEvent, *, seqno: int | None = None) -> int:
        """Stores a system event at ``seqno``, or at the vbucket's next seqno. Returns the seqno."""
        progress = self.open(vbucket)
        seqno = progress.high + 1 if seqno is None else seqno
        path = system_event_records.key_of(vbucket, event)
        self.install(
            vbucket,
            progress,
            path,
            None if vbucket in self._cleared else self.record(path),
            system_event_records.encode(event, vbucket, seqno),
            (seqno, 0, 0, int(event.created), 0, RecordKind.EVENT, 0),
        )
        if event.collection is not None and not event.created:
            self.batch.meta[Meta.erasure(vbucket, event.collection)] = seqno.to_bytes(8)
        return seqno

    def known_manifest(self, vbucket: int) -> Manifest:
        """Returns the manifest that results from the system events in a vbucket."""
        first, end = collection_range(vbucket, SYSTEM_COLLECTION)
        paths = {path for path, _ in self.engine.keys.scan((first, end))}
        paths.update(path for path in self._keys if first <= path < end)
        known = Manifest()
        for path in sorted(paths):
            record = self.record(path)
            if record is not None:
                known = system_event_records.decode(self.frame(vbucket, record)).applied_to(known)
        return known

    def forget_erasures(self, vbucket: int, after: int) -> None:
        """Cancels the erasure of collections that were dropped above seqno ``after``."""
        for name, dropped in self.engine.meta.scan(Meta.erasures(vbucket)):
            if int.from_bytes(dropped) > after:
                self.batch.meta[name] = None

    def clear(self, vbucket: int) -> None:
        """Deletes everything in a vbucket. The caller sets its standing.

        Its entries in due stay until their time: due is ordered by time, and maintenance checks
        whether the version still exists.
        """
        self._cleared.add(vbucket)
        seqnos = vbucket_range(vbucket)
        keys = vbucket_key(vbucket), vbucket_key(vbucket) + b"\xff" * 256
        self.batch.delete_range(self.engine.seqnos, seqnos)
        self.batch.delete_range(self.engine.history, seqnos)
        self.batch.delete_range(self.engine.keys, keys)
        for names in (Meta.erasures(vbucket), Meta.highs(vbucket), Meta.all_purged(vbucket)):
            self.batch.delete_range(self.engine.meta, names)
        self.progress[vbucket] = self._emptied(vbucket)

    def clear_all(self) -> None:
        """Like `clear` for every vbucket, with a few range deletions for all."""
        engine = self.engine
        for family in (engine.seqnos, engine.keys, engine.history, engine.due):
            self.batch.delete_range(family, (b"", b"\xff"))
        for names in (Meta.erasures(), Meta.highs(), Meta.all_purged()):
            self.batch.delete_range(engine.meta, names)
        for vbucket in range(len(self.vbuckets)):
            self._cleared.add(vbucket)
            self.progress[vbucket] = self._emptied(vbucket)

    def _emptied(self, vbucket: int) -> Progress:
        """Returns the progress of an empty vbucket.

        It keeps ``sync_seqno``, because open backfills may still contain old prepares.
        """
        progress = Progress()
        progress.sync_seqno = self.open(vbucket).sync_seqno
        return progress

    # ---- sealing -------------------------------------------------------------------------

    def seal(self) -> None:
        """Adds vbucket entries, the manifest and the clock's bound to the batch if they changed."""
        meta = self.batch.meta
        for vbucket, standing in self.standings.items():
            meta[Meta.vbucket(vbucket)] = dump(standing, self.open(vbucket))
        if self.manifest is not self._manifest_before:
            meta[Meta.MANIFEST] = self.manifest.dump()
        bound = self.clock.new_bound()
        if bound is not None:
            meta[Meta.CLOCK] = bound.to_bytes(8)
