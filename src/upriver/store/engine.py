"""RocksDB, as the rest of the store sees it: the only module that knows rocksdict.

It opens the column families of one bucket, writes batches, walks ranges, and turns RocksDB's
error texts into errors with a name. It knows nothing of vbuckets or documents.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rocksdict import (
    BlockBasedOptions,
    BottommostLevelCompaction,
    Cache,
    ColumnFamily,
    CompactOptions,
    DbClosedError,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from ..errors import (
    StoreClosed,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreNotWritable,
)

__all__ = ["Batch", "Engine", "Family", "FrozenRange", "translate"]

logger = logging.getLogger("upriver.store")

_MEMTABLE: Final = 2 * 1024 * 1024

#: Which texts of RocksDB, which come from strerror or its own status codes, mean what.
_MEANINGS: Final[tuple[tuple[str, type[StoreFull | StoreNotWritable | StoreDamaged]], ...]] = (
    ("No space left", StoreFull),
    ("Space limit", StoreFull),
    ("File too large", StoreFull),
    ("quota exceeded", StoreFull),
    ("Permission denied", StoreNotWritable),
    ("Read-only file system", StoreNotWritable),
    ("Corruption", StoreDamaged),
    ("checksum mismatch", StoreDamaged),
    ("No such file", StoreDamaged),
    ("does not exist", StoreDamaged),
    ("Invalid argument", StoreDamaged),
)


def translate(error: Exception, path: Path) -> StoreError:
    """The error of ours that RocksDB's ``error`` means."""
    if isinstance(error, StoreError):
        return error
    text = str(error)
    if "already closed" in text:
        return StoreClosed(path=str(path), problem="it was closed")
    if "lock hold by current process" in text or "While lock file" in text:
        return StoreLocked(path=str(path), holder="a reader or bucket that was not closed")
    for part, meaning in _MEANINGS:
        if part in text:
            return meaning(path=str(path), problem=text)
    return StoreError(f"the store {path}: {text}")


class Family:
    """One column family: reads go through ``data``, batches name it by ``handle``."""

    __slots__ = ("_path", "data", "get", "handle")

    def __init__(self, database: Rdict, name: str, path: Path) -> None:
        self.data = database.get_column_family(name)
        self.handle: ColumnFamily = database.get_column_family_handle(name)
        self.get = self.data.get
        self._path = path

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The values of many keys, None where there is none."""
        found: Any = self.data.get(list[Any](keys))
        return list(found)

    def scan(self, bounds: tuple[bytes, bytes]) -> Iterator[tuple[bytes, bytes]]:
        """The entries from the first bound up to before the second.

        rocksdict's own iterators end without a word where a block cannot be read; this does not.
        """
        cursor = self.data.iter(_bounded(bounds))
        cursor.seek(bounds[0])
        while cursor.valid():
            yield cursor.key(), cursor.value()
            cursor.next()
        _check(cursor.status, self._path)

    def scan_back(self, bounds: tuple[bytes, bytes]) -> Iterator[tuple[bytes, bytes]]:
        """The entries that `scan` gives, the last one first."""
        cursor = self.data.iter(_bounded(bounds))
        cursor.seek_to_last()
        while cursor.valid() and cursor.key() >= bounds[0]:
            yield cursor.key(), cursor.value()
            cursor.prev()
        _check(cursor.status, self._path)

    def last(self, bounds: tuple[bytes, bytes]) -> tuple[bytes, bytes] | None:
        """The last entry of a range."""
        return next(self.scan_back(bounds), None)

    def compact(self) -> None:
        """Rewrites the family's files without what was deleted."""
        options = CompactOptions()
        options.set_bottommost_level_compaction(BottommostLevelCompaction.force_optimized())
        options.set_exclusive_manual_compaction(False)
        self.data.compact_range(None, None, options)

    def close(self) -> None:
        """From here on reads say that it is closed."""
        _close(self.data)
        del self.handle


class FrozenRange:
    """The values of a range as they were at one moment, and the last entry among them.

    It keeps what it may still read, on disk and in memory, until it is dropped.
    """

    __slots__ = ("_bounds", "last", "values")

    def __init__(self, database: Rdict, family: Family, bounds: tuple[bytes, bytes]) -> None:
        self._bounds = bounds  # RocksDB points into these
        # rocksdict's iterators over a snapshot do not look at the snapshot. Each iterator is
        # one of its own, so two of them agree if nothing was written between.
        while True:
            written = database.latest_sequence_number()
            #: Fast, but it ends early without a word where a block cannot be read.
            self.values: Iterator[bytes] = family.data.values(
                from_key=bounds[0], read_opt=_bounded(bounds)
            )
            self.last = family.last(bounds)
            if database.latest_sequence_number() == written:
                return


class Batch:
    """Changes that are written together or not at all, by family; None stands for a deletion.

    Ranges are deleted first, whenever they were named: what a batch puts into one stays.
    """

    __slots__ = ("due", "history", "keys", "meta", "ranges", "seqnos")

    def __init__(self) -> None:
        self.meta: dict[bytes, bytes | None] = {}
        self.seqnos: dict[bytes, bytes | None] = {}
        self.keys: dict[bytes, bytes | None] = {}
        self.history: dict[bytes, bytes | None] = {}
        self.due: dict[bytes, bytes | None] = {}
        self.ranges: list[tuple[Family, bytes, bytes]] = []

    def delete_range(self, family: Family, bounds: tuple[bytes, bytes]) -> None:
        """Deletes from the first bound up to before the second."""
        self.ranges.append((family, *bounds))

    @property
    def empty(self) -> bool:
        return not (
            self.meta or self.seqnos or self.keys or self.history or self.due or self.ranges
        )


class Engine:
    """The open database of one bucket."""

    def __init__(
        self, path: Path, *, create: bool, write_memory: int, read_memory: int, lenient: bool
    ) -> None:
        """Opens it. ``lenient`` takes what is readable of a damaged log; else that is refused."""
        self.path = path
        if not create and not (path / "CURRENT").exists():
            raise StoreDamaged(path=str(path), problem="its file CURRENT is missing")
        cache = Cache(read_memory)
        plain = _options(write_memory, cache)
        general = _options(write_memory, cache)
        general.create_if_missing(create)
        general.create_missing_column_families(create)
        general.set_db_write_buffer_size(write_memory)
        general.set_max_background_jobs(2)
        general.set_keep_log_file_num(2)
        general.set_max_total_wal_size(4 * write_memory)
        general.set_wal_recovery_mode(
            DBRecoveryMode.point_in_time()
            if lenient
            else DBRecoveryMode.tolerate_corrupted_tail_records()
        )
        families = {
            "default": general,
            "seqnos": _options(write_memory, cache, looked_up=True),
            "keys": _options(write_memory, cache, looked_up=True, walked=False),
            "history": plain,
            "due": plain,
        }
        try:
            self._database = Rdict(str(path), general, families)
        except Exception as error:
            raise translate(error, path) from error
        self.meta = Family(self._database, "default", path)
        self.seqnos = Family(self._database, "seqnos", path)
        self.keys = Family(self._database, "keys", path)
        self.history = Family(self._database, "history", path)
        self.due = Family(self._database, "due", path)
        self._synced = WriteOptions()
        self._synced.sync = True
        self._unsynced = WriteOptions()

    @property
    def families(self) -> tuple[Family, ...]:
        return self.meta, self.seqnos, self.keys, self.history, self.due

    def write(self, batch: Batch, *, sync: bool) -> None:
        """Writes a batch; with ``sync`` it is on disk when this returns."""
        changes = WriteBatch(raw_mode=True)
        for family, first, end in batch.ranges:
            changes.delete_range(first, end, family.handle)
        for family, entries in (
            (self.meta, batch.meta),
            (self.seqnos, batch.seqnos),
            (self.keys, batch.keys),
            (self.history, batch.history),
            (self.due, batch.due),
        ):
            if entries:
                changes.set_default_column_family(family.handle)
                for key in sorted(entries):  # RocksDB takes a quarter less time for these
                    value = entries[key]
                    if value is None:
                        del changes[key]
                    else:
                        changes[key] = value
        try:
            self._database.write(changes, self._synced if sync else self._unsynced)
        except Exception as error:
            raise translate(error, self.path) from error

    @contextmanager
    def named_errors(self) -> Iterator[None]:
        """Turns RocksDB's errors into the store's, for reads that are too many to guard each."""
        try:
            yield
        except Exception as error:
            if type(error) is Exception or isinstance(error, DbClosedError):
                raise translate(error, self.path) from error
            raise

    def sync(self) -> None:
        """Brings everything written so far to disk."""
        _check(self._database.flush_wal, self.path)

    def freeze(self, bounds: tuple[bytes, bytes]) -> FrozenRange:
        """The changes of a range of seqnos as they are now."""
        return FrozenRange(self._database, self.seqnos, bounds)

    def size(self) -> int:
        """Bytes on disk, logs included."""
        total = 0
        with os.scandir(self.path) as entries:
            for entry in entries:
                try:
                    total += entry.stat().st_size
                except FileNotFoundError:  # a file that was just replaced by its successor
                    continue
        return total

    def close(self) -> None:
        """Closes it. The directory stays locked until the last walk over it is gone."""
        for family in self.families:
            family.close()
        _close(self._database)


def _options(
    write_memory: int, cache: Cache, *, looked_up: bool = False, walked: bool = True
) -> Options:
    """A family whose entries are looked up one by one, or walked in order, or both."""
    options = Options(raw_mode=True)
    options.set_compression_type(DBCompressionType.none())  # half the time of a scan otherwise
    # Small tables fit the processor's caches, which halves the time of a write; several are
    # merged into each file, so that there are not too many of those.
    merged = max(write_memory // 4 // _MEMTABLE, 1)
    options.set_write_buffer_size(_MEMTABLE)
    options.set_min_write_buffer_number_to_merge(merged)
    options.set_max_write_buffer_number(2 * merged + 2)
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_bloom_filter(10, False)
    if looked_up:
        # There are many tables, and an entry is in one of them or, for most writes, in none;
        # a filter answers that without a search.
        options.set_memtable_whole_key_filtering(True)
        options.set_memtable_prefix_bloom_ratio(0.1)
    if walked:
        table.set_block_size(16 * 1024)
    options.set_block_based_table_factory(table)
    return options


def _bounded(bounds: tuple[bytes, bytes]) -> ReadOptions:
    """Has a walk end before the second bound, which must live as long as the walk.

    rocksdict hands RocksDB a pointer into it; and its lower bound sets the upper one.
    """
    options = ReadOptions()
    options.set_iterate_upper_bound(bounds[1])
    return options


def _close(database: Rdict) -> None:
    try:
        database.close()
    except Exception as error:
        # It is closed all the same. What could not be moved to files is still in the log.
        logger.warning("closing %s: %s", database, error)


def _check(operation: Callable[[], None], path: Path) -> None:
    try:
        operation()
    except Exception as error:
        raise translate(error, path) from error
