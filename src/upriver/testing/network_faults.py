"""Random faults of one direction of a connection, reproducible by a seed; without I/O.

Faults lie at positions in the stream of bytes and not in the chunks in which it arrives, so the
same bytes meet the same faults however they are split.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Literal, NamedTuple

from ..errors import ConfigError, DecodeError
from ..wire.framing import packet_length
from ..wire.header import MAGICS

#: In every header: the offset of the body's length (big-endian), and the bytes needed to know it.
_OPCODE_AT: Final = 1
_LENGTH_AT: Final = 8
_LENGTH_KNOWN: Final = 12
#: In a memcached header only: the opaque (big-endian).
_OPAQUE_AT: Final = 12
#: First bytes that begin no packet of any draft.
_NO_MAGICS: Final = tuple(sorted(set(range(0x20, 0x100)) - MAGICS))
_HIGHEST_BIT: Final = 0x80


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Settings for the random faults of one direction. Distances are averages, in bytes.

        Faults(cut_every=100_000, delay=0.002, fragment=7)

    ``cut_every`` resets the connection. ``truncate_every`` closes it in order, but in the middle of
    a transfer. ``corrupt_every`` changes a byte: with "headers" the magic, the length or the opaque
    of a packet, so that a client must notice; with "anywhere" any bit, which in a value cannot be
    noticed without checksums. ``delay`` is the longest delay of a chunk in seconds, ``fragment``
    the most bytes that are forwarded at once.
    """

    cut_every: int | None = None
    truncate_every: int | None = None
    corrupt_every: int | None = None
    corrupt_where: Literal["headers", "anywhere"] = "headers"
    delay: float = 0.0
    fragment: int | None = None

    def __post_init__(self) -> None:
        for name in ("cut_every", "truncate_every", "corrupt_every", "fragment"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise ConfigError(f"{name} is a number of bytes, at least 1, and not {number}")
        if self.delay < 0:
            raise ConfigError(f"delay cannot be negative, it is {self.delay}")
        if self.corrupt_where not in ("headers", "anywhere"):
            raise ConfigError(
                f'corrupt_where is "headers" or "anywhere", not {self.corrupt_where!r}'
            )


class Ending(Enum):
    """How a fault ends a connection."""

    #: By a reset; bytes sent before it may be lost.
    CUT = auto()
    #: By an orderly close; everything sent before it arrives.
    TRUNCATED = auto()


class FaultedChunk(NamedTuple):
    """The bytes to forward for a chunk, after its faults."""

    data: bytes
    corruptions: int = 0
    #: Whether and how the connection ends after these bytes.
    ending: Ending | None = None
    #: Whether they end with the packet after which the connection was to be ended.
    met: bool = False


class FaultInjector:
    """Applies faults to one direction of one connection."""

    def __init__(self, seed: str) -> None:
        self.faults = Faults()
        self._random = random.Random(seed)
        #: Each kind has its own random numbers, so that enabling one does not move the others.
        self._cut = _FaultPositions(f"{seed} cut")
        self._truncation = _FaultPositions(f"{seed} truncation")
        self._corruption = _FaultPositions(f"{seed} corruption")
        self._packets = _PacketTracker()
        self._passed = 0
        #: Corruptions of header bytes that have not passed yet, by position.
        self._pending_corruptions: dict[int, Callable[[int], int]] = {}

    def configure(self, faults: Faults) -> None:
        """Applies these faults from the current position on."""
        self.faults = faults
        self._cut.begin(self._passed, faults.cut_every)
        self._truncation.begin(self._passed, faults.truncate_every)
        self._corruption.begin(self._passed, faults.corrupt_every)

    def apply(self, chunk: bytes, behind: int | None = None) -> FaultedChunk:
        """The next chunk with its faults; the connection ends after a packet with this opcode."""
        ending = None
        first = min(self._cut.next, self._truncation.next)
        if first < self._passed + len(chunk):
            chunk = chunk[: int(first) - self._passed]
            ending = Ending.CUT if first == self._cut.next else Ending.TRUNCATED
        # Packets are tracked with any faults: corruption of headers may be enabled later.
        begin, ends = self._packets.follow(chunk)
        heads = [self._passed + at for at in begin]
        met = next((end for end, opcode in ends if opcode == behind), None)
        if met is not None:
            chunk, ending = chunk[:met], Ending.TRUNCATED
            heads = [head for head in heads if head < self._passed + met]
        data = bytearray(chunk)
        if self.faults.corrupt_where == "headers":
            corruptions = self._corrupt_headers(data, heads)
        else:
            corruptions = self._flip_bits(data)
        self._passed += len(chunk)
        return FaultedChunk(bytes(data), corruptions, ending, met is not None)

    def fragments(self, data: bytes) -> Iterator[bytes]:
        """The pieces in which to forward the data."""
        if self.faults.fragment is None:
            yield data
            return
        at = 0
        while at < len(data):
            size = self._random.randint(1, self.faults.fragment)
            yield data[at : at + size]
            at += size

    def pause(self) -> float:
        """The delay of the next chunk in seconds."""
        return self._random.uniform(0, self.faults.delay) if self.faults.delay else 0.0

    def _corrupt_headers(self, data: bytearray, heads: list[int]) -> int:
        for head in heads:
            if self._corruption.next <= head:
                at, change = self._header_corruption(data[head - self._passed])
                self._pending_corruptions[head + at] = change
                self._corruption.step(head)
        due = [at for at in self._pending_corruptions if at < self._passed + len(data)]
        for at in due:
            change = self._pending_corruptions.pop(at)
            data[at - self._passed] = change(data[at - self._passed])
        return len(due)

    def _header_corruption(self, first: int) -> tuple[int, Callable[[int], int]]:
        """An offset in a header, and a change to that byte which every receiver must detect."""
        no_magic = self._random.choice(_NO_MAGICS)
        choices: list[tuple[int, Callable[[int], int]]] = [
            (0, lambda byte: no_magic),
            (_LENGTH_AT, lambda byte: byte | _HIGHEST_BIT),
        ]
        if first in MAGICS:
            choices.append((_OPAQUE_AT, lambda byte: byte ^ _HIGHEST_BIT))
        return self._random.choice(choices)

    def _flip_bits(self, data: bytearray) -> int:
        count = 0
        while self._corruption.next < self._passed + len(data):
            at = int(self._corruption.next)
            data[at - self._passed] ^= 1 << self._random.randrange(8)
            self._corruption.step(at)
            count += 1
        return count


class _FaultPositions:
    """Positions of one kind of fault, at exponentially distributed distances."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self._every: int | None = None
        self.next = math.inf

    def begin(self, position: int, every: int | None) -> None:
        self._every = every
        self.step(position)

    def step(self, position: int) -> None:
        """Draws the next position after the given one."""
        if self._every is None:
            self.next = math.inf
        else:
            self.next = position + 1 + int(self._random.expovariate(1 / self._every))


class _PacketTracker:
    """Follows the packets of a stream from header to header."""

    def __init__(self) -> None:
        self._header = bytearray()
        #: Bytes of the current packet that are still to come.
        self._left = 0
        self._opcode = 0
        self._lost = False

    def follow(self, chunk: bytes) -> tuple[list[int], list[tuple[int, int]]]:
        """Offsets in the next chunk where packets begin, and (end, opcode) of those that end in it.

        Both stay empty after bytes that are no packet.
        """
        heads, ends = [], []
        at, end = 0, len(chunk)
        while at < end and not self._lost:
            if self._left:
                skipped = min(self._left, end - at)
                self._left -= skipped
                at += skipped
                if not self._left:
                    ends.append((at, self._opcode))
                continue
            if not self._header:
                heads.append(at)
            part = chunk[at : at + _LENGTH_KNOWN - len(self._header)]
            self._header += part
            at += len(part)
            if len(self._header) == _LENGTH_KNOWN:
                self._begin()
        return heads, ends

    def _begin(self) -> None:
        try:
            length = packet_length(self._header)
        except DecodeError:
            self._lost = True
        else:
            assert length is not None
            self._left = length - _LENGTH_KNOWN
            self._opcode = self._header[_OPCODE_AT]
        self._header.clear()
