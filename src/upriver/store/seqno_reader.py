"""Backfill: reads the changes of a vbucket from a seqno on, as stored frames, in chunks.

A backfill holds a frozen view of the store until it is closed, however long that takes. Each key
is in it once. Compaction cannot remove the data of the view until the backfill is closed or
garbage-collected.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol, Self

from ..errors import StoreClosed, StoreDamaged
from ..model import Snapshot
from ..wire import canonical
from .rocksdb import Database, FrozenRange
from .rocksdb_layout import vbucket_range

#: Large enough that joining costs little per frame, and small enough for a processor cache.
DEFAULT_CHUNK: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class FrameChunk:
    """A run of complete frames, joined."""

    frames: bytes
    count: int
    last_seqno: int


class Backfill:
    """The changes of a vbucket above ``start_seqno``. Only one thread at a time may read it."""

    #: The store keeps no changes in memory besides its files, so every snapshot is a disk
    #: snapshot: versions that were replaced before it began are left out.
    from_disk: Final = True

    def __init__(self, path: str, vbucket: int, start_seqno: int, changes: FrozenRange) -> None:
        """``changes`` is a frozen view of the vbucket above ``start_seqno``."""
        self.vbucket = vbucket
        if changes.last is None:
            self.snapshot = Snapshot(start_seqno, start_seqno)
        else:
            self.snapshot = Snapshot(start_seqno + 1, canonical.seqno_of(changes.last[1]))
        self._path = path
        self._position = start_seqno
        self._lock = threading.Lock()
        self._changes: FrozenRange | None = changes

    @classmethod
    def open(cls, engine: Database, vbucket: int, start_seqno: int) -> Self:
        """Opens a backfill of the current changes."""
        changes = engine.freeze(vbucket_range(vbucket, start_seqno))
        return cls(str(engine.path), vbucket, start_seqno, changes)

    @classmethod
    def open_twice(cls, engine: Database, vbucket: int, start_seqno: int) -> tuple[Self, Self]:
        """Opens two backfills of the changes at the same point in time."""
        one, other = engine.freeze_twice(vbucket_range(vbucket, start_seqno))
        path = str(engine.path)
        return cls(path, vbucket, start_seqno, one), cls(path, vbucket, start_seqno, other)

    @property
    def position(self) -> int:
        """The last seqno that was read."""
        return self._position

    def read(self, max_bytes: int = DEFAULT_CHUNK) -> FrameChunk | None:
        """Returns frames until ``max_bytes`` are reached, at least one; None at the end."""
        with self._lock:
            changes = self._changes
            if changes is None:
                raise StoreClosed(path=self._path, problem="the backfill was closed")
            frames: list[bytes] = []
            room = max_bytes
            keep = frames.append
            for frame in changes.values:
                keep(frame)
                room -= len(frame)
                if room <= 0:
                    break
            if frames:
                self._position = canonical.seqno_of(frames[-1])
                return FrameChunk(b"".join(frames), len(frames), self._position)
        if self._position < self.snapshot.end:
            # The iterator ends silently at a block that it cannot read.
            raise StoreDamaged(
                path=self._path,
                problem=f"vbucket {self.vbucket} cannot be read beyond seqno {self._position}",
            )
        return None

    def close(self) -> None:
        """Releases the frozen view. Further reads raise `StoreClosed`."""
        with self._lock:
            self._changes = None

    def __iter__(self) -> Iterator[FrameChunk]:
        while (chunk := self.read()) is not None:
            yield chunk

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Reader(Protocol):
    """An object that holds a frozen view of the store."""

    def close(self) -> None: ...


class OpenReaders:
    """The open backfills and scans of a bucket, by weak reference."""

    def __init__(self) -> None:
        self._readers: weakref.WeakSet[Reader] = weakref.WeakSet()
        self._lock = threading.Lock()

    def add(self, reader: Reader) -> None:
        with self._lock:
            self._readers.add(reader)

    def close_all(self) -> None:
        """Closes all of them. Their next read raises `StoreClosed`, and the owner opens another."""
        with self._lock:
            found = list(self._readers)
        for reader in found:
            reader.close()

    def __len__(self) -> int:
        return len(self._readers)
