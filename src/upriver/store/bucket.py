"""A bucket: documents in vbuckets, as the rooms above the store use it.

Any thread may call anything here. Reads never wait for writes; writes wait for their group.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ..errors import Status, StoreClosed, StoreDamaged, StoreRefusal
from ..model import FailoverLog, Snapshot, VBucketState
from ..wire import canonical
from ..wire.canonical import CanonicalChange
from . import history, verify
from .changes import Applied, Change, Expire, Outcome
from .checks import check_key
from .core import Core, Listener
from .engine import translate
from .layout import Kind, Record, seqno_key, vbucket_key
from .maintenance import Maintenance
from .manifest import Collection, Manifest, Scope, events_between
from .reader import Backfill
from .settings import BucketSettings, Durability
from .threads import GroupWriter, Ticker
from .vbucket import VBucket, VBucketStats, collection_highs, new_vbuuid

__all__ = ["Bucket", "BucketStats"]

_COPIES: Final = (VBucketState.REPLICA, VBucketState.PENDING)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketStats:
    """A bucket's counts at one moment."""

    items: int
    tombstones: int
    #: Bytes of older versions that are kept for rollbacks.
    history_bytes: int
    disk_bytes: int
    #: Backfills that are open; each keeps what it may still read on disk.
    readers: int


class Bucket:
    """Made by `Store`; usable until it is closed."""

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
    ) -> None:
        self.name = name
        #: Tells it from an earlier bucket of its name.
        self.uuid = uuid
        self.settings = settings
        self._core = Core(path, settings, wall=wall, create=create, salvage=salvage)
        self._maintenance = Maintenance(self._core)
        self._readers: weakref.WeakSet[Backfill] = weakref.WeakSet()
        self._closed = False
        self._writer = GroupWriter(
            self._core.apply, name=f"upriver writer {name}", max_changes=settings.group_changes
        )
        self._tickers: list[Ticker] = []
        if settings.durability is Durability.RELAXED:
            self._tick(self._core.sync, "syncer", settings.sync_interval)
        if settings.maintenance_interval:
            self._tick(self._maintenance.round, "maintenance", settings.maintenance_interval)

    def _tick(self, action: Callable[[], object], role: str, interval: float) -> None:
        ticker = Ticker(action, name=f"upriver {role} {self.name}", interval=interval)
        self._tickers.append(ticker)

    @property
    def closed(self) -> bool:
        return self._closed

    # ---- writing -------------------------------------------------------------------------

    def submit(self, changes: Sequence[Change]) -> Future[list[Outcome]]:
        """Queues changes for the next group; the future tells when they are committed.

        The future holds one outcome for each, a refusal among them where one was refused, or
        raises if the whole group failed. Its callbacks run on the writing thread.
        """
        if self._closed:
            raise self._is_closed()
        return self._writer.submit(changes)

    def write(self, change: Change) -> Applied:
        """Makes one change, grouped with those of other threads; raises a refusal."""
        outcome = self.submit((change,)).result()[0]
        if isinstance(outcome, StoreRefusal):
            raise outcome
        return outcome

    def write_many(self, changes: Sequence[Change]) -> list[Outcome]:
        """Makes changes as one group of their own, on the calling thread."""
        if self._closed:
            raise self._is_closed()
        return self._core.apply(changes)

    # ---- reading -------------------------------------------------------------------------

    def get(self, vbucket: int, key: bytes, *, replica: bool = False) -> CanonicalChange:
        """The document at ``key``, which begins with its collection id.

        One whose time has come is not found, and becomes an expiration.
        """
        record = self.meta(vbucket, key, replica=replica)
        while record.kind == Kind.MUTATION:
            if record.expired(self._core.clock.seconds()):
                if not replica:
                    self._writer.submit((Expire(vbucket, key, record.seqno),))
                break
            frame = self._read(self._core.engine.seqnos.get, seqno_key(vbucket, record.seqno))
            if frame is not None:
                return canonical.parse(frame)
            newer = self.meta(vbucket, key, replica=replica)  # it was replaced in between
            if newer.seqno == record.seqno:
                raise StoreDamaged(
                    path=str(self._core.path),
                    problem=f"seqno {record.seqno} of vbucket {vbucket} is not there",
                )
            record = newer
        raise StoreRefusal(Status.NOT_FOUND, f"there is no document {key!r}")

    def meta(self, vbucket: int, key: bytes, *, replica: bool = False) -> Record:
        """What is known of a key without its value; a tombstone's too."""
        wanted = VBucketState.REPLICA if replica else VBucketState.ACTIVE
        state = self._vbucket(vbucket).standing.state
        if state is not wanted:
            raise StoreRefusal(
                Status.NOT_MY_VBUCKET,
                f"vbucket {vbucket} is {state.name.lower()}, not {wanted.name.lower()}",
            )
        check_key(self._core.collections, key)
        raw = self._read(self._core.engine.keys.get, vbucket_key(vbucket) + key)
        if raw is None:
            raise StoreRefusal(Status.NOT_FOUND, f"there is no document {key!r}")
        return Record.load(raw)

    def open_reader(self, vbucket: int, start_seqno: int = 0) -> Backfill:
        """The changes above ``start_seqno`` under one snapshot, to be closed by the caller."""
        self._vbucket(vbucket)
        if self._closed:
            raise self._is_closed()
        try:
            reader = Backfill(self._core.engine, vbucket, start_seqno)
        except Exception as error:
            raise translate(error, self._core.path) from error
        self._readers.add(reader)
        return reader

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Has ``listener`` told of every committed group; returns how to end that."""
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

    # ---- vbuckets ------------------------------------------------------------------------

    def state(self, vbucket: int) -> VBucketState:
        return self._vbucket(vbucket).standing.state

    def failover_log(self, vbucket: int) -> FailoverLog:
        return self._vbucket(vbucket).standing.failover

    def collection_seqnos(self, vbucket: int) -> dict[int, int]:
        """The high seqno of each collection that ever had a change in a vbucket.

        A collection's own events count for it, also the one that says that it was dropped.
        """
        return collection_highs(self._vbucket(vbucket).reach)

    def replica_snapshot(self, vbucket: int) -> Snapshot:
        """The snapshot that a replica is receiving, or received last."""
        return self._vbucket(vbucket).standing.snapshot

    def set_state(self, vbucket: int, state: VBucketState, *, transfer: bool = False) -> None:
        """Changes what a vbucket is.

        One that becomes active begins a new branch where its last whole snapshot ended;
        after a ``transfer``, a takeover in which its writers moved over, it goes on with its own.
        """
        self._vbucket(vbucket)
        with self._core.change() as group:
            standing, high = group.standing(vbucket), group.open(vbucket).high
            active = VBucketState.ACTIVE
            if standing.state is active and state is not active:
                group.change_standing(
                    vbucket,
                    snapshot=Snapshot(high, high),
                    whole_before=high,
                    consistent=standing.remembering(standing.active_from, high),
                )
            if state is active and standing.state is not active:
                failover = standing.failover
                if not transfer:
                    failover = failover.branch(new_vbuuid(), standing.whole_until(high))
                whole = standing.whole_until(high)
                group.change_standing(
                    vbucket,
                    failover=failover,
                    snapshot=Snapshot(high, high),
                    whole_before=high,
                    active_from=high,
                    consistent=standing.remembering(whole, whole),
                )
            group.change_standing(vbucket, state=state)
            if state is active:
                history.align(group, vbucket)

    def set_failover_log(self, vbucket: int, log: FailoverLog) -> None:
        """Gives a replica the failover log of its active copy."""
        self._vbucket(vbucket)
        trusted = log.sanitised()
        if not len(trusted):
            raise StoreRefusal(Status.INVALID, "a failover log names at least one branch")
        with self._core.change() as group:
            group.require(vbucket, *_COPIES)
            group.change_standing(vbucket, failover=trusted)

    def consistent_until(self, vbucket: int, seqno: int) -> int:
        """The newest seqno up to ``seqno`` to which a vbucket may be rolled back and used."""
        known = self._vbucket(vbucket)
        return known.standing.consistent_until(seqno, known.high)

    def hold_writes(self, vbucket: int, *, held: bool) -> None:
        """Has the writers of an active vbucket come back later, or ends that."""
        self._vbucket(vbucket).held = held

    def rollback(self, vbucket: int, seqno: int) -> int:
        """Takes a vbucket back to how it was at ``seqno``; returns the seqno it is at.

        That is 0 where ``seqno`` lies before the history window. An active vbucket begins a new
        branch there. Open backfills still show what was; their owners have to end them. Other
        writers wait meanwhile.
        """
        self._vbucket(vbucket)
        if seqno < 0:
            raise StoreRefusal(Status.INVALID, f"{seqno} is no seqno")
        with self._core.change() as group:
            return history.roll_back(group, vbucket, seqno)

    def _vbucket(self, vbucket: int) -> VBucket:
        if 0 <= vbucket < len(self._core.vbuckets):
            return self._core.vbuckets[vbucket]
        raise StoreRefusal(Status.NOT_MY_VBUCKET, f"there is no vbucket {vbucket}")

    def hold_persisted_seqnos(self, *, held: bool) -> None:
        """For tests of those who wait for persistence: seqnos seem to stay in memory.

        What is written is on disk all the same; only `VBucketStats.persisted_seqno` stands still.
        """
        if self.settings.durability is not Durability.DURABLE:
            raise StoreRefusal(Status.NOT_SUPPORTED, "a relaxed bucket persists when it can")
        self._core.hold_persisted(held=held)

    # ---- collections ---------------------------------------------------------------------

    @property
    def manifest(self) -> Manifest:
        return self._core.manifest

    def create_scope(self, name: str) -> Scope:
        return self._change_manifest(lambda old: old.with_scope(name)).scopes[-1]

    def create_collection(self, scope: int, name: str, *, max_ttl: int | None = None) -> Collection:
        """Creates a collection in the scope with that id."""
        manifest = self._change_manifest(lambda old: old.with_collection(scope, name, max_ttl))
        return manifest.collections[-1]

    def drop_scope(self, scope: int) -> None:
        """Drops a scope and its collections."""
        self._change_manifest(lambda old: old.without_scope(scope))

    def drop_collection(self, collection: int) -> None:
        """Drops a collection: at once for everybody who asks, its documents a little later."""
        self._change_manifest(lambda old: old.without_collection(collection))

    def set_manifest(self, manifest: Manifest) -> None:
        """Takes over a manifest that was made elsewhere; its uid must be higher than ours."""
        self._maintenance.erase_dropped()  # else an id that comes back would show old documents

        def take(old: Manifest) -> Manifest:
            if manifest.uid <= old.uid:
                raise StoreRefusal(
                    Status.RANGE, f"the manifest has uid {manifest.uid:#x}, ours {old.uid:#x}"
                )
            scopes = (scope.id for scope in manifest.scopes)
            collections = (collection.id for collection in manifest.collections)
            free = max(old.next_id, manifest.next_id, 1 + max((*scopes, *collections)))
            return replace(manifest, next_id=free)

        self._change_manifest(take)

    def _change_manifest(self, change: Callable[[Manifest], Manifest]) -> Manifest:
        """Stores another manifest, and what happened in every active vbucket, as one group."""
        with self._core.change() as group:
            group.manifest = change(group.manifest)
            happened = list(events_between(self._core.manifest, group.manifest))
            for vbucket in self._core.vbuckets:
                if vbucket.standing.state is VBucketState.ACTIVE:
                    for event in happened:
                        group.event(vbucket.id, event)
            return group.manifest

    # ---- the whole bucket ----------------------------------------------------------------

    def flush(self, *, copies: bool = True) -> None:
        """Takes every document out, as one group.

        Every vbucket begins again at seqno 0 under a new name, so that any reader that had
        something is sent back to 0. States, collections and settings stay; active vbuckets get
        the events of the collections anew. Open backfills still show what was.

        Without ``copies``, those that belong to another node's active vbucket are left alone: their
        stream tells them what became of it.
        """
        chosen = [
            vbucket.id
            for vbucket in self._core.vbuckets
            if copies or vbucket.standing.state not in _COPIES
        ]
        with self._core.change() as group:
            if len(chosen) == len(self._core.vbuckets):
                group.clear_all()
            else:
                for vbucket in chosen:
                    group.clear(vbucket)
            for vbucket in chosen:
                history.begin_again(group, vbucket)
        self._maintenance.rewrite()

    def flush_copy(self, vbucket: int) -> None:
        """Empties one copy, whose active vbucket was flushed; it has a new name as well."""
        self._vbucket(vbucket)
        with self._core.change() as group:
            group.require(vbucket, *_COPIES)
            group.clear(vbucket)
            history.begin_again(group, vbucket)

    def expire(self) -> None:
        """Turns every document whose time has come into an expiration, now."""
        self._maintenance.expire()

    def compact(self) -> None:
        """Does all that maintenance would do, now, and has the files rewritten."""
        self._maintenance.round()
        self._maintenance.rewrite()

    def verify(self) -> list[str]:
        """Reads everything and says what contradicts itself; empty if all is well."""
        return list(verify.problems(self._core))

    def vbucket_stats(self, vbucket: int) -> VBucketStats:
        return self._vbucket(vbucket).stats()

    def stats(self) -> BucketStats:
        """Adds up the counts of the vbuckets; no document is looked at."""
        progress = [vbucket.progress for vbucket in self._core.vbuckets]
        return BucketStats(
            items=sum(one.items for one in progress),
            tombstones=sum(one.tombstones for one in progress),
            history_bytes=sum(one.history_bytes for one in progress),
            disk_bytes=self._core.engine.size(),
            readers=len(self._readers),
        )

    def close(self) -> None:
        """Commits what is queued, closes open backfills, and marks the stop as clean."""
        if self._closed:
            return
        self._closed = True
        self._writer.close()
        for ticker in self._tickers:
            ticker.close()
        for reader in list(self._readers):
            reader.close()
        self._core.close()

    def _is_closed(self) -> StoreClosed:
        return StoreClosed(path=str(self._core.path), problem="it was closed")
