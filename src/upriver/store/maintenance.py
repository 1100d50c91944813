"""What a bucket does by itself: expiring, erasing, purging, forgetting, in small steps.

Each step is one group of bounded size under the write lock, so a writer waits for milliseconds
at most, however much there is to do. RocksDB rewrites its own files meanwhile, without a lock.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final

from ..errors import Status, StoreRefusal
from ..model import VBucketState
from . import history, operations
from .changes import Expire
from .core import Core
from .group import Group
from .layout import Due, Meta, Record, collection_range, due_range, parse_due

__all__ = ["Maintenance"]

#: How many versions one step looks at.
_STEP: Final = 1000

#: After this many versions were taken away the files are rewritten without them; RocksDB would
#: do it by itself only as writing goes on.
_REWRITE_AFTER: Final = 200_000


class Maintenance:
    """The chores of one bucket. Rounds may come from several threads; steps interleave."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._removed = 0

    def round(self) -> None:
        """Does everything that is due now."""
        self.expire()
        self.erase_dropped()
        self.purge()
        self.trim_history()
        if self._removed >= _REWRITE_AFTER:
            self.rewrite()

    def rewrite(self) -> None:
        """Has RocksDB rewrite its files without what was deleted."""
        self._removed = 0
        for family in self._core.engine.families:
            family.compact()

    # ---- by time -------------------------------------------------------------------------

    def expire(self) -> None:
        """Turns documents of active vbuckets whose time has come into expirations."""
        self._sweep(Due.EXPIRE, self._core.clock.seconds(), self._expire)

    def purge(self) -> None:
        """Takes away tombstones older than the purge age."""
        oldest = self._core.clock.seconds() - self._core.settings.purge_age
        self._sweep(Due.PURGE, oldest, self._purge)

    def _sweep(self, kind: Due, until: int, handle: Callable[[Group, bytes, bytes], None]) -> None:
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

    def _expire(self, group: Group, entry: bytes, path: bytes) -> None:
        vbucket, seqno = parse_due(entry)
        if group.standing(vbucket).state is not VBucketState.ACTIVE:
            return  # its active copy decides, and sends the expiration
        (outcome,) = operations.apply_all(group, [Expire(vbucket, path[2:], seqno)])
        if isinstance(outcome, StoreRefusal) and outcome.status is Status.NOT_FOUND:
            # Another version is there by now.
            group.batch.due[entry] = None

    def _purge(self, group: Group, entry: bytes, path: bytes) -> None:
        vbucket, seqno = parse_due(entry)
        record = group.record(path)
        if record is None or record.seqno != seqno or not record.is_tombstone:
            group.batch.due[entry] = None
            return
        progress, standing = group.open(vbucket), group.standing(vbucket)
        if seqno == progress.high:
            return  # a reader must find the last seqno, or it waits for the end of its snapshot
        group.remove(vbucket, progress, path, record)
        group.note_purged(vbucket, path, seqno)
        progress.purged_rev = max(progress.purged_rev, record.rev)
        group.change_standing(vbucket, purge_seqno=max(standing.purge_seqno, seqno))

    # ---- dropped collections -------------------------------------------------------------

    def erase_dropped(self) -> None:
        """Takes away the documents of collections that were dropped."""
        for name, dropped in list(self._core.engine.meta.scan(Meta.erasures())):
            vbucket, collection = Meta.parse(name)
            first, end = collection_range(vbucket, collection)
            while first < end:
                first = self._erase_step(name, dropped, vbucket, (first, end))

    def _erase_step(
        self, name: bytes, dropped: bytes, vbucket: int, bounds: tuple[bytes, bytes]
    ) -> bytes:
        """Takes away some documents; returns where to go on."""
        seqno = int.from_bytes(dropped)
        with self._core.change() as group:
            if group.engine.meta.get(name) != dropped:
                return bounds[1]  # the vbucket was rolled back behind the drop meanwhile
            entries = list(islice(group.engine.keys.scan(bounds), _STEP))
            progress, standing = group.open(vbucket), group.standing(vbucket)
            older = [
                (path, record)
                for path, raw in entries
                if (record := Record.load(raw)).seqno < seqno
            ]
            for path, record in older:
                group.remove(vbucket, progress, path, record)
            if older:  # what is erased cannot be brought back
                group.change_standing(vbucket, history_floor=max(standing.history_floor, seqno))
            if len(entries) < _STEP:
                group.batch.meta[name] = None
        self._removed += len(entries)
        return entries[-1][0] + b"\0" if len(entries) == _STEP else bounds[1]

    # ---- history -------------------------------------------------------------------------

    def trim_history(self) -> None:
        """Drops what lies outside the history window: too old, or too much in all."""
        core = self._core
        before = core.clock.seconds() - core.settings.history_age
        total = sum(vbucket.progress.history_bytes for vbucket in core.vbuckets)
        allowed = core.settings.history_bytes
        for vbucket in core.vbuckets:
            size = vbucket.progress.history_bytes
            if size:
                # Too much in all: every vbucket gives up the same part of what it has.
                spare = size if total <= allowed else size * allowed // total
                self._trim(vbucket.id, before, spare)

    def _trim(self, vbucket: int, before: int, spare: int) -> None:
        dropped = _STEP
        while dropped == _STEP:
            with self._core.change() as group:
                dropped = history.trim(group, vbucket, before=before, spare=spare, limit=_STEP)
            self._removed += dropped
