"""A bucket: the store's interface to documents, vbuckets and collections.

All methods are thread-safe. Reads never wait for writes. A write waits for the commit of its group.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from itertools import islice
from pathlib import Path
from typing import TypeVar

from ..errors import Status, StoreClosed, StoreDamaged, StoreError, StoreRefusal
from ..model import FailoverLog, Snapshot, VBucketState
from ..wire import canonical
from ..wire.canonical import CanonicalChange
from ..wire.leb128 import key_name
from . import consistency_check, document_versions, prepare_lookup, rollback, vbucket_state_changes
from .background_tasks import Maintenance
from .bucket_core import BucketCore, SeqnoListener
from .bucket_environment import MACHINE, Platform
from .bucket_settings import BucketSettings, SyncMode
from .bucket_stats import BucketStats, StatsReader
from .key_scan import KeyRange, KeyScan
from .manifest import Collection, Manifest, Scope
from .manifest_update import change_manifest, replace_manifest
from .rocksdb import translate
from .rocksdb_layout import Meta, RecordKind, StoredRecord, seqno_key, vbucket_key
from .seqno_reader import Backfill, Reader
from .vbucket import PendingPrepare, VBucket, VBucketStats, collection_highs
from .writes.change_requests import Applied, ChangeRequest, Expire, Outcome
from .writes.commit_threads import Ticker
from .writes.operation_checks import check_key
from .writes.prepared_writes import Completion

_T = TypeVar("_T")
_R = TypeVar("_R", bound=Reader)


class Bucket:
    """One open bucket. `Store` creates it; it can be used until it is closed."""

    def __init__(
        self,
        name: str,
        path: Path,
        settings: BucketSettings,
        *,
        uuid: str = "",
        wall: Callable[[], int] = time.time_ns,
        create: bool = False,
        salvage: bool = False,
        platform: Platform = MACHINE,
    ) -> None:
        self.name = name
        #: Distinguishes the bucket from an earlier one of the same name.
        self.uuid = uuid
        self.settings = settings
        self._platform = platform
        self._core = BucketCore(
            path, settings, wall=wall, create=create, salvage=salvage, platform=platform
        )
        self._maintenance = Maintenance(self._core)
        #: The high seqno of each vbucket when the bucket was opened.
        self._opened_with = [vbucket.high for vbucket in self._core.vbuckets]
        self._closed = False
        self._stats = StatsReader(self._core, platform.monotonic)
        self._persistence_held = False
        self._writer = platform.writer(
            self._core.apply, name=f"upriver writer {name}", max_changes=settings.group_changes
        )
        self._tickers: list[Ticker] = []
        if settings.durability is SyncMode.RELAXED:
            self._tick(self._core.sync, "syncer", settings.sync_interval)
        if settings.maintenance_interval:
            self._tick(self._maintenance.round, "maintenance", settings.maintenance_interval)

    def _tick(self, action: Callable[[], object], role: str, interval: float) -> None:
        ticker = self._platform.ticker(
            action, name=f"upriver {role} {self.name}", interval=interval
        )
        self._tickers.append(ticker)

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def sessions(self) -> tuple[str, ...]:
        """Ids of the last times the bucket was opened, newest first.

        If an older state of the disk was restored, it lacks the newer ids.
        """
        return self._core.sessions

    # ---- writing -------------------------------------------------------------------------

    def submit(self, changes: Sequence[ChangeRequest]) -> Future[list[Outcome]]:
        """Queues changes for the next write group. The future is done when they are committed.

        Its result has one outcome per change; a refused change has its refusal as outcome. It
        raises if the whole group failed. Its callbacks run on the writer thread.
        """
        if self._closed:
            raise self._is_closed()
        return self._writer.submit(changes)

    def write(self, change: ChangeRequest) -> Applied:
        """Makes one change, grouped with those of other threads. Raises if it is refused."""
        outcome = self.submit((change,)).result()[0]
        if isinstance(outcome, StoreRefusal):
            raise outcome
        return outcome

    def write_many(self, changes: Sequence[ChangeRequest]) -> list[Outcome]:
        """Commits changes as one group of their own, on the calling thread."""
        if self._closed:
            raise self._is_closed()
        return self._core.apply(changes)

    # ---- reading -------------------------------------------------------------------------

    def get(self, vbucket: int, key: bytes, *, replica: bool = False) -> CanonicalChange:
        """Returns the document at ``key``, which begins with its collection id.

        An expired document is not found, and is turned into an expiration.
        """
        record = self.meta(vbucket, key, replica=replica)
        while record.kind == RecordKind.MUTATION:
            if record.expired(self._core.clock.seconds()):
                if not replica:
                    self._writer.submit((Expire(vbucket, key, record.seqno),))
                break
            frame = self._read(self._core.engine.seqnos.get, seqno_key(vbucket, record.seqno))
            if frame is not None:
                return canonical.parse(frame)
            newer = self.meta(vbucket, key, replica=replica)  # a write replaced it meanwhile
            if newer.seqno == record.seqno:
                raise StoreDamaged(
                    path=str(self._core.path),
                    problem=f"seqno {record.seqno} of vbucket {vbucket} is not there",
                )
            record = newer
        raise StoreRefusal(Status.NOT_FOUND, f"there is no document {key_name(key)}")

    def meta(self, vbucket: int, key: bytes, *, replica: bool = False) -> StoredRecord:
        """Returns the metadata of a document or tombstone, without its value."""
        wanted = VBucketState.REPLICA if replica else VBucketState.ACTIVE
        state = self._vbucket(vbucket).standing.state
        if state is not wanted:
            raise StoreRefusal(
                Status.NOT_MY_VBUCKET,
                f"vbucket {vbucket} is {state.name.lower()}, not {wanted.name.lower()}",
            )
        check_key(self._core.collections, key)
        path = vbucket_key(vbucket) + key
        prepares = self._vbucket(vbucket).progress.prepares
        if prepares and not replica and path in prepares and prepares[path].maybe_committed:
            raise StoreRefusal(
                Status.SYNC_WRITE_RECOMMIT_IN_PROGRESS,
                f"a durable write of {key_name(key)} is under way that may have been seen before",
            )
        raw = self._read(self._core.engine.keys.get, path)
        if raw is None:
            raise StoreRefusal(Status.NOT_FOUND, f"there is no document {key_name(key)}")
        return StoredRecord.load(raw)

    def versions(self, vbucket: int, key: bytes, most: int) -> list[CanonicalChange]:
        """Returns up to ``most`` versions of a document, newest first, deletions included.

        ``key`` begins with its collection id. Older versions are kept for rollbacks, as long as
        the settings ``history_age`` and ``history_bytes`` allow.
        """
        self._vbucket(vbucket)
        check_key(self._core.collections, key)
        found = document_versions.versions(self._core.engine, vbucket, key)
        return self._query(lambda: list(islice(found, most)))

    def next_cas(self, vbucket: int, seqno: int) -> int | None:
        """Returns the CAS of the first change after a seqno; None if there is none."""
        self._vbucket(vbucket)
        engine = self._core.engine
        return self._query(lambda: document_versions.next_cas(engine, vbucket, seqno))

    def open_reader(self, vbucket: int, start_seqno: int = 0) -> Backfill:
        """Opens a backfill of the changes above ``start_seqno``. The caller must close it."""
        return self._open(
            vbucket, lambda: [Backfill.open(self._core.engine, vbucket, start_seqno)]
        )[0]

    def open_readers(self, vbucket: int, start_seqno: int = 0) -> tuple[Backfill, Backfill]:
        """Opens two backfills with the same snapshot, for a caller that looks ahead with one."""
        one, other = self._open(
            vbucket, lambda: Backfill.open_twice(self._core.engine, vbucket, start_seqno)
        )
        return one, other

    def open_scan(self, vbucket: int, collection: int, keys: KeyRange) -> KeyScan:
        """Opens a scan of a collection by key, with one snapshot. The caller must close it."""
        now = self._core.clock.seconds()
        engine = self._core.engine
        return self._open(vbucket, lambda: [KeyScan.open(engine, vbucket, collection, keys, now)])[
            0
        ]

    def has_seqno(self, vbucket: int, seqno: int) -> bool:
        """Whether the change at a seqno is still stored: no later change has replaced it."""
        self._vbucket(vbucket)
        return self._read(self._core.engine.seqnos.get, seqno_key(vbucket, seqno)) is not None

    def _open(self, vbucket: int, readers: Callable[[], Sequence[_R]]) -> Sequence[_R]:
        self._vbucket(vbucket)
        if self._closed:
            raise self._is_closed()
        try:
            opened = readers()
        except Exception as error:
            raise translate(error, self._core.path) from error
        for reader in opened:
            self._core.readers.add(reader)
        return opened

    # ---- durable writes ------------------------------------------------------------------

    def vbuckets_with_prepares(self) -> list[int]:
        """Returns the active vbuckets that have pending prepares."""
        return [
            vbucket.id
            for vbucket in self._core.vbuckets
            if vbucket.progress.prepares and vbucket.standing.state is VBucketState.ACTIVE
        ]

    def prepares(self, vbucket: int) -> list[tuple[bytes, PendingPrepare]]:
        """Returns the pending prepares of a vbucket with their keys, oldest first."""
        known = self._vbucket(vbucket)
        found = [
            (path[2:], pending)
            for path, pending in known.progress.prepares.items()
            if pending.seqno <= known.high
        ]
        return sorted(found, key=lambda one: one[1].seqno)

    def completion(self, vbucket: int, key: bytes, prepared_seqno: int) -> Completion:
        """Returns whether the prepare of ``key`` at ``prepared_seqno`` was committed or aborted."""
        engine = self._core.engine
        return self._query(lambda: prepare_lookup.completion(engine, vbucket, key, prepared_seqno))

    def visible_until(self, vbucket: int, seqno: int) -> int:
        """Returns the last seqno at most ``seqno`` of a change other than a prepare or abort."""
        stats = self.vbucket_stats(vbucket)
        if stats.visible_seqno <= seqno:
            return stats.visible_seqno
        return prepare_lookup.last_visible(self._core.engine, vbucket, seqno)

    def last_sync_write(self, vbucket: int) -> int:
        """Returns the highest seqno of any prepare or abort that the vbucket has or had."""
        return self._vbucket(vbucket).progress.sync_seqno

    # ---- listeners -----------------------------------------------------------------------

    def subscribe(self, listener: SeqnoListener) -> Callable[[], None]:
        """Calls ``listener`` after every committed group. Returns a function that ends this."""
        self._core.listeners = (*self._core.listeners, listener)

        def end() -> None:
            self._core.listeners = tuple(
                other for other in self._core.listeners if other is not listener
            )

        return end

    def _read(self, get: Callable[[bytes], bytes | None], key: bytes) -> bytes | None:
        try:
            return get(key)
        except Exception as error:
            raise translate(error, self._core.path) from error

    def _query(self, query: Callable[[], _T]) -> _T:
        try:
            return query()
        except StoreError:
            raise
        except Exception as error:
            raise translate(error, self._core.path) from error

    # ---- vbuckets ------------------------------------------------------------------------

    def state(self, vbucket: int) -> VBucketState:
        return self._vbucket(vbucket).standing.state

    def failover_log(self, vbucket: int) -> FailoverLog:
        return self._vbucket(vbucket).standing.failover

    def collection_seqnos(self, vbucket: int) -> dict[int, int]:
        """Returns the high seqno of each collection that ever had a change in a vbucket.

        The system events of a collection count as its changes, also the one that drops it.
        """
        return collection_highs(self._vbucket(vbucket).reach)

    def drops_to_erase(self, vbucket: int) -> dict[int, int]:
        """Returns the dropped collections with documents that may not be erased yet.

        Each has the seqno at which it was dropped in the vbucket.
        """
        self._vbucket(vbucket)
        meta, names = self._core.engine.meta, Meta.erasures(vbucket)
        return self._query(
            lambda: {Meta.parse(name)[1]: int.from_bytes(at) for name, at in meta.scan(names)}
        )

    def high_seqnos(
        self, states: frozenset[VBucketState], collection: int | None = None
    ) -> Iterator[tuple[int, int | None]]:
        """Yields the high seqno of every vbucket in one of these states, or of a collection in it.

        It is None if the collection never had a change. This is cheaper than `vbucket_stats` for a
        thousand vbuckets.
        """
        for vbucket in self._core.vbuckets:
            if vbucket.standing.state in states:
                if collection is None:
                    yield vbucket.id, vbucket.high
                else:
                    high, last, others = vbucket.reach
                    yield vbucket.id, high if last == collection else others.get(collection)

    def replica_snapshot(self, vbucket: int) -> Snapshot:
        """Returns the snapshot that a replica is receiving, or received last."""
        return self._vbucket(vbucket).standing.snapshot

    def opened_with(self, vbucket: int) -> int:
        """Returns the high seqno that a vbucket had when the bucket was opened.

        A rollback below it lowers it, and a flush sets it to 0.
        """
        return self._opened_with[vbucket]

    def set_state(self, vbucket: int, state: VBucketState, *, transfer: bool = False) -> None:
        """Sets the state of a vbucket.

        A vbucket that becomes active begins a new branch at the end of its last complete snapshot.
        With ``transfer`` it keeps its branch: in a takeover its writers move over.
        """
        self._vbucket(vbucket)
        vbucket_state_changes.set_state(self._core, vbucket, state, transfer=transfer)

    def set_failover_log(self, vbucket: int, log: FailoverLog) -> None:
        """Sets a replica's failover log to that of its active copy."""
        self._vbucket(vbucket)
        vbucket_state_changes.set_failover_log(self._core, vbucket, log)

    def begin_branches(self) -> None:
        """Begins a new branch in every active vbucket.

        For a bucket that was restored from an older copy: readers of later changes are then rolled
        back, where they would otherwise miss the changes that get the same seqnos again.
        """
        self._core.begin_branches()

    def consistent_until(self, vbucket: int, seqno: int) -> int:
        """Returns the newest seqno at most ``seqno`` at which the vbucket was consistent."""
        known = self._vbucket(vbucket)
        return known.standing.consistent_until(seqno, known.high)

    def hold_writes(self, vbucket: int, *, held: bool) -> None:
        """Refuses writes to an active vbucket with TEMPORARY_FAILURE, or accepts them again."""
        self._vbucket(vbucket).held = held

    def rollback(self, vbucket: int, seqno: int) -> int:
        """Rolls a vbucket back to its state at ``seqno``. Returns the seqno that was reached.

        That is 0 if ``seqno`` lies before the kept history. An active vbucket begins a new branch
        there. Open backfills still read the old changes; their owners must close them. Other
        writers wait until the rollback is committed.
        """
        self._vbucket(vbucket)
        if seqno < 0:
            raise StoreRefusal(Status.INVALID, f"{seqno} is no seqno")
        with self._core.change() as group:
            reached = rollback.roll_back(group, vbucket, seqno)
        self._opened_with[vbucket] = min(self._opened_with[vbucket], reached)
        return reached

    def _vbucket(self, vbucket: int) -> VBucket:
        if 0 <= vbucket < len(self._core.vbuckets):
            return self._core.vbuckets[vbucket]
        raise StoreRefusal(Status.NOT_MY_VBUCKET, f"there is no vbucket {vbucket}")

    def hold_persisted_seqnos(self, *, held: bool) -> None:
        """Test hook: freezes the persisted seqnos, or releases them.

        Changes are still written to disk; only `VBucketStats.persisted_seqno` does not advance.
        """
        if self.settings.durability is not SyncMode.DURABLE:
            raise StoreRefusal(Status.NOT_SUPPORTED, "a relaxed bucket persists when it can")
        self._core.hold_persisted(held=held)
        self._persistence_held = held

    @property
    def persistence_held(self) -> bool:
        """Whether the persisted seqnos are frozen by `hold_persisted_seqnos`."""
        return self._persistence_held

    # ---- collections ---------------------------------------------------------------------

    @property
    def manifest(self) -> Manifest:
        return self._core.manifest

    def create_scope(self, name: str) -> Scope:
        return change_manifest(self._core, lambda old: old.with_scope(name)).scopes[-1]

    def create_collection(self, scope: int, name: str, *, max_ttl: int | None = None) -> Collection:
        """Creates a collection in the scope with that id."""
        return change_manifest(
            self._core, lambda old: old.with_collection(scope, name, max_ttl)
        ).collections[-1]

    def drop_scope(self, scope: int) -> None:
        """Drops a scope and its collections."""
        change_manifest(self._core, lambda old: old.without_scope(scope))

    def drop_collection(self, collection: int) -> None:
        """Drops a collection. It is gone at once; maintenance erases its documents later."""
        change_manifest(self._core, lambda old: old.without_collection(collection))

    def change_collection(self, collection: int, *, max_ttl: int | None) -> None:
        """Sets the longest expiry of documents that are written to a collection from now on."""
        change_manifest(self._core, lambda old: old.with_max_ttl(collection, max_ttl))

    def set_manifest(self, manifest: Manifest) -> None:
        """Replaces the manifest with one made elsewhere, which must have a higher uid."""
        self._maintenance.erase_dropped()  # else a reused id would show documents of a dropped one
        replace_manifest(self._core, manifest)

    # ---- the whole bucket ----------------------------------------------------------------

    def flush(self, *, copies: bool = True) -> None:
        """Deletes every document, as one group.

        Every vbucket begins again at seqno 0 with a new vbuuid, so that every consumer that has
        data must roll back to 0. States, collections and settings stay. Active vbuckets get the
        system events of the collections again. Open backfills still read the old changes.

        Without ``copies``, replica and pending vbuckets are left unchanged: the stream from their
        active vbucket brings them the flush.
        """
        for vbucket in vbucket_state_changes.flush(self._core, copies=copies):
            self._opened_with[vbucket] = 0
        self._maintenance.rewrite()

    def flush_copy(self, vbucket: int) -> None:
        """Empties a replica or pending vbucket whose active copy was flushed; sets a new vbuuid."""
        self._vbucket(vbucket)
        vbucket_state_changes.flush_copy(self._core, vbucket)

    def expire(self) -> None:
        """Turns every expired document into an expiration, now."""
        self._maintenance.expire()

    def compact(self) -> None:
        """Runs all maintenance now, and compacts the files."""
        self._maintenance.round()
        self._maintenance.rewrite()

    def purge_tombstones(
        self, vbucket: int, *, until: int | None = None, last_seqno: int | None = None
    ) -> None:
        """Removes tombstones of one vbucket before their purge age, except at the high seqno.

        It removes those made at ``until`` or before, or all without it. If ``last_seqno`` is
        given, it removes none above that seqno. Consumers below the purge seqno must roll back.
        """
        self._vbucket(vbucket)
        self._maintenance.purge_vbucket(vbucket, until=until, last_seqno=last_seqno)

    def verify(self) -> list[str]:
        """Reads the whole bucket and returns its inconsistencies; empty if there are none."""
        return list(consistency_check.problems(self._core))

    def vbucket_stats(self, vbucket: int) -> VBucketStats:
        return self._vbucket(vbucket).stats()

    def stats(self) -> BucketStats:
        """Returns the statistics of the bucket, without a scan of documents or vbuckets."""
        return self._stats.read()

    def close(self) -> None:
        """Commits the queued changes, closes open backfills, and marks the shutdown as clean."""
        if self._closed:
            return
        self._closed = True
        self._writer.close()
        for ticker in self._tickers:
            ticker.close()
        self._core.close()

    def _is_closed(self) -> StoreClosed:
        return StoreClosed(path=str(self._core.path), problem="it was closed")
