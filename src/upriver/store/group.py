"""A group of changes being prepared: one batch, and the vbuckets as they will be after it.

Everything that alters a bucket goes through a group: the operations of clients, replication,
state changes, rollbacks, purging. A group reads its own changes; nobody else sees them before
the batch is written. It counts in the vbuckets' own `Progress`, so whoever drops a group has to
load those of the vbuckets in ``progress`` again.

The invariants of the layout are kept here and nowhere else: the newest version of a key is in
seqnos and keys, what it replaced is in history, what has a due time is in due, and the counts fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import Status, StoreDamaged, StoreRefusal
from ..model import VBucketState
from . import events
from .clock import HybridClock
from .engine import Batch, Engine
from .layout import (
    NO_COLLECTION,
    SYSTEM_COLLECTION,
    Kind,
    Meta,
    Record,
    collection_of,
    collection_range,
    due_key,
    pack_record,
    seqno_key,
    vbucket_key,
    vbucket_range,
)
from .manifest import Event, Manifest
from .vbucket import Progress, Standing, VBucket, dump

__all__ = ["UNCHANGED", "Group"]

#: Stands for an entry that the group has nothing to say about; None is one that it deletes.
UNCHANGED = b""

_MUTATION, _EVENT = Kind.MUTATION, Kind.EVENT


class _ActiveVBuckets(dict[int, Progress]):
    """How far active vbuckets have come, each opened when it is first asked for."""

    __slots__ = ("_group",)

    def __init__(self, group: Group) -> None:
        super().__init__()
        self._group = group

    def __missing__(self, vbucket: int) -> Progress:
        group = self._group
        if vbucket in group.standings or not 0 <= vbucket < len(group.vbuckets):
            group.require(vbucket, VBucketState.ACTIVE)
        known = group.vbuckets[vbucket]
        if known.standing.state is not VBucketState.ACTIVE and vbucket not in group.standings:
            group.require(vbucket, VBucketState.ACTIVE)  # says what is wrong
        if known.held:
            raise StoreRefusal(Status.TEMPORARY_FAILURE, f"vbucket {vbucket} is moving")
        progress = self[vbucket] = group.progress.setdefault(vbucket, known.progress)
        return progress


class Group:
    """Changes that are committed together. Made and filled under the bucket's write lock."""

    def __init__(
        self,
        engine: Engine,
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
        #: The collections that can be used, with the longest life of their documents.
        self.collections = collections
        self.max_value = max_value
        #: What this group may have changed, by vbucket.
        self.progress: dict[int, Progress] = {}
        self.standings: dict[int, Standing] = {}
        self.vbuckets = vbuckets
        #: Those of them that are active; asking for any other refuses it.
        self.active = _ActiveVBuckets(self)
        self._cleared: set[int] = set()
        #: Whose `Progress.highs` are this group's own already.
        self._own_highs: set[int] = set()
        self._time = self.now.to_bytes(4)
        #: Reads keys from disk, past what this group changed.
        self.look_up = engine.keys.get
        self.look_up_many = engine.keys.get_many
        self._seqnos = self.batch.seqnos
        self._keys = self.batch.keys

    # ---- vbuckets ------------------------------------------------------------------------

    def standing(self, vbucket: int) -> Standing:
        """What a vbucket is, as far as this group has come."""
        return self.standings.get(vbucket) or self.vbuckets[vbucket].standing

    def change_standing(self, vbucket: int, **fields: Any) -> None:
        self.standings[vbucket] = replace(self.standing(vbucket), **fields)

    def open(self, vbucket: int) -> Progress:
        """How far a vbucket has come, to be changed by this group."""
        progress = self.progress.get(vbucket)
        if progress is None:
            progress = self.progress[vbucket] = self.vbuckets[vbucket].progress
        return progress

    def require(self, vbucket: int, *states: VBucketState) -> None:
        """Refuses a vbucket that is not in one of these states."""
        if not 0 <= vbucket < len(self.vbuckets):
            raise StoreRefusal(Status.NOT_MY_VBUCKET, f"there is no vbucket {vbucket}")
        state = self.standing(vbucket).state
        if state not in states:
            wanted = " or ".join(other.name.lower() for other in states)
            raise StoreRefusal(
                Status.NOT_MY_VBUCKET, f"vbucket {vbucket} is {state.name.lower()}, not {wanted}"
            )

    # ---- versions ------------------------------------------------------------------------

    def record(self, path: bytes) -> Record | None:
        """The newest version at ``path``, this group's own included."""
        raw = self._keys.get(path, UNCHANGED)
        if raw is UNCHANGED:
            raw = self.look_up(path)
        return None if raw is None else Record.load(raw)

    def frame(self, vbucket: int, record: Record) -> bytes:
        """The stored frame of a version that is there."""
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
        old: Record | None,
        frame: bytes,
        version: tuple[int, int, int, int, int, Kind, int],
    ) -> None:
        """Makes ``frame`` the newest version at ``path`` in place of ``old``.

        ``version`` is what its record says of it: the fields of `Record` but for the counts.
        """
        seqno, rev, cas, flags, time, kind, datatype = version
        at = seqno_key(vbucket, seqno)
        if old is not None:
            archived = self._time + self.frame(vbucket, old)
            self.batch.history[at] = archived
            progress.history_bytes += len(archived)
            self._retire(vbucket, progress, old)
        if kind is _MUTATION:
            progress.items += 1
        elif kind is not _EVENT:
            progress.tombstones += 1
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
            self._schedule(vbucket, path, Record.load(record))
        collection = collection_of(path) if path[2] else 0  # as most are
        if collection != progress.last_collection:
            self.turn_to(vbucket, progress, collection)
        progress.high = seqno

    def remove(self, vbucket: int, progress: Progress, path: bytes, record: Record) -> None:
        """Takes a version away without a trace: no tombstone, no history."""
        self._retire(vbucket, progress, record)
        self._keys[path] = None

    def restore(self, vbucket: int, progress: Progress, path: bytes, frame: bytes) -> None:
        """Brings an older version back on its own seqno; what was there has been removed."""
        record = events.record_for(frame)
        self._seqnos[seqno_key(vbucket, record.seqno)] = frame
        self._keys[path] = record.dump()
        self._schedule(vbucket, path, record)
        if record.kind == Kind.MUTATION:
            progress.items += 1
        elif record.is_tombstone:
            progress.tombstones += 1

    def _retire(self, vbucket: int, progress: Progress, record: Record) -> None:
        self._seqnos[seqno_key(vbucket, record.seqno)] = None
        due = due_key(vbucket, record)
        if due is not None:
            self.batch.due[due] = None
        if record.kind == Kind.MUTATION:
            progress.items -= 1
        elif record.is_tombstone:
            progress.tombstones -= 1

    def _schedule(self, vbucket: int, path: bytes, record: Record) -> None:
        due = due_key(vbucket, record)
        if due is not None:
            self.batch.due[due] = path

    # ---- high seqnos of collections ------------------------------------------------------

    def turn_to(self, vbucket: int, progress: Progress, collection: int) -> None:
        """The next change of a vbucket is another collection's than the last."""
        left = progress.last_collection
        if left != NO_COLLECTION:
            self._own(vbucket, progress)[left] = progress.high
            self.batch.meta[Meta.high(vbucket, left)] = progress.high.to_bytes(8)
        progress.last_collection = collection

    def set_highs(self, vbucket: int, progress: Progress, highs: dict[int, int]) -> None:
        """Gives a vbucket that went back the high seqnos that its collections had there."""
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
        """Remembers that a collection had a change that nothing else tells of any more."""
        collection = collection_of(path)
        if seqno > self.purged_until(vbucket, collection):
            self.batch.meta[Meta.purged(vbucket, collection)] = seqno.to_bytes(8)

    def purged_until(self, vbucket: int, collection: int) -> int:
        """The highest seqno of a collection that was purged."""
        name = Meta.purged(vbucket, collection)
        return int.from_bytes(self.batch.meta.get(name) or self.engine.meta.get(name) or b"")

    # ---- events, erasure, whole vbuckets -------------------------------------------------

    def event(self, vbucket: int, event: Event, *, seqno: int | None = None) -> int:
        """Stores a system event on ``seqno``, else on the vbucket's next; returns that."""
        progress = self.open(vbucket)
        seqno = progress.high + 1 if seqno is None else seqno
        path = events.key_of(vbucket, event)
        self.install(
            vbucket,
            progress,
            path,
            None if vbucket in self._cleared else self.record(path),
            events.encode(event, vbucket, seqno),
            (seqno, 0, 0, int(event.created), 0, Kind.EVENT, 0),
        )
        if event.collection is not None and not event.created:
            self.batch.meta[Meta.erasure(vbucket, event.collection)] = seqno.to_bytes(8)
        return seqno

    def known_manifest(self, vbucket: int) -> Manifest:
        """The scopes and collections that a vbucket's own events amount to."""
        first, end = collection_range(vbucket, SYSTEM_COLLECTION)
        paths = {path for path, _ in self.engine.keys.scan((first, end))}
        paths.update(path for path in self._keys if first <= path < end)
        known = Manifest()
        for path in sorted(paths):
            record = self.record(path)
            if record is not None:
                known = events.decode(self.frame(vbucket, record)).applied_to(known)
        return known

    def forget_erasures(self, vbucket: int, after: int) -> None:
        """Collections that were dropped above seqno ``after`` need not be erased."""
        for name, dropped in self.engine.meta.scan(Meta.erasures(vbucket)):
            if int.from_bytes(dropped) > after:
                self.batch.meta[name] = None

    def clear(self, vbucket: int) -> None:
        """Takes everything out of a vbucket; its standing is the caller's to set.

        What it had in due stays until its time: due is ordered by time, and whoever reads it
        looks whether the version is still there.
        """
        self._cleared.add(vbucket)
        seqnos = vbucket_range(vbucket)
        keys = vbucket_key(vbucket), vbucket_key(vbucket) + b"\xff" * 256
        self.batch.delete_range(self.engine.seqnos, seqnos)
        self.batch.delete_range(self.engine.history, seqnos)
        self.batch.delete_range(self.engine.keys, keys)
        for names in (Meta.erasures(vbucket), Meta.highs(vbucket), Meta.all_purged(vbucket)):
            self.batch.delete_range(self.engine.meta, names)
        self.progress[vbucket] = Progress()

    def clear_all(self) -> None:
        """As `clear` for every vbucket, at the cost of one."""
        engine = self.engine
        for family in (engine.seqnos, engine.keys, engine.history, engine.due):
            self.batch.delete_range(family, (b"", b"\xff"))
        for names in (Meta.erasures(), Meta.highs(), Meta.all_purged()):
            self.batch.delete_range(engine.meta, names)
        for vbucket in range(len(self.vbuckets)):
            self._cleared.add(vbucket)
            self.progress[vbucket] = Progress()

    # ---- the end -------------------------------------------------------------------------

    def seal(self) -> None:
        """Adds what must be stored beside the versions themselves."""
        meta = self.batch.meta
        for vbucket, standing in self.standings.items():
            meta[Meta.vbucket(vbucket)] = dump(standing, self.open(vbucket))
        if self.manifest is not self._manifest_before:
            meta[Meta.MANIFEST] = self.manifest.dump()
        bound = self.clock.new_bound()
        if bound is not None:
            meta[Meta.CLOCK] = bound.to_bytes(8)
