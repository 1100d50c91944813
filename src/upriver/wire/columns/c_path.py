"""Frames to columns through the compiled accelerator; equal to `numpy_path` in every result.

Importing this fails where the accelerator was not built, or was built from other sources.
"""

from __future__ import annotations

import struct
from typing import Final

import pyarrow as pa

from ..limits import (
    MAX_BODY,
    MAX_COLLECTION_KEY,
    MAX_KEY,
    MAX_PREFIXED_KEY,
    MAX_STORED_VALUE,
)
from ._speedups import LIMITS, fill, measure, patch_opaque
from .interface import Implementation
from .result import ControlFrame, Decoded, allocate_fixed, as_batch

__all__ = ["C"]

if LIMITS != (MAX_BODY, MAX_STORED_VALUE, MAX_KEY, MAX_PREFIXED_KEY, MAX_COLLECTION_KEY):
    raise ImportError("the compiled accelerator has other limits: it was built from other sources")

_CONTROL = struct.Struct(
    "="
    "I"  # rows before
    "I"  # offset
    "I"  # length
)
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


C: Final = Implementation("c", _decode_window, patch_opaque)
