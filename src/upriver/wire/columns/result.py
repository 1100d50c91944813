"""What a buffer of frames becomes: the columns' schema, the batch, and the frames beside it.

Both implementations fill what is allocated here, so their results cannot differ in form. Nothing
here knows what a frame looks like.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa

from ...model import Op

__all__ = [
    "FIXED",
    "NOTHING",
    "OPS",
    "SCHEMA",
    "ControlFrame",
    "Decoded",
    "allocate_fixed",
    "as_batch",
]

#: What the numbers of the column ``op`` stand for.
OPS: Final = (Op.MUTATION, Op.DELETION, Op.EXPIRATION)

#: One row for each change. ``expiry`` is a mutation's expiry and else the time of the deletion,
#: 0 where the frame carries none; ``collection`` is 0 where collections are not negotiated.
SCHEMA: Final = pa.schema(
    [
        pa.field("op", pa.dictionary(pa.int8(), pa.string()), nullable=False),
        pa.field("vbucket", pa.uint16(), nullable=False),
        pa.field("seqno", pa.uint64(), nullable=False),
        pa.field("rev", pa.uint64(), nullable=False),
        pa.field("cas", pa.uint64(), nullable=False),
        pa.field("flags", pa.uint32(), nullable=False),
        pa.field("expiry", pa.uint32(), nullable=False),
        pa.field("datatype", pa.uint8(), nullable=False),
        pa.field("collection", pa.uint32(), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("opaque", pa.uint32(), nullable=False),
    ]
)

# Taken apart once, because asking a schema costs more than filling a small batch.
_NAMES: Final = tuple(SCHEMA.names)
_NUMBERS: Final = {field.name: field.type for field in SCHEMA if pa.types.is_integer(field.type)}
_OP_TYPE: Final = SCHEMA.field("op").type
_OP_NAMES: Final = pa.array([op.value for op in OPS], pa.string())

#: The columns whose cells all have one size, in the schema's order, and that size.
FIXED: Final[Mapping[str, int]] = {
    field.name: field.type.bit_width // 8 for field in SCHEMA if field.type != pa.binary()
}


class ControlFrame(NamedTuple):
    """A frame that is no row: where it lies in the buffer, and how many rows come before it."""

    rows_before: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Decoded:
    """What the whole frames at the start of a buffer hold."""

    #: How many bytes the frames taken have; the rest waits for more bytes.
    consumed: int
    #: The changes, in order; it shares no memory with the buffer.
    batch: pa.RecordBatch
    #: Every other frame, in order: messages that are no changes, and changes that break a rule.
    controls: tuple[ControlFrame, ...]


#: What a buffer without a whole frame holds.
NOTHING: Final = Decoded(0, pa.RecordBatch.from_pylist([], schema=SCHEMA), ())


def allocate_fixed(rows: int) -> dict[str, pa.Buffer]:
    """Room for every fixed-size column, from Arrow's pool.

    The pool and not the C library's, which unmaps large blocks when they are freed: a thread
    that decodes megabytes at a time would fault in every page of every batch anew.
    """
    return {name: pa.allocate_buffer(rows * width) for name, width in FIXED.items()}


def as_batch(
    rows: int, fixed: Mapping[str, pa.Buffer], key: pa.Array[Any], value: pa.Array[Any]
) -> pa.RecordBatch:
    """The batch over filled columns."""
    op = pa.DictionaryArray.from_buffers(_OP_TYPE, rows, [None, fixed["op"]], _OP_NAMES, 0)
    columns: dict[str, pa.Array[Any]] = {"op": op, "key": key, "value": value}
    for name, cell in _NUMBERS.items():
        columns[name] = pa.Array.from_buffers(cell, rows, [None, fixed[name]], 0)
    return pa.RecordBatch.from_arrays([columns[name] for name in _NAMES], schema=SCHEMA)
