"""Reading a vbucket from a seqno on: the frames as they are stored, in order, in chunks.

A backfill holds one frozen view of the store from its first byte to its last, however long its
owner takes; each key is in it once. What it holds back from compaction is freed when it is
closed, or when nobody refers to it any more.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Self

from ..errors import StoreClosed, StoreDamaged
from ..model import Snapshot
from .engine import Engine, FrozenRange
from .layout import frame_seqno, vbucket_range

__all__ = ["Backfill", "Chunk"]

#: Enough that joining costs little for each frame, and little enough for a cache.
DEFAULT_CHUNK: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some whole frames, joined."""

    frames: bytes
    count: int
    last_seqno: int


class Backfill:
    """The changes of a vbucket above ``start_seqno``. Reading it is for one thread at a time."""

    #: This store keeps no changes in memory beside their files, so every snapshot is a disk
    #: snapshot: any version that was replaced before it began is left out.
    from_disk: Final = True

    def __init__(self, engine: Engine, vbucket: int, start_seqno: int) -> None:
        self.vbucket = vbucket
        changes = engine.freeze(vbucket_range(vbucket, start_seqno))
        if changes.last is None:
            self.snapshot = Snapshot(start_seqno, start_seqno)
        else:
            self.snapshot = Snapshot(start_seqno + 1, frame_seqno(changes.last[1]))
        self._path = str(engine.path)
        self._position = start_seqno
        self._lock = threading.Lock()
        self._changes: FrozenRange | None = changes

    @property
    def position(self) -> int:
        """The last seqno that was read."""
        return self._position

    def read(self, max_bytes: int = DEFAULT_CHUNK) -> Chunk | None:
        """The next frames: at least one, and no more after ``max_bytes``; None at the end."""
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
                self._position = frame_seqno(frames[-1])
                return Chunk(b"".join(frames), len(frames), self._position)
        if self._position < self.snapshot.end:
            # The iterator does not say so itself when it meets a block it cannot read.
            raise StoreDamaged(
                path=self._path,
                problem=f"vbucket {self.vbucket} cannot be read beyond seqno {self._position}",
            )
        return None

    def close(self) -> None:
        """Lets go of the view; reading ends."""
        with self._lock:
            self._changes = None

    def __iter__(self) -> Iterator[Chunk]:
        while (chunk := self.read()) is not None:
            yield chunk

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
