"""The compiled implementation of the columns (`_speedups.c`), with the results of `numpy_path`.

Importing it fails if the accelerator was not built, or was built from other sources.
"""

from __future__ import annotations

import struct
from array import array
from typing import Final

import pyarrow as pa

from ..canonical import STORED_COMMANDS
from ..dialects.dcp import Dcp
from ..header import HEADER_SIZE
from ..limits import MAX_BODY, MAX_COLLECTION_KEY, MAX_KEY, MAX_PREFIXED_KEY, MAX_STORED_VALUE
from ._speedups import LIMITS, fill, measure, patch_opaque, select
from .frame_selection import MAX_LEFT, LeftFrame, Selected, Selection
from .interface import Implementation
from .result import ControlFrame, Decoded, allocate_fixed, as_batch

_EXPECTED: Final = (
    *(MAX_BODY, MAX_STORED_VALUE, MAX_KEY, MAX_PREFIXED_KEY, MAX_COLLECTION_KEY),
    *(Dcp.table.opcodes[command] for command in STORED_COMMANDS),
)
if LIMITS != _EXPECTED:
    raise ImportError("the compiled accelerator was built from other sources (its limits differ)")

_CONTROL = struct.Struct(
    "="
    "I"  # rows before
    "I"  # offset
    "I"  # length
)
_LEFT = struct.Struct(
    "="
    "I"  # bytes of packets before
    "I"  # offset
    "I"  # length
)
_LEAST_FRAME: Final = HEADER_SIZE
_OFFSET_SIZE: Final = 4
_BINARY: Final = pa.binary()


def _decode_window(view: memoryview, collections: bool) -> Decoded:
    consumed, rows, key_bytes, value_bytes, controls = measure(view, collections)
    fixed = allocate_fixed(rows)
    key_offsets = pa.allocate_buffer((rows + 1) * _OFFSET_SIZE)
    key = pa.allocate_buffer(key_bytes)
    value_offsets = pa.allocate_buffer((rows + 1) * _OFFSET_SIZE)
    value = pa.allocate_buffer(value_bytes)
    places = bytearray(controls * _CONTROL.size)
    fill(view, collections, *fixed.values(), key_offsets, key, value_offsets, value, places)
    batch = as_batch(
        rows,
        fixed,
        pa.Array.from_buffers(_BINARY, rows, [None, key_offsets, key], 0),
        pa.Array.from_buffers(_BINARY, rows, [None, value_offsets, value], 0),
    )
    return Decoded(consumed, batch, tuple(map(ControlFrame._make, _CONTROL.iter_unpack(places))))


def _select(view: memoryview, selection: Selection) -> Selected:
    size = len(view)
    # A packet has at most 4 bytes more than its frame: a stream id, and a deletion's last byte.
    packets = bytearray(size + size // _LEAST_FRAME * 4)
    places = bytearray(MAX_LEFT * _LEFT.size)
    consumed, written, count, left, last_seqno = select(
        view,
        selection.parts,
        selection.opaque,
        -1 if selection.stream_id is None else selection.stream_id,
        selection.collections is None,
        array("I", selection.collections or ()),
        packets,
        places,
    )
    del packets[written:]
    found = _LEFT.iter_unpack(memoryview(places)[: left * _LEFT.size]) if left else ()
    return Selected(packets, count, last_seqno, tuple(map(LeftFrame._make, found)), consumed)


C: Final = Implementation("c", _decode_window, patch_opaque, _select)
