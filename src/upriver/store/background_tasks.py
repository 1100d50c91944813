"""Background maintenance of a bucket: expiry, erasure of dropped collections, purge, trimming.

Each step is one write group of bounded size under the write lock. So a writer waits milliseconds
at most, however much there is to do. RocksDB compacts its files meanwhile without this lock.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final

from ..errors import Status, StoreRefusal
from ..model import VBucketState
from . import rollback
from .bucket_core import BucketCore
from .rocksdb_layout import (
    Due,
    Meta,
    RecordKind,
    StoredRecord,
    collection_range,
    due_range,
    parse_due,
)
from .writes import operations
from .writes.change_requests import Expire
from .writes.write_group import WriteGroup

#: A time after that of any tombstone, to select all of them.
_ALWAYS: Final = 2**32

#: The most versions that one step looks at.
_STEP: Final = 1000

#: Compact the files after this many versions were removed. RocksDB itself would compact them only
#: as more data is written.
_REWRITE_AFTER: Final = 200_000


class Maintenance:
    """The maintenance tasks of one bucket. Steps of rounds in several threads may interleave."""

    def __init__(self, core: BucketCore) -> None:
        self._core = core
        self._removed = 0

    def round(self) -> None:
        """Runs every task that is due now."""
        self.expire()
        self.erase_dropped()
        self.purge()
        self.trim_history()
        if self._removed >= _REWRITE_AFTER:
            self.rewrite()

    def rewrite(self) -> None:
        """Compacts all column families, which removes deleted entries from the files."""
        self._removed = 0
        for family in self._core.engine.families:
            family.compact()

    # ---- expiry and purge ----------------------------------------------------------------

    def expire(self) -> None:
        """Turns expired documents of active vbuckets into expirations."""
        self._sweep(Due.EXPIRE, self._core.clock.seconds(), self._expire)

    def purge(self) -> None:
        """Removes tombstones and aborts older than the purge age."""
        oldest = self._core.clock.seconds() - self._core.settings.purge_age
        self._sweep(Due.PURGE, oldest, self._purge)

    def _sweep(
        self, kind: Due, until: int, handle: Callable[[WriteGroup, bytes, bytes], None]
    ) -> None:
        first, end = due_range(kind, until)
        while True:
            with self._core.change() as group:
                entries = list(islice(group.engine.due.scan((first, end)), _STEP))
                for entry, path in entries:
                    handle(group, entry, path)
            self._removed += len(entries)
            if len(entries) < _STEP:
                return
            first = entries[-1][0] + b"\0"

    def _expire(self, group: WriteGroup, entry: bytes, path: bytes) -> None:
        vbucket, seqno = parse_due(entry)
        if group.standing(vbucket).state is not VBucketState.ACTIVE:
            return  # the active copy decides, and replicates the expiration
        (outcome,) = operations.apply_all(group, [Expire(vbucket, path[2:], seqno)])
        if isinstance(outcome, StoreRefusal) and outcome.status is Status.NOT_FOUND:
            # Another version has replaced the document.
            group.batch.due[entry] = None

    def _purge(self, group: WriteGroup, entry: bytes, path: bytes) -> None:
        vbucket, seqno = parse_due(entry)
        record = group.record(path)
        if record is None or record.seqno != seqno or not _may_be_purged(record):
            group.batch.due[entry] = None
            return
        progress, standing = group.open(vbucket), group.standing(vbucket)
        if seqno == progress.high:
            return  # a stream must reach the high seqno, or its snapshot would never end
        group.remove(vbucket, progress, path, record)
        if record.is_tombstone:
            group.note_purged(vbucket, path, seqno)
        progress.purged_rev = max(progress.purged_rev, record.rev)
        group.change_standing(vbucket, purge_seqno=max(standing.purge_seqno, seqno))

    def purge_vbucket(self, vbucket: int, *, until: int | None, last_seqno: int | None) -> None:
        """Removes tombstones of one vbucket before their purge age.

        It removes those made at ``until`` or before, or all if it is None. If ``last_seqno`` is
        given, it removes none above that seqno.
        """

        def handle(group: WriteGroup, entry: bytes, path: bytes) -> None:
            owner, seqno = parse_due(entry)
            if owner == vbucket and (last_seqno is None or seqno <= last_seqno):
                self._purge(group, entry, path)

        self._sweep(Due.PURGE, _ALWAYS if until is None else until, handle)

    # ---- dropped collections -------------------------------------------------------------

    def erase_dropped(self) -> None:
        """Removes the documents of dropped collections."""
        for name, dropped in list(self._core.engine.meta.scan(Meta.erasures())):
            vbucket, collection = Meta.parse(name)
            first, end = collection_range(vbucket, collection)
            while first < end:
                first = self._erase_step(name, dropped, vbucket, (first, end))

    def _erase_step(
        self, name: bytes, dropped: bytes, vbucket: int, bounds: tuple[bytes, bytes]
    ) -> bytes:
        """Removes some documents of a dropped collection. Returns the key to continue from."""
        seqno = int.from_bytes(dropped)
        with self._core.change() as group:
            if group.engine.meta.get(name) != dropped:
                return bounds[1]  # a rollback undid the drop meanwhile
            entries = list(islice(group.engine.keys.scan(bounds), _STEP))
            progress, standing = group.open(vbucket), group.standing(vbucket)
            older = [
                (path, record)
                for path, raw in entries
                if (record := StoredRecord.load(raw)).seqno < seqno
            ]
            for path, record in older:
                group.remove(vbucket, progress, path, record)
            if older:  # a rollback cannot restore erased documents
                group.change_standing(vbucket, history_floor=max(standing.history_floor, seqno))
            if len(entries) < _STEP:
                group.batch.meta[name] = None
        self._removed += len(entries)
        return entries[-1][0] + b"\0" if len(entries) == _STEP else bounds[1]

    # ---- history -------------------------------------------------------------------------

    def trim_history(self) -> None:
        """Drops history that is older than the history age or exceeds the history size."""
        core = self._core
        before = core.clock.seconds() - core.settings.history_age
        total = sum(vbucket.progress.history_bytes for vbucket in core.vbuckets)
        allowed = core.settings.history_bytes
        for vbucket in core.vbuckets:
            size = vbucket.progress.history_bytes
            if size:
                # Above the size limit, every vbucket gives up the same share of its history.
                spare = size if total <= allowed else size * allowed // total
                self._trim(vbucket.id, before, spare)

    def _trim(self, vbucket: int, before: int, spare: int) -> None:
        dropped = _STEP
        while dropped == _STEP:
            with self._core.change() as group:
                dropped = rollback.trim(group, vbucket, before=before, spare=spare, limit=_STEP)
            self._removed += dropped


def _may_be_purged(record: StoredRecord) -> bool:
    return record.is_tombstone or record.kind == RecordKind.ABORT
