"""The open data of one bucket and the only way to change it: one group at a time.

It loads what the disk says, refuses what contradicts itself, applies the rules for a stop that
was not clean, and publishes committed groups to readers and listeners. What the changes mean is
`operations`' business.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..errors import StoreClosed, StoreDamaged, StoreError
from ..model import VBucketState
from . import events, operations
from .changes import Change, Outcome
from .clock import HybridClock
from .engine import Batch, Engine
from .group import Group
from .layout import Meta, Record, collection_of, vbucket_range
from .manifest import Manifest
from .settings import BucketSettings, Durability
from .vbucket import Progress, Standing, VBucket, dump, load, new_vbuuid

__all__ = ["Core", "Listener"]

logger = logging.getLogger("upriver.store")

#: Told of every committed group: the high seqnos of the vbuckets it changed. It is called under
#: the write lock, so it must be quick and must not write.
Listener = Callable[[Mapping[int, int]], None]


class Core:
    """One bucket's engine, vbuckets, clock and write lock."""

    def __init__(
        self,
        path: Path,
        settings: BucketSettings,
        *,
        wall: Callable[[], int],
        create: bool = False,
        salvage: bool = False,
    ) -> None:
        self.path = path
        self.settings = settings
        self.engine = Engine(
            path,
            create=create,
            write_memory=settings.write_memory,
            read_memory=settings.read_memory,
            # Without syncs a power cut may leave holes in the log; what is before them is good.
            lenient=salvage or settings.durability is Durability.RELAXED,
        )
        self.listeners: tuple[Listener, ...] = ()
        self._lock = threading.Lock()
        self._failure: StoreError | None = None
        self._sync = settings.durability is Durability.DURABLE
        self._unsynced: set[int] = set()
        try:
            if create:
                self._write_new()
            self._load(wall)
            self._begin_session(salvage)
        except BaseException:
            self.engine.close()
            raise

    # ---- changing ------------------------------------------------------------------------

    @contextmanager
    def change(self) -> Iterator[Group]:
        """A group to fill; it is committed at the end of the block, or dropped on an error."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            group = Group(
                self.engine,
                self.vbuckets,
                self.clock,
                self.manifest,
                self.collections,
                self.settings.max_value,
            )
            try:
                with self.engine.named_errors():
                    yield group
                self._commit(group)
            except BaseException:
                self._drop(group)
                raise

    def apply(self, changes: Sequence[Change]) -> list[Outcome]:
        """Commits changes as one group; those that are refused are left out of it."""
        with self.change() as group:
            return operations.apply_all(group, changes)

    def _commit(self, group: Group) -> None:
        group.seal()
        if group.batch.empty:
            return
        try:
            self.engine.write(group.batch, sync=self._sync)
        except StoreError as error:
            # What reached the log is unknown, so nothing may follow it: only opening anew tells.
            self._failure = error
            logger.error("the bucket %s takes no more writes: %s", self.path, error)
            raise
        self._publish(group)

    def _drop(self, group: Group) -> None:
        """Forgets what a group counted that is not to be."""
        try:
            for vbucket in group.progress:
                self.vbuckets[vbucket].progress = self._load_vbucket(vbucket).progress
        except StoreError as error:
            self._failure = self._failure or error

    def _publish(self, group: Group) -> None:
        vbuckets = self.vbuckets
        for vbucket, standing in group.standings.items():
            vbuckets[vbucket].standing = standing
        if not self._sync:
            for vbucket in group.progress:
                if vbuckets[vbucket].synced is None:
                    vbuckets[vbucket].synced = vbuckets[vbucket].high
                self._unsynced.add(vbucket)
        for vbucket, progress in group.progress.items():
            changed = vbuckets[vbucket]
            changed.progress = progress
            changed.high = progress.high
            changed.reach = (progress.high, progress.last_collection, progress.highs)
        if group.manifest is not self.manifest:
            self._set_manifest(group.manifest)
        if self.listeners:
            moved = {vbucket: progress.high for vbucket, progress in group.progress.items()}
            for listener in self.listeners:
                try:
                    listener(moved)
                except Exception:
                    logger.exception("a listener of %s failed", self.path)

    def hold_persisted(self, *, held: bool) -> None:
        """Has the persisted seqnos stand still, or tells the truth about them again."""
        with self._lock:
            for vbucket in self.vbuckets:
                vbucket.synced = vbucket.high if held else None

    def sync(self) -> None:
        """Brings what was written to disk; only a relaxed bucket has anything to bring."""
        with self._lock:
            if not self._unsynced or self._failure is not None:
                return
            written = {vbucket: self.vbuckets[vbucket].high for vbucket in self._unsynced}
            self._unsynced.clear()
        try:
            self.engine.sync()
        except StoreError as error:
            self._failure = error
            raise
        with self._lock:
            for vbucket, seqno in written.items():
                self.vbuckets[vbucket].synced = seqno if vbucket in self._unsynced else None

    def close(self) -> None:
        """Marks the stop as clean, unless a write failed, and closes the files."""
        with self._lock:
            if self._failure is None:
                self._mark_session(clean=True)
            self._failure = StoreClosed(path=str(self.path), problem="it was closed")
            self.engine.close()

    # ---- opening -------------------------------------------------------------------------

    def _write_new(self) -> None:
        batch = Batch()
        for vbucket in range(self.settings.vbuckets):
            standing = Standing.fresh(self.settings.initial_state)
            batch.meta[Meta.vbucket(vbucket)] = dump(standing, Progress())
        batch.meta[Meta.MANIFEST] = Manifest().dump()
        batch.meta[Meta.CLOCK] = bytes(8)
        batch.meta[Meta.SESSION] = _session(clean=True, durability=self.settings.durability)
        self.engine.write(batch, sync=True)

    def _load(self, wall: Callable[[], int]) -> None:
        self.clock = HybridClock(wall, bound=int.from_bytes(self._stored(Meta.CLOCK)))
        try:
            self._set_manifest(Manifest.load(self._stored(Meta.MANIFEST)))
        except ValueError as problem:
            raise self._damaged(str(problem)) from None
        self.vbuckets = tuple(
            self._load_vbucket(vbucket) for vbucket in range(self.settings.vbuckets)
        )

    def _load_vbucket(self, vbucket: int) -> VBucket:
        try:
            standing, progress = load(self._stored(Meta.vbucket(vbucket)))
        except ValueError as problem:
            raise self._damaged(f"vbucket {vbucket}: {problem}") from None
        newest = self.engine.seqnos.last(vbucket_range(vbucket))
        if newest is not None:
            seqno = int.from_bytes(newest[0][2:])
            path = events.path_of(vbucket, newest[1])
            record = self._record_of_newest(vbucket, seqno, path)
            if seqno > progress.high:
                progress = Progress(
                    seqno,
                    record.items,
                    record.tombstones,
                    record.history_bytes,
                    progress.purged_rev,
                )
            if seqno == progress.high:
                progress.last_collection = collection_of(path)
        for name, stored in self.engine.meta.scan(Meta.highs(vbucket)):
            progress.highs[Meta.parse(name)[1]] = int.from_bytes(stored)
        return VBucket(vbucket, standing, progress)

    def _record_of_newest(self, vbucket: int, seqno: int, path: bytes) -> Record:
        raw = self.engine.keys.get(path)
        record = None if raw is None else Record.load(raw)
        if record is None or record.seqno != seqno:
            known = "nothing" if record is None else f"seqno {record.seqno}"
            raise self._damaged(
                f"vbucket {vbucket} ends with seqno {seqno}, but by key there is {known}"
            )
        return record

    def _begin_session(self, salvage: bool) -> None:
        try:
            session = json.loads(self._stored(Meta.SESSION))
            clean, durability = session["clean"], Durability(session["durability"])
        except (ValueError, KeyError, TypeError) as problem:
            raise self._damaged(f"its last session cannot be read: {problem!r}") from None
        self._mark_session(clean=False)
        if salvage or (not clean and durability is Durability.RELAXED):
            self._branch_all()

    def _branch_all(self) -> None:
        """Something may be lost that readers have: what follows is another branch."""
        with self.change() as group:
            for vbucket in self.vbuckets:
                standing, high = vbucket.standing, vbucket.progress.high
                if standing.state is VBucketState.ACTIVE:
                    whole = high >= standing.snapshot.end
                    at = high if whole else standing.snapshot.start
                    group.change_standing(
                        vbucket.id, failover=standing.failover.branch(new_vbuuid(), at)
                    )
        logger.warning("%s was not closed; its active vbuckets begin new branches", self.path)

    def _mark_session(self, *, clean: bool) -> None:
        batch = Batch()
        batch.meta[Meta.SESSION] = _session(clean=clean, durability=self.settings.durability)
        self.engine.write(batch, sync=True)

    def _set_manifest(self, manifest: Manifest) -> None:
        self.manifest = manifest
        #: The collections that can be used, with the longest life of their documents.
        self.collections = {other.id: other.max_ttl for other in manifest.collections}

    def _stored(self, name: bytes) -> bytes:
        raw = self.engine.meta.get(name)
        if raw is None:
            raise self._damaged(f"its entry {name!r} is missing")
        return bytes(raw)

    def _damaged(self, problem: str) -> StoreDamaged:
        return StoreDamaged(path=str(self.path), problem=problem)


def _session(*, clean: bool, durability: Durability) -> bytes:
    return json.dumps({"clean": clean, "durability": durability.value}).encode()
