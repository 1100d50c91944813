"""The keys of the documents that are live in some places, in bounded memory.

Keys come with whether their document lives; the last word counts. When many are held, they go to
files, one for each place. In the end a place is gone through in parts: those of its keys whose
check sums have one remainder at a time, so that no more than a part is in memory.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from zlib import crc32

#: Keys in memory: about 25 MB of them.
_MOST: Final = 200_000
#: Whether the document lives, and the length of the key that follows.
_HEAD: Final = struct.Struct(
    ">"
    "?"  # lives
    "H"  # length
)
#: Bytes that are read at a time.
_PIECE: Final = 1024 * 1024


def remainder(key: bytes, parts: int) -> int:
    """The part of a key; the bits that decide on its vbucket do not."""
    return (crc32(key) & 0xFFFF) % parts


@dataclass(frozen=True, slots=True)
class KeyPart:
    """The live keys of a place whose remainder is ``part``."""

    keys: set[bytes]
    part: int
    parts: int


@dataclass(slots=True)
class _Place:
    """What is known of one place."""

    #: By key whether its document lives, as far as it is in memory.
    held: dict[bytes, bool] = field(default_factory=dict)
    file: Path | None = None
    #: Keys in the file.
    spilled: int = 0


class LiveKeys:
    """The live keys of several places."""

    def __init__(self, most: int = _MOST) -> None:
        self._places: dict[Hashable, _Place] = {}
        self._held = 0
        self._most = most
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    def add(self, place: Hashable, key: bytes, *, lives: bool) -> None:
        held = self._places.setdefault(place, _Place()).held
        before = len(held)
        held[key] = lives
        self._held += len(held) - before
        if self._held >= self._most:
            self._spill()

    def forget(self, place: Hashable) -> None:
        """What was said of a place does not count."""
        gone = self._places.pop(place, None)
        if gone is not None:
            self._held -= len(gone.held)
            if gone.file is not None:
                gone.file.unlink()

    def take(self, place: Hashable) -> Iterator[KeyPart]:
        """The live keys of a place in parts, at least one; the place is forgotten."""
        found = self._places.get(place, _Place())
        parts = 1 + (found.spilled + len(found.held)) // self._most
        for part in range(parts):
            keys: set[bytes] = set()
            for key, lives in _records(found):
                if parts == 1 or remainder(key, parts) == part:
                    keys.add(key) if lives else keys.discard(key)
            yield KeyPart(keys, part, parts)
        self.forget(place)

    def close(self) -> None:
        if self._directory is not None:
            self._directory.cleanup()

    def _spill(self) -> None:
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix="upriver-keys-")
        for number, place in enumerate(self._places.values()):
            if not place.held:
                continue
            if place.file is None:
                place.file = Path(self._directory.name) / f"{number}-{id(place)}"
            with open(place.file, "ab") as opened:
                for key, lives in place.held.items():
                    opened.write(_HEAD.pack(lives, len(key)) + key)
            place.spilled += len(place.held)
            place.held = {}
        self._held = 0


def _records(place: _Place) -> Iterator[tuple[bytes, bool]]:
    """Keys and whether they live, in the order in which that was said."""
    if place.file is not None:
        with open(place.file, "rb", buffering=_PIECE) as opened:
            while head := opened.read(_HEAD.size):
                lives, length = _HEAD.unpack(head)
                yield opened.read(length), lives
    yield from place.held.items()
