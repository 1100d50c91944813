"""The in-memory state of an open bucket, and the commit of write groups to it.

It loads the stored state, rejects inconsistent data, and starts new branches after an unclean
shutdown. It allows one write group at a time, and publishes committed groups to readers and
listeners. `operations` implements the changes themselves.
"""

from __future__ import annotations

import copy
import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from .. import _entropy
from ..errors import StoreClosed, StoreDamaged, StoreError
from ..model import VBucketState
from .bucket_environment import MACHINE, Platform
from .bucket_settings import BucketSettings, SyncMode
from .manifest import Manifest
from .rocksdb import Batch
from .rocksdb_layout import Meta, StoredRecord, collection_of, vbucket_range
from .seqno_reader import OpenReaders
from .vbucket import Progress, Standing, Totals, VBucket, dump, load, new_vbuuid
from .writes import operations, system_event_records
from .writes.cas_clock import HybridClock
from .writes.change_requests import ChangeRequest, Outcome
from .writes.prepared_writes import load_prepares
from .writes.write_group import WriteGroup

logger = logging.getLogger("upriver.store")

#: Bytes of a session id, and how many ids are kept: as many as the starts of a process that may
#: fail in a row before another node connects to it.
_SESSION_BYTES = 8
_MOST_SESSIONS = 16

#: Called after every committed group, with the new high seqnos of the vbuckets that it changed.
#: It runs under the write lock, so it must be quick and must not write.
SeqnoListener = Callable[[Mapping[int, int]], None]


#: Seconds between two attempts to reopen a bucket's files after a failed write. The next writer
#: after this time makes the attempt, so that a disk that stays full is not tried more often.
_RECOVERY_INTERVAL: Final = 1.0


class BucketCore:
    """The database, vbuckets, clock and write lock of one bucket."""

    def __init__(
        self,
        path: Path,
        settings: BucketSettings,
        *,
        wall: Callable[[], int],
        create: bool = False,
        salvage: bool = False,
        platform: Platform = MACHINE,
    ) -> None:
        self.path = path
        self.settings = settings
        self._monotonic = platform.monotonic
        self.engine = platform.database(
            path,
            create=create,
            write_memory=settings.write_memory,
            read_memory=settings.read_memory,
            # Without syncs a power failure may leave holes in the log. Entries before are valid.
            lenient=salvage or settings.durability is SyncMode.RELAXED,
        )
        self.listeners: tuple[SeqnoListener, ...] = ()
        self.readers = OpenReaders()
        #: The number of committed groups.
        self.commits = 0
        self._lock = threading.Lock()
        self._failure: StoreError | None = None
        self._next_attempt = 0.0
        self._sync = settings.durability is SyncMode.DURABLE
        self._unsynced: set[int] = set()
        try:
            if create:
                self._write_new()
            self._load(wall)
            self._begin_session(salvage)
        except BaseException:
            self.engine.close()
            raise

    # ---- write groups --------------------------------------------------------------------

    @contextmanager
    def change(self) -> Iterator[WriteGroup]:
        """Yields a write group. It is committed when the block ends, or dropped on an error."""
        with self._lock:
            if self._failure is not None:
                self._recover(self._failure)
            with self._group() as group:
                yield group

    @contextmanager
    def _group(self) -> Iterator[WriteGroup]:
        group = WriteGroup(
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

    def apply(self, changes: Sequence[ChangeRequest]) -> list[Outcome]:
        """Commits changes as one group. Refused changes are left out of it."""
        with self.change() as group:
            return operations.apply_all(group, changes)

    def _commit(self, group: WriteGroup) -> None:
        group.seal()
        if group.batch.empty:
            return
        try:
            self.engine.write(group.batch, sync=self._sync)
        except StoreError as error:
            self._fail(error)
            error.is_ambiguous = True  # the log may have the group; reopening the files shows it
            raise
        self.commits += 1
        self._publish(group)

    def _drop(self, group: WriteGroup) -> None:
        """Reloads the progress of the vbuckets that a dropped group had changed."""
        try:
            for vbucket in group.progress:
                known, found = self.vbuckets[vbucket], self._load_vbucket(vbucket).progress
                found.sync_seqno = max(found.sync_seqno, known.progress.sync_seqno)
                known.progress = found
        except StoreError as error:
            self._fail(error)

    # ---- after a failed write ------------------------------------------------------------

    def _fail(self, error: StoreError) -> None:
        """Stops all writes. It is unknown what reached the log, so no write may follow.

        Only reopening the files shows what did; `_recover` does that.
        """
        if self._failure is not None:
            return
        self._failure = _again(error)
        self._next_attempt = self._monotonic() + _RECOVERY_INTERVAL
        logger.error("the bucket %s refuses writes until this is mended: %s", self.path, error)

    def _recover(self, failure: StoreError) -> None:
        """Reopens the files if an attempt is due. Raises the failure if it persists."""
        if (
            isinstance(failure, StoreClosed | StoreDamaged)
            or self._monotonic() < self._next_attempt
        ):
            raise _again(failure)
        self._next_attempt = self._monotonic() + _RECOVERY_INTERVAL
        try:
            self.engine.require_room()
            self.readers.close_all()
            self.engine.reopen()
            with self.engine.named_errors():
                lost, moved = self._reload()
        except StoreError as error:
            logger.debug("the bucket %s cannot be opened again yet: %s", self.path, error)
            raise _again(failure) from error
        self._failure = None
        if lost:
            with self._group() as group:
                self._branch_all(group, "the bucket %s has lost changes that were not on disk")
        logger.warning("the bucket %s takes writes again", self.path)
        self._notify(moved)

    def _reload(self) -> tuple[bool, dict[int, int]]:
        """Loads the state on disk. Returns whether changes are lost, and changed high seqnos."""
        self._set_manifest(Manifest.load(self._stored(Meta.MANIFEST)))
        lost, moved = False, {}
        for known in self.vbuckets:
            found = self._load_vbucket(known.id)
            lost = lost or (found.standing == known.standing and found.high < known.high)
            if found.high != known.high:
                moved[known.id] = found.high
            found.progress.sync_seqno = max(found.progress.sync_seqno, known.progress.sync_seqno)
            known.standing, known.progress = found.standing, found.progress
            known.high, known.reach = found.high, found.reach
            if not self._sync:  # reopening has synced the log
                known.synced = None
        self._unsynced.clear()
        self.totals = Totals(self.vbuckets)
        return lost, moved

    def _publish(self, group: WriteGroup) -> None:
        vbuckets = self.vbuckets
        for vbucket, standing in group.standings.items():
            vbuckets[vbucket].standing = standing
            self.totals.count_state(vbuckets[vbucket])
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
            self.totals.count(changed)
        if group.manifest is not self.manifest:
            self._set_manifest(group.manifest)
        if self.listeners:
            self._notify({vbucket: progress.high for vbucket, progress in group.progress.items()})

    def _notify(self, moved: Mapping[int, int]) -> None:
        for listener in self.listeners if moved else ():
            try:
                listener(moved)
            except Exception:
                logger.exception("a listener of %s failed", self.path)

    def hold_persisted(self, *, held: bool) -> None:
        """Freezes the persisted seqnos, or releases them."""
        with self._lock:
            for vbucket in self.vbuckets:
                vbucket.synced = vbucket.high if held else None

    def sync(self) -> None:
        """Syncs the log to disk. Only a bucket with relaxed durability has unsynced changes."""
        with self._lock:
            if not self._unsynced or self._failure is not None:
                return
            written = {vbucket: self.vbuckets[vbucket].high for vbucket in self._unsynced}
            self._unsynced.clear()
        try:
            self.engine.sync()
        except StoreClosed:
            return  # a recovery reopens the files meanwhile, which syncs the log
        except StoreError as error:
            with self._lock:
                self._fail(error)
            raise
        with self._lock:
            for vbucket, seqno in written.items():
                self.vbuckets[vbucket].synced = seqno if vbucket in self._unsynced else None

    def close(self) -> None:
        """Marks the shutdown as clean, unless a write failed, and closes the files."""
        with self._lock:
            self.readers.close_all()
            if self._failure is None:
                try:
                    self._mark_session(clean=True)
                except StoreError as error:
                    logger.warning("%s is not marked as closed: %s", self.path, error)
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
        self.totals = Totals(self.vbuckets)

    def _load_vbucket(self, vbucket: int) -> VBucket:
        try:
            standing, progress = load(self._stored(Meta.vbucket(vbucket)))
        except ValueError as problem:
            raise self._damaged(f"vbucket {vbucket}: {problem}") from None
        newest = self.engine.seqnos.last(vbucket_range(vbucket))
        if newest is not None:
            seqno = int.from_bytes(newest[0][2:])
            path = system_event_records.path_of(vbucket, newest[1])
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
        load_prepares(self.engine, vbucket, progress)
        return VBucket(vbucket, standing, progress)

    def _record_of_newest(self, vbucket: int, seqno: int, path: bytes) -> StoredRecord:
        raw = self.engine.keys.get(path)
        record = None if raw is None else StoredRecord.load(raw)
        if record is None or record.seqno != seqno:
            known = "nothing" if record is None else f"seqno {record.seqno}"
            raise self._damaged(
                f"vbucket {vbucket} ends with seqno {seqno}, but by key there is {known}"
            )
        return record

    def _begin_session(self, salvage: bool) -> None:
        try:
            session = json.loads(self._stored(Meta.SESSION))
            clean, durability = session["clean"], SyncMode(session["durability"])
            earlier = tuple(map(str, session.get("ids", ())))
        except (ValueError, KeyError, TypeError) as problem:
            raise self._damaged(f"its last session cannot be read: {problem!r}") from None
        #: Ids of the times that the bucket was opened, newest first. A peer that remembers one can
        #: detect that an older state of the disk was restored.
        self.sessions = (_entropy.token_hex(_SESSION_BYTES), *earlier)[:_MOST_SESSIONS]
        self._mark_session(clean=False)
        if salvage or (not clean and durability is SyncMode.RELAXED):
            with self._group() as group:
                self._branch_all(group, "%s was not closed")

    def begin_branches(self) -> None:
        """Begins a new branch in every active vbucket, because an older copy was restored."""
        with self.change() as group:
            self._branch_all(group, "the bucket %s is an older copy")

    def _branch_all(self, group: WriteGroup, why: str) -> None:
        """Begins a new branch in every active vbucket: changes that readers have may be lost."""
        for vbucket in self.vbuckets:
            standing, high = vbucket.standing, vbucket.progress.high
            if standing.state is VBucketState.ACTIVE:
                whole = high >= standing.snapshot.end
                at = high if whole else standing.snapshot.start
                group.change_standing(
                    vbucket.id, failover=standing.failover.branch(new_vbuuid(), at)
                )
        logger.warning(f"{why}; its active vbuckets begin new branches", self.path)

    def _mark_session(self, *, clean: bool) -> None:
        batch = Batch()
        batch.meta[Meta.SESSION] = _session(
            clean=clean, durability=self.settings.durability, ids=self.sessions
        )
        self.engine.write(batch, sync=True)

    def _set_manifest(self, manifest: Manifest) -> None:
        self.manifest = manifest
        #: The existing collections with the longest expiry of their documents.
        self.collections = {other.id: other.max_ttl for other in manifest.collections}

    def _stored(self, name: bytes) -> bytes:
        raw = self.engine.meta.get(name)
        if raw is None:
            raise self._damaged(f"its entry {name!r} is missing")
        return bytes(raw)

    def _damaged(self, problem: str) -> StoreDamaged:
        return StoreDamaged(path=str(self.path), problem=problem)


def _again(failure: StoreError) -> StoreError:
    """Copies an error for another caller; a shared instance would collect all tracebacks."""
    again = copy.copy(failure)
    again.__cause__ = again.__traceback__ = None
    again.is_ambiguous = False  # the other caller's change was not written at all
    return again


def _session(*, clean: bool, durability: SyncMode, ids: Sequence[str] = ()) -> bytes:
    return json.dumps({"clean": clean, "durability": durability.value, "ids": ids}).encode()
