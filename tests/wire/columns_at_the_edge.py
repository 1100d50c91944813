"""Hostile buffers, and columns too small for them, that end where forbidden memory begins.

Run as a program: a read or write outside any of them ends it with a signal.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import random

from columns_reference import CHANGES, EXPIRATION_EXTRAS, STREAM_ID, frame, mutation_extras

from upriver.errors import DecodeError
from upriver.wire.columns import __impl__, _speedups, decode, patch_opaque
from upriver.wire.columns.result import FIXED

ROOM = 16 * mmap.PAGESIZE


def fenced_memory() -> memoryview:
    """Writable bytes with a page behind them that nobody may read."""
    memory = mmap.mmap(-1, ROOM + mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(start + ROOM), mmap.PAGESIZE, 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    return memoryview(memory)[:ROOM]


def hostile_buffers(choose: random.Random) -> list[bytes]:
    """Frames that promise more than there is, and frames changed where lengths and ids stand."""
    buffers = []
    for extras, opcode in ((mutation_extras(), 0x57), (EXPIRATION_EXTRAS, 0x59)):
        for size in range(1, 7):
            buffers.append(frame(opcode, extras, b"\xff" * size, b""))
            buffers.append(frame(opcode, extras, b"\xff" * size, b"", key_length=250))
        for size in range(len(extras)):
            buffers.append(frame(opcode, extras[:size], b"", b"", extras_length=len(extras)))
        for size in range(4):
            cut = frame(opcode, b"", b"", STREAM_ID[:size], magic=0x08, extras_length=len(extras))
            buffers.append(cut[:2] + b"\x03" + cut[3:])
    kinds = list(CHANGES.values())
    for _ in range(60):
        frames = bytearray()
        for _ in range(choose.randrange(1, 4)):
            one = bytearray(choose.choice(kinds))
            for _ in range(choose.randrange(4)):
                places = [2, 3, 4, 10, 11, 24, *range(len(one) - 8, len(one))]
                one[choose.choice(places)] = choose.choice([0, 1, 3, 31, 0x22, 0x7F, 0x80, 0xFF])
            frames += one
        buffers.append(bytes(frames))
    return buffers


def try_buffers() -> None:
    fenced = fenced_memory()
    for buffer in hostile_buffers(random.Random(11)):
        for size in range(len(buffer) + 1):
            place = fenced[ROOM - size :]
            place[:] = buffer[:size]
            for collections in (False, True):
                try:
                    decode(place, collections=collections)
                except DecodeError as problem:
                    assert not problem.usable
            try:
                patch_opaque(place, 0xFFFFFFFF)
            except ValueError as problem:
                assert "no whole frame" in str(problem)


def try_columns() -> None:
    data = (CHANGES["mutation"] + CHANGES["deletion 1"] + bytes.fromhex("805c") + bytes(22)) * 3
    _, rows, key, value, controls = _speedups.measure(data, True)
    fences = [fenced_memory() for _ in range(len(FIXED) + 5)]
    few = itertools.product(
        range(rows + 1), (0, key - 1, key), (0, value - 1, value), range(controls + 1)
    )
    for room in few:
        sizes = [width * room[0] for width in FIXED.values()]
        offsets = 4 * (room[0] + 1)
        sizes += [offsets, room[1], offsets, room[2], 12 * room[3]]
        columns = [fence[ROOM - size :] for fence, size in zip(fences, sizes, strict=True)]
        try:
            _speedups.fill(data, True, *columns)
        except ValueError as problem:
            assert "measure" in str(problem)
        else:
            assert room == (rows, key, value, controls)


if __name__ == "__main__":
    assert __impl__ == "c"
    try_buffers()
    try_columns()
