"""RocksDB adapter: the only module that knows rocksdict.

It opens the column families of one bucket, writes batches, iterates over ranges, and converts
RocksDB's error texts to the store's error classes. It knows neither vbuckets nor documents.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from .._extras import extra
from ..errors import (
    StoreClosed,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreNotWritable,
    StoreOutOfFiles,
)

with extra("server"):
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

logger = logging.getLogger("upriver.store")

_MEMTABLE: Final = 2 * 1024 * 1024
#: Files that RocksDB opens besides the existing ones: a log and a table of each column family, its
#: manifest, its info log, and some temporary files.
_SPARE_FILES: Final = 32
#: Bytes for those files before any data is written to them.
_SPARE_BYTES: Final = 1024 * 1024
#: The most files that a bucket keeps open. They are enough for a hundred gigabytes without
#: reopening any, and few enough to leave descriptors for other uses.
MAX_OPEN_FILES: Final = 512

#: Parts of RocksDB's error texts, from strerror or its own status codes, with the error class.
_MEANINGS: Final[
    tuple[tuple[str, type[StoreFull | StoreOutOfFiles | StoreNotWritable | StoreDamaged]], ...]
] = (
    ("Too many open files", StoreOutOfFiles),
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
    """Converts an exception of RocksDB to the store's error class."""
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
    """One column family. Reads use ``data``; write batches refer to it by ``handle``."""

    __slots__ = ("_path", "data", "get", "handle")

    def __init__(self, database: Rdict, name: str, path: Path) -> None:
        self.data = database.get_column_family(name)
        self.handle: ColumnFamily | None = database.get_column_family_handle(name)
        self.get = self.data.get
        self._path = path

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Returns the values of many keys, None for missing ones."""
        found: Any = self.data.get(list[Any](keys))
        return list(found)

    def scan(self, bounds: tuple[bytes, bytes]) -> Iterator[tuple[bytes, bytes]]:
        """Yields the entries from the first bound up to, but not including, the second.

        Iterators of rocksdict end silently at a block that cannot be read. This one raises.
        """
        cursor = self.data.iter(_bounded(bounds))
        cursor.seek(bounds[0])
        while cursor.valid():
            yield cursor.key(), cursor.value()
            cursor.next()
        _check(cursor.status, self._path)

    def scan_back(self, bounds: tuple[bytes, bytes]) -> Iterator[tuple[bytes, bytes]]:
        """Yields the entries of `scan` in reverse order."""
        cursor = self.data.iter(_bounded(bounds))
        cursor.seek_to_last()
        while cursor.valid() and cursor.key() >= bounds[0]:
            yield cursor.key(), cursor.value()
            cursor.prev()
        _check(cursor.status, self._path)

    def last(self, bounds: tuple[bytes, bytes]) -> tuple[bytes, bytes] | None:
        """Returns the last entry of a range."""
        return next(self.scan_back(bounds), None)

    def compact(self) -> None:
        """Compacts the column family, which removes deleted entries from its files."""
        options = CompactOptions()
        options.set_bottommost_level_compaction(BottommostLevelCompaction.force_optimized())
        options.set_exclusive_manual_compaction(False)
        self.data.compact_range(None, None, options)


class FrozenRange:
    """A frozen view of the values of a range, and the last entry of that range.

    Until it is released, RocksDB keeps the data of the view on disk and in memory.
    """

    __slots__ = ("_bounds", "last", "values")

    def __init__(self, database: Rdict, family: Family, bounds: tuple[bytes, bytes]) -> None:
        self._bounds = bounds  # RocksDB keeps a pointer to these
        # rocksdict's iterators over a snapshot ignore that snapshot. But each iterator has its own
        # view, so two iterators agree if nothing was written in between.
        while True:
            written = database.latest_sequence_number()
            #: Fast, but it ends silently at a block that cannot be read.
            self.values: Iterator[bytes] = family.data.values(
                from_key=bounds[0], read_opt=_bounded(bounds)
            )
            self.last = family.last(bounds)
            if database.latest_sequence_number() == written:
                return


class FrozenEntries:
    """A frozen view of a range of one column family, and of another family at the same time.

    Until it is released, RocksDB keeps the data of the view on disk and in memory.
    """

    __slots__ = ("_bounds", "_cursor", "_others", "_path")

    def __init__(
        self, database: Rdict, family: Family, others: Family, bounds: tuple[bytes, bytes]
    ) -> None:
        self._bounds = bounds  # RocksDB keeps a pointer to these
        self._path = family._path
        while True:  # as in `FrozenRange`: two iterators agree if nothing was written in between
            written = database.latest_sequence_number()
            self._cursor = family.data.iter(_bounded(bounds))
            self._cursor.seek(bounds[0])
            self._others = others.data.iter()
            self._others.seek_to_first()
            if database.latest_sequence_number() == written:
                return

    def next(self) -> tuple[bytes, bytes] | None:
        """Returns the next entry; None at the end."""
        cursor = self._cursor
        if not cursor.valid():
            _check(cursor.status, self._path)
            return None
        entry = cursor.key(), cursor.value()
        cursor.next()
        return entry

    def rewind(self) -> None:
        """Moves back to the first entry."""
        self._cursor.seek(self._bounds[0])

    def other(self, key: bytes) -> bytes | None:
        """Returns the value of a key in the other column family."""
        self._others.seek(key)
        if self._others.valid() and self._others.key() == key:
            return bytes(self._others.value())
        _check(self._others.status, self._path)
        return None


class Batch:
    """A write batch: changes by column family, written atomically. None means a deletion.

    Range deletions are applied first, in whatever order they were added: entries that the batch
    puts into such a range stay.
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
        """Deletes from the first bound up to, but not including, the second."""
        self.ranges.append((family, *bounds))

    @property
    def empty(self) -> bool:
        return not (
            self.meta or self.seqnos or self.keys or self.history or self.due or self.ranges
        )


class Database:
    """The open database of one bucket."""

    def __init__(
        self, path: Path, *, create: bool, write_memory: int, read_memory: int, lenient: bool
    ) -> None:
        """Opens the database. ``lenient`` reads a damaged log up to the damage; else it raises."""
        self.path = path
        self._write_memory = write_memory
        self._cache = Cache(read_memory)
        self._lenient = lenient
        self._synced = WriteOptions()
        self._synced.sync = True
        self._unsynced = WriteOptions()
        self._open(create=create)

    def _open(self, *, create: bool) -> None:
        path, write_memory, cache = self.path, self._write_memory, self._cache
        if not create and not (path / "CURRENT").exists():
            raise StoreDamaged(path=str(path), problem="its file CURRENT is missing")
        plain = _options(write_memory, cache)
        general = _options(write_memory, cache)
        general.create_if_missing(create)
        general.create_missing_column_families(create)
        general.set_db_write_buffer_size(write_memory)
        general.set_max_background_jobs(2)
        general.set_keep_log_file_num(2)
        general.set_max_open_files(MAX_OPEN_FILES)
        general.set_max_total_wal_size(4 * write_memory)
        general.set_wal_recovery_mode(
            DBRecoveryMode.point_in_time()
            if self._lenient
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

    def reopen(self) -> None:
        """Closes the database and opens it again, the only way to write after an error.

        All iterators must have ended. Concurrent reads raise `StoreClosed`. Call `require_room`
        first: if opening fails, the database stays closed.
        """
        self._close()
        self._open(create=False)

    def require_room(self) -> None:
        """Raises unless there are enough file descriptors and disk space to open the database."""
        logs = files = 0
        taken: list[int] = []
        trial = self.path / "room.trial"
        try:
            with os.scandir(self.path) as entries:
                for entry in entries:
                    files += 1
                    logs += entry.stat().st_size if entry.name.endswith(".log") else 0
            for _ in range(files + _SPARE_FILES):
                taken.append(os.open(self.path, os.O_RDONLY | os.O_CLOEXEC))
            # Opening writes the content of the logs to sorted files.
            taken.append(os.open(trial, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            os.posix_fallocate(taken[-1], 0, logs + _SPARE_BYTES)
        except OSError as error:
            raise translate(error, self.path) from error
        finally:
            for descriptor in taken:
                os.close(descriptor)
            trial.unlink(missing_ok=True)

    @property
    def families(self) -> tuple[Family, ...]:
        return self.meta, self.seqnos, self.keys, self.history, self.due

    def write(self, batch: Batch, *, sync: bool) -> None:
        """Writes a batch. With ``sync`` it is on disk when this returns."""
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
                for key in sorted(entries):  # RocksDB writes sorted keys in a quarter less time
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
        """Converts RocksDB's errors in a block of reads. To guard each read would cost too much."""
        try:
            yield
        except Exception as error:
            if type(error) is Exception or isinstance(error, DbClosedError):
                raise translate(error, self.path) from error
            raise

    def sync(self) -> None:
        """Syncs the write-ahead log to disk."""
        _check(self._database.flush_wal, self.path)

    def freeze(self, bounds: tuple[bytes, bytes]) -> FrozenRange:
        """Returns a frozen view of a range in seqnos."""
        return FrozenRange(self._database, self.seqnos, bounds)

    def freeze_keys(self, bounds: tuple[bytes, bytes]) -> FrozenEntries:
        """Returns a frozen view of a range in keys, and of seqnos at the same time."""
        return FrozenEntries(self._database, self.keys, self.seqnos, bounds)

    def freeze_twice(self, bounds: tuple[bytes, bytes]) -> tuple[FrozenRange, FrozenRange]:
        """Returns two frozen views of a range in seqnos at the same time."""
        while True:
            written = self._database.latest_sequence_number()
            pair = self.freeze(bounds), self.freeze(bounds)
            if self._database.latest_sequence_number() == written:
                return pair

    def size(self) -> int:
        """Returns the bytes on disk, including logs."""
        total = 0
        with os.scandir(self.path) as entries:
            for entry in entries:
                try:
                    total += entry.stat().st_size
                except FileNotFoundError:  # a compaction replaced the file meanwhile
                    continue
        return total

    def close(self) -> None:
        """Closes the database. The directory stays locked until all iterators are released."""
        problem = self._close()
        if problem is not None:
            logger.warning("closing %s: %s", self.path, problem)

    def _close(self) -> Exception | None:
        """Closes the database, and returns the error if there was one.

        It is closed even then. Data that could not be flushed to files is still in the log.
        """
        problem = None
        for family in self.families:
            family.handle = None
        for data in (*(family.data for family in self.families), self._database):
            try:
                data.close()
            except Exception as error:
                problem = error
        return problem


def _options(
    write_memory: int, cache: Cache, *, looked_up: bool = False, walked: bool = True
) -> Options:
    """Returns the options of a column family for point lookups, for iteration, or for both."""
    options = Options(raw_mode=True)
    options.set_compression_type(DBCompressionType.none())  # decompressing takes half of a scan
    # Small memtables fit the processor's caches, which halves the time of a write. Several are
    # merged into each file, so that there are not too many files.
    merged = max(write_memory // 4 // _MEMTABLE, 1)
    options.set_write_buffer_size(_MEMTABLE)
    options.set_min_write_buffer_number_to_merge(merged)
    options.set_max_write_buffer_number(2 * merged + 2)
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_bloom_filter(10, False)
    table.set_cache_index_and_filter_blocks(True)  # else they grow outside of the cache
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    if looked_up:
        # There are many memtables, and a key is in one of them or, for most writes, in none. A
        # Bloom filter finds this out without a search.
        options.set_memtable_whole_key_filtering(True)
        options.set_memtable_prefix_bloom_ratio(0.1)
    if walked:
        table.set_block_size(16 * 1024)
    options.set_block_based_table_factory(table)
    return options


def _bounded(bounds: tuple[bytes, bytes]) -> ReadOptions:
    """Returns read options with an upper bound. ``bounds`` must live as long as the iterator.

    rocksdict gives RocksDB a pointer to it. No lower bound is set, because rocksdict's setter for
    the lower bound sets the upper one.
    """
    options = ReadOptions()
    options.set_iterate_upper_bound(bounds[1])
    return options


def _check(operation: Callable[[], None], path: Path) -> None:
    try:
        operation()
    except Exception as error:
        raise translate(error, path) from error
