"""A simulated disk: the twin of RocksDB that a node of a world stores its bucket on.

A batch is atomic. What was written without a sync survives the end of the process, but a power
failure loses any part of it, the newest first. A disk can be full, slow, or come back empty. After
a failed write nobody knows whether the batch reached the log; opening the files again tells.
"""

from __future__ import annotations

import random
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

from upriver.errors import StoreClosed, StoreDamaged, StoreFull
from upriver.store.rocksdb import Batch, Database, Family, FrozenEntries, FrozenRange

_FAMILIES: Final = ("meta", "seqnos", "keys", "history", "due")
#: What a written batch is in the log: by family, ranges to delete and entries to set.
_Logged = list[tuple[str, list[tuple[bytes, bytes]], dict[bytes, bytes | None]]]


class _Table:
    """The entries of one column family, sorted by key."""

    __slots__ = ("keys", "values")

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.values: dict[bytes, bytes] = {}

    def copy(self) -> _Table:
        other = _Table()
        other.keys, other.values = list(self.keys), dict(self.values)
        return other

    def apply(
        self, ranges: Sequence[tuple[bytes, bytes]], entries: dict[bytes, bytes | None]
    ) -> None:
        for first, end in ranges:
            for key in self.between((first, end)):
                self._remove(key)
        for key, value in entries.items():
            if value is None:
                self._remove(key)
            else:
                if key not in self.values:
                    insort(self.keys, key)
                self.values[key] = value

    def _remove(self, key: bytes) -> None:
        if self.values.pop(key, None) is not None:
            del self.keys[bisect_left(self.keys, key)]

    def between(self, bounds: tuple[bytes, bytes]) -> list[bytes]:
        return self.keys[bisect_left(self.keys, bounds[0]) : bisect_left(self.keys, bounds[1])]


class SimulatedDisk:
    """The disk of one node. It outlives the node's processes."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        #: What a power failure cannot take away, and the batches that were written since.
        self._synced = {name: _Table() for name in _FAMILIES}
        self._unsynced: list[tuple[_Logged, Batch | None]] = []
        #: Batches that reached the log although their write failed: seen when it is read.
        self._unseen: list[Batch] = []
        self._is_formatted = False
        self._open: _SimulatedDatabase | None = None
        #: Whether writes fail because there is no space.
        self.full = False
        #: How many times longer than usual a commit takes.
        self.slowness = 1.0
        #: Called with every batch that was written, before anybody is told.
        self.on_batch: Callable[[Batch], None] = lambda batch: None
        #: Called with everything that is left after a power failure.
        self.on_power_failure: Callable[[Batch], None] = lambda left: None
        #: Test hook: leaves out every sync.
        self.syncs = True

    @property
    def is_formatted(self) -> bool:
        """Whether there is a bucket on it."""
        return self._is_formatted

    def latency(self) -> float:
        """How long the next commit takes, in seconds."""
        return self._chance.uniform(0.0002, 0.003) * self.slowness

    def database(self, path: Path, *, create: bool, **options: Any) -> Database:
        """Opens the database, in place of `Database`."""
        if not create and not self._is_formatted:
            raise StoreDamaged(path=str(path), problem="its file CURRENT is missing")
        self._is_formatted = True
        self.show_unseen()
        self._open = _SimulatedDatabase(self, path)
        return self._open

    # ---- faults --------------------------------------------------------------------------

    def detach(self) -> None:
        """The process that has it open was killed: its writes reach nothing any more."""
        if self._open is not None:
            self._open.is_open = False
            self._open = None

    def lose_power(self) -> int:
        """Loses some of what was not synced; returns how many batches."""
        self.detach()
        kept = self._chance.randint(0, len(self._unsynced))
        lost = len(self._unsynced) - kept
        del self._unsynced[kept:]
        self.sync(forced=True)
        self.show_unseen()
        left = Batch()
        for name, table in self._synced.items():
            getattr(left, name).update(table.values)
        self.on_power_failure(left)
        return lost

    def replace(self) -> None:
        """An empty disk takes its place."""
        self.detach()
        self._synced = {name: _Table() for name in _FAMILIES}
        self._unsynced.clear()
        self._unseen.clear()
        self._is_formatted = False

    # ---- for the open database -----------------------------------------------------------

    def content(self) -> dict[str, _Table]:
        """What is found when the files are opened."""
        found = {name: table.copy() for name, table in self._synced.items()}
        for logged, _ in self._unsynced:
            _apply(found, logged)
        return found

    def log(self, logged: _Logged, *, sync: bool, unseen: Batch | None = None) -> None:
        self._unsynced.append((logged, unseen))
        if sync:
            self.sync()

    def sync(self, *, forced: bool = False) -> None:
        """Puts what was written so far out of reach of a power failure."""
        if self.syncs or forced:
            for logged, unseen in self._unsynced:
                _apply(self._synced, logged)
                if unseen is not None:
                    self._unseen.append(unseen)
            self._unsynced.clear()

    def show_unseen(self) -> None:
        """Tells of batches whose write failed and that are found in the log all the same."""
        found = self._unseen + [unseen for _, unseen in self._unsynced if unseen is not None]
        self._unsynced = [(logged, None) for logged, _ in self._unsynced]
        self._unseen = []
        for batch in found:
            self.on_batch(batch)

    def reaches_log(self) -> bool:
        """Whether a batch whose write failed is in the log all the same."""
        return self._chance.random() < 0.5


def _apply(tables: dict[str, _Table], logged: _Logged) -> None:
    for name, ranges, entries in logged:
        tables[name].apply(ranges, entries)


class _SimulatedFamily(Family):
    __slots__ = ("_database", "_name")

    def __init__(self, database: _SimulatedDatabase, name: str) -> None:
        self._database = database
        self._name = name
        self.handle = None
        self.get = self._get  # type: ignore[assignment]

    @property
    def table(self) -> _Table:
        self._database.check_open()
        return self._database.tables[self._name]

    @property
    def name(self) -> str:
        return self._name

    def _get(self, key: bytes) -> bytes | None:
        return self.table.values.get(key)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        values = self.table.values
        return [values.get(key) for key in keys]

    def scan(self, bounds: tuple[bytes, bytes]) -> Iterator[tuple[bytes, bytes]]:
        table = self.table
        return iter([(key, table.values[key]) for key in table.between(bounds)])

    def scan_back(self, bounds: tuple[bytes, bytes]) -> Iterator[tuple[bytes, bytes]]:
        return iter(list(self.scan(bounds))[::-1])

    def compact(self) -> None:
        pass


class _FrozenRange(FrozenRange):
    __slots__ = ()

    def __init__(self, family: _SimulatedFamily, bounds: tuple[bytes, bytes]) -> None:
        self._bounds = bounds
        entries = list(family.scan(bounds))
        self.values = iter([value for _, value in entries])
        self.last = entries[-1] if entries else None


class _FrozenEntries(FrozenEntries):
    __slots__ = ("_at", "_entries", "_other_values")

    def __init__(
        self, family: _SimulatedFamily, others: _SimulatedFamily, bounds: tuple[bytes, bytes]
    ) -> None:
        self._entries = list(family.scan(bounds))
        self._other_values = dict(others.table.values)
        self._at = 0

    def next(self) -> tuple[bytes, bytes] | None:
        if self._at == len(self._entries):
            return None
        self._at += 1
        return self._entries[self._at - 1]

    def rewind(self) -> None:
        self._at = 0

    def other(self, key: bytes) -> bytes | None:
        return self._other_values.get(key)


class _SimulatedDatabase(Database):
    """The open database of one bucket on a simulated disk."""

    def __init__(self, disk: SimulatedDisk, path: Path) -> None:
        self.path = path
        self._disk = disk
        self.is_open = True
        self.tables = disk.content()
        self.meta, self.seqnos, self.keys, self.history, self.due = (
            _SimulatedFamily(self, name) for name in _FAMILIES
        )

    def check_open(self) -> None:
        if not self.is_open:
            raise StoreClosed(path=str(self.path), problem="it was closed")

    def reopen(self) -> None:
        self.check_open()
        self._disk.sync()  # opening writes the content of the log to synced files
        self._disk.show_unseen()
        self.tables = self._disk.content()

    def require_room(self) -> None:
        if self._disk.full:
            raise StoreFull(path=str(self.path), problem="No space left on device")

    def write(self, batch: Batch, *, sync: bool) -> None:
        self.check_open()
        logged: _Logged = []
        for name in _FAMILIES:
            ranges = [
                (first, end)
                for family, first, end in batch.ranges
                if cast("_SimulatedFamily", family).name == name
            ]
            entries: dict[bytes, bytes | None] = getattr(batch, name)
            if ranges or entries:
                logged.append((name, ranges, dict(entries)))
        if self._disk.full:
            if self._disk.reaches_log():
                self._disk.log(logged, sync=False, unseen=batch)
            raise StoreFull(path=str(self.path), problem="No space left on device")
        self._disk.log(logged, sync=sync)
        _apply(self.tables, logged)
        self._disk.on_batch(batch)

    @contextmanager
    def named_errors(self) -> Iterator[None]:
        yield

    def sync(self) -> None:
        self.check_open()
        if self._disk.full:
            raise StoreFull(path=str(self.path), problem="No space left on device")
        self._disk.sync()

    def freeze(self, bounds: tuple[bytes, bytes]) -> FrozenRange:
        return _FrozenRange(cast("_SimulatedFamily", self.seqnos), bounds)

    def freeze_keys(self, bounds: tuple[bytes, bytes]) -> FrozenEntries:
        return _FrozenEntries(
            cast("_SimulatedFamily", self.keys), cast("_SimulatedFamily", self.seqnos), bounds
        )

    def freeze_twice(self, bounds: tuple[bytes, bytes]) -> tuple[FrozenRange, FrozenRange]:
        return self.freeze(bounds), self.freeze(bounds)

    def size(self) -> int:
        return sum(
            len(key) + len(value)
            for table in self.tables.values()
            for key, value in table.values.items()
        )

    def close(self) -> None:
        """Closes it. Closing flushes to synced files, as RocksDB does."""
        if self.is_open:
            self.is_open = False
            self._disk.sync()
