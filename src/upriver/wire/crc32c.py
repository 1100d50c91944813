"""CRC-32C (Castagnoli), which Couchbase gives for the body of a document.

Snappy's framing has this checksum for every 64 KiB, so that is where it is taken from, at the speed
of the compression; checksums of neighbours are combined as zlib does it, by multiplying with the
matrix of so many zero bits. A loop over the bytes in Python would take seconds for a large one.
"""

from __future__ import annotations

import functools
from typing import Final

import cramjam

_POLYNOMIAL: Final = 0x82F63B78
_BLOCK: Final = 64 * 1024
#: Behind the frame that identifies the stream and the head of a block's own.
_CHECKSUM_AT: Final = 14
_MASK: Final = 0xA282EAD8
_ALL: Final = 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """The checksum of some bytes."""
    checksum = 0
    for start in range(0, len(data), _BLOCK):
        block = data[start : start + _BLOCK]
        checksum = _times(_zeros(len(block)), checksum) ^ _of_block(block)
    return checksum


def _of_block(block: bytes) -> int:
    framed = bytes(cramjam.snappy.compress(block))
    masked = int.from_bytes(framed[_CHECKSUM_AT : _CHECKSUM_AT + 4], "little")
    rotated = (masked - _MASK) & _ALL
    return (rotated >> 17 | rotated << 15) & _ALL


#: A matrix over single bits: what becomes of each bit of a checksum.
_Matrix = tuple[int, ...]


def _times(matrix: _Matrix, checksum: int) -> int:
    total = 0
    for row in matrix:
        if checksum & 1:
            total ^= row
        checksum >>= 1
    return total


@functools.lru_cache(maxsize=64)
def _zeros(count: int) -> _Matrix:
    """What so many zero bytes behind it make of a checksum."""
    result: _Matrix = tuple(1 << bit for bit in range(32))
    power: _Matrix = (_POLYNOMIAL, *(1 << bit for bit in range(31)))  # one zero bit
    bits = 8 * count
    while bits:
        if bits & 1:
            result = tuple(_times(power, row) for row in result)
        power = tuple(_times(power, row) for row in power)
        bits >>= 1
    return result
