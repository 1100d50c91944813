"""The result of decoding frames: the Arrow schema, the batch, and the frames that are not rows.

Both implementations fill buffers that are allocated here, so their results have the same form.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...model import Op

#: The meaning of the numbers of the column ``op``.
OPS: Final = (Op.MUTATION, Op.DELETION, Op.EXPIRATION)

#: One row for each change. ``expiry`` is a mutation's expiry or the time of a deletion, 0 if the
#: frame carries none; ``collection`` is 0 if collections are not negotiated.
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


def words(texts: Sequence[str]) -> pa.StringArray:
    """An array of texts; ``pa.array`` of a list would import pandas, where that is installed."""
    encoded = [text.encode() for text in texts]
    offsets = array("i", accumulate(map(len, encoded), initial=0))
    return pa.StringArray.from_buffers(
        len(texts), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))
    )


def numbers(column: pa.Array[Any]) -> npt.NDArray[Any]:
    """A column of numbers without nulls, not copied; ``to_numpy`` would import pandas too."""
    found: npt.NDArray[Any] = np.from_dlpack(column)
    return found


# Derived once, because accessing a schema costs more than filling a small batch.
_NAMES: Final = tuple(SCHEMA.names)
_NUMBERS: Final = {field.name: field.type for field in SCHEMA if pa.types.is_integer(field.type)}
_OP_TYPE: Final = SCHEMA.field("op").type
_OP_NAMES: Final = words([op.value for op in OPS])

#: The fixed-width columns, in the schema's order, and their width.
FIXED: Final[Mapping[str, int]] = {
    field.name: field.type.bit_width // 8 for field in SCHEMA if field.type != pa.binary()
}


class ControlFrame(NamedTuple):
    """A frame that is not a row: its position in the buffer, and the number of rows before it."""

    rows_before: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Decoded:
    """The decoded whole frames at the start of a buffer."""

    #: The bytes of the decoded frames; the rest of the buffer waits for more bytes.
    consumed: int
    #: The changes, in order; the batch shares no memory with the buffer.
    batch: pa.RecordBatch
    #: The other frames, in order: messages that are not changes, and changes that break a rule.
    controls: tuple[ControlFrame, ...]


def allocate_fixed(rows: int) -> dict[str, pa.Buffer]:
    """Buffers for the fixed-width columns, from Arrow's memory pool.

    The C library's allocator unmaps large blocks when they are freed: a thread that decodes
    megabytes at a time would page-fault on every page of every batch.
    """
    return {name: pa.allocate_buffer(rows * width) for name, width in FIXED.items()}


def as_batch(
    rows: int, fixed: Mapping[str, pa.Buffer], key: pa.Array[Any], value: pa.Array[Any]
) -> pa.RecordBatch:
    """The record batch over filled buffers."""
    op = pa.DictionaryArray.from_buffers(_OP_TYPE, rows, [None, fixed["op"]], _OP_NAMES, 0)
    columns: dict[str, pa.Array[Any]] = {"op": op, "key": key, "value": value}
    for name, cell in _NUMBERS.items():
        columns[name] = pa.Array.from_buffers(cell, rows, [None, fixed[name]], 0)
    return pa.RecordBatch.from_arrays([columns[name] for name in _NAMES], schema=SCHEMA)


NO_BODIES: Final = words([]).cast(pa.binary())
#: The result for a buffer without a whole frame.
NOTHING: Final = Decoded(0, as_batch(0, allocate_fixed(0), NO_BODIES, NO_BODIES), ())
