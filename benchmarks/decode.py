"""How fast frames become Arrow columns: a loop with struct, numpy, the C accelerator.

A plain copy of the same bytes stands beside them, as the most that memory allows. All of them
read the same chunks of whole frames, in one run, each the best of several rounds.
"""

from __future__ import annotations

import argparse
import random
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from machine import machine_line

from upriver.model import Op
from upriver.wire import canonical
from upriver.wire.columns import SCHEMA
from upriver.wire.columns.interface import Implementation
from upriver.wire.columns.numpy_path import NUMPY
from upriver.wire.dialects import Dcp
from upriver.wire.messages import SnapshotMarker

C: Implementation | None
try:
    from upriver.wire.columns import c_path

    C = c_path.C
except ImportError:
    C = None

KIB, MIB = 1024, 1024 * 1024
CHUNK_SIZES = (64 * KIB, 256 * KIB, MIB, 4 * MIB)
VBUCKETS = 1024

Decoder = Callable[[bytes], object]


@dataclass(frozen=True)
class Chunk:
    data: bytes
    messages: int


# ---- traffic -----------------------------------------------------------------------------


def frames(total: int, value_size: int, *, mixed: bool) -> Iterator[bytes]:
    """Frames with keys of about 20 bytes, in the default collection, until there are enough."""
    choose = random.Random(1)
    values = [choose.randbytes(round(value_size * choose.uniform(0.9, 1.1))) for _ in range(500)]
    marker = Dcp().encode(SnapshotMarker(vbucket=1, start=1, end=2))
    size = seqno = 0
    while size < total:
        seqno += 1
        vbucket, key = choose.randrange(VBUCKETS), b"\0customer::%09d" % choose.randrange(10**9)
        luck = choose.random() if mixed else 0.0
        if luck < 0.91:
            frame = canonical.mutation(
                vbucket, seqno, 1, seqno << 16, 0x02000006, 0, 1, key, choose.choice(values)
            )
        elif luck < 0.99:
            frame = canonical.deletion(vbucket, seqno, 2, seqno << 16, 1_700_000_000, 0, key)
        else:
            frame = marker
        size += len(frame)
        yield frame


def in_chunks(traffic: list[bytes], size: int) -> list[Chunk]:
    """Whole frames, as many as fit; what is left over at the end is dropped."""
    chunks = []
    pending: list[bytes] = []
    filled = 0
    for frame in traffic:
        if filled + len(frame) > size:
            chunks.append(Chunk(b"".join(pending), len(pending)))
            pending, filled = [], 0
        pending.append(frame)
        filled += len(frame)
    return chunks


# ---- decoders ----------------------------------------------------------------------------

_HEADER = struct.Struct(">BBHBBHIIQ")
_MUTATION = struct.Struct(">QQII")
_DELETION = struct.Struct(">QQI")
_OPS = {0x57: 0, 0x58: 1, 0x59: 2}  # places in the dictionary of the column
_OP_NAMES = pa.array([op.value for op in Op])


def struct_loop(data: bytes) -> pa.RecordBatch:
    """What one writes first: a loop, a list for each column, then Arrow. It checks nothing.

    It knows the default collection only, whose id is one byte.
    """
    rows = []
    at, end = 0, len(data)
    while at < end:
        _, opcode, kl, el, datatype, vbucket, body, opaque, cas = _HEADER.unpack_from(data, at)
        following = at + 24 + body
        op = _OPS.get(opcode)
        if op is not None:
            if op == 0:
                seqno, rev, flags, expiry = _MUTATION.unpack_from(data, at + 24)
            else:
                seqno, rev, expiry = _DELETION.unpack_from(data, at + 24)
                flags = 0
            key_at = at + 24 + el
            value_at = key_at + kl
            key, value = data[key_at + 1 : value_at], data[value_at:following]
            rows.append(
                (op, vbucket, seqno, rev, cas, flags, expiry, datatype, 0, key, value, opaque)
            )
        at = following
    ops, *columns = map(list, zip(*rows, strict=True))
    arrays = [pa.DictionaryArray.from_arrays(pa.array(ops, pa.int8()), _OP_NAMES)]
    fields = list(SCHEMA)[1:]
    arrays += [pa.array(cells, field.type) for cells, field in zip(columns, fields, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def decoders() -> dict[str, Decoder]:
    found: dict[str, Decoder] = {
        "struct loop": struct_loop,
        "numpy": lambda data: NUMPY.decode(data, collections=True).batch,
    }
    if C is not None:
        accelerated = C
        found["C"] = lambda data: accelerated.decode(data, collections=True).batch
    found["memory copy"] = bytearray
    return found


# ---- measuring ---------------------------------------------------------------------------


def best_time(decode: Decoder, chunks: list[Chunk], rounds: int) -> float:
    """Seconds for all chunks, in the best round."""
    best = float("inf")
    for _ in range(rounds):
        begin = time.perf_counter()
        for chunk in chunks:
            decode(chunk.data)
        best = min(best, time.perf_counter() - begin)
    return best


def check_equal(chunk: Chunk) -> None:
    """A figure counts only if the result is right."""
    wanted = struct_loop(chunk.data)
    for name, decode in decoders().items():
        if name != "memory copy" and decode(chunk.data) != wanted:
            raise SystemExit(f"{name} disagrees with the struct loop")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="less traffic, fewer rounds")
    options = parser.parse_args()
    total, rounds = (8 * MIB, 3) if options.quick else (32 * MIB, 7)
    print(machine_line("numpy", "pyarrow"))
    print(f"{total // MIB} MiB of frames in chunks, best of {rounds} rounds")
    if C is None:
        print("the accelerator is not built, so its rows are missing")
    kinds = {
        "200 B values": (200, False),
        "1 KiB values": (1024, False),
        "mixed, 200 B values (91 % mutations, 8 % deletions, 1 % markers)": (200, True),
    }
    for title, (value_size, mixed) in kinds.items():
        traffic = list(frames(total, value_size, mixed=mixed))
        check_equal(in_chunks(traffic, MIB)[0])
        print(f"\n{title}\n")
        print("| chunk | " + " | ".join(decoders()) + " |")
        print("|---" * (len(decoders()) + 1) + "|")
        for size in CHUNK_SIZES:
            chunks = in_chunks(traffic, size)
            messages = sum(chunk.messages for chunk in chunks)
            mebibytes = sum(len(chunk.data) for chunk in chunks) / MIB
            cells = []
            for name, decode in decoders().items():
                seconds = best_time(decode, chunks, rounds)
                speed = f"{mebibytes / seconds:,.0f} MiB/s"
                rate = f"{messages / seconds / 1e6:.2f} M/s, "
                cells.append(speed if name == "memory copy" else rate + speed)
            print(f"| {size // KIB} KiB | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
