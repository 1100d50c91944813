"""The reference implementation of decoding frames to columns, with numpy and Arrow's kernels."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...model import Op
from ..canonical import OPAQUE_AT
from ..header import HEADER_SIZE
from .interface import Implementation
from .numpy_frames import DELETION_1, MUTATION, ChangeFrames, Numbers, changes_among, frames_in
from .numpy_select import select_frames
from .result import FIXED, NO_BODIES, OPS, ControlFrame, Decoded, allocate_fixed, as_batch

#: The ``op`` of each kind of change.
_OP_OF_KIND: Final = np.array(
    [-1, *map(OPS.index, (Op.MUTATION, Op.DELETION, Op.DELETION, Op.EXPIRATION))], np.int8
)


def _patch_frames(view: memoryview, opaque: int) -> tuple[int, int]:
    raw = np.frombuffer(view, np.uint8)
    starts, ends = frames_in(view, raw)
    if not starts.size:
        return 0, 0
    opaques = np.ndarray(raw.size - HEADER_SIZE + 1, ">u4", raw, OPAQUE_AT, (1,))
    opaques[starts] = opaque
    return starts.size, int(ends[-1])


def _decode_window(view: memoryview, collections: bool) -> Decoded:
    raw = np.frombuffer(view, np.uint8)
    starts, ends = frames_in(view, raw)
    changes = changes_among(raw, starts, ends, collections)
    return Decoded(
        int(ends[-1]) if ends.size else 0,
        _batch(view, changes),
        _controls(starts, ends, changes.frame),
    )


def _batch(view: memoryview, changes: ChangeFrames) -> pa.RecordBatch:
    kind, header, extras = changes.kind, changes.header, changes.extras
    mutation = kind == MUTATION
    times = np.where(kind == DELETION_1, 0, extras["flags"])
    contents = {
        "op": _OP_OF_KIND[kind],
        "vbucket": header["vbucket"],
        "seqno": extras["seqno"],
        "rev": extras["rev"],
        "cas": header["cas"],
        "flags": np.where(mutation, extras["flags"], 0),
        "expiry": np.where(mutation, extras["expiry"], times),
        "datatype": header["datatype"],
        "collection": changes.collection,
        "opaque": header["opaque"],
    }
    rows = kind.size
    fixed = allocate_fixed(rows)
    for name, content in contents.items():
        np.frombuffer(memoryview(fixed[name]), f"u{FIXED[name]}")[:] = content
    return as_batch(rows, fixed, *_blobs(view, changes))


def _blobs(view: memoryview, changes: ChangeFrames) -> tuple[pa.Array[Any], pa.Array[Any]]:
    """The columns of keys and values, copied by Arrow from one array over the buffer.

    The array's cells are, repeated: a key, its value, and the bytes up to the next key.
    """
    rows = changes.frame.size
    if not rows:
        return NO_BODIES, NO_BODIES
    edges = np.empty((rows, 3), np.int32)
    edges[:, 0] = changes.key_at
    edges[:, 1] = changes.value_at
    edges[:, 2] = changes.end
    cells = pa.Array.from_buffers(
        pa.binary(), 3 * rows - 1, [None, pa.py_buffer(edges.data), pa.py_buffer(view)], 0
    )
    keys = np.arange(0, 3 * rows, 3, dtype=np.int32)
    return cells.take(_indices(keys)), cells.take(_indices(keys + 1))


def _indices(numbers: npt.NDArray[np.int32]) -> pa.Array[Any]:
    """What ``pa.array`` gives, which would import pandas where that is installed."""
    return pa.Array.from_buffers(pa.int32(), numbers.size, [None, pa.py_buffer(numbers.data)])


def _controls(starts: Numbers, ends: Numbers, rows: Numbers) -> tuple[ControlFrame, ...]:
    """The frames that are not rows."""
    if rows.size == starts.size:
        return ()
    is_row = np.zeros(starts.size, np.bool_)
    is_row[rows] = True
    others = np.flatnonzero(~is_row)
    rows_before = others - np.arange(others.size)
    offsets = starts[others]
    return tuple(
        map(
            ControlFrame,
            rows_before.tolist(),
            offsets.tolist(),
            (ends[others] - offsets).tolist(),
        )
    )


NUMPY: Final = Implementation("numpy", _decode_window, _patch_frames, select_frames)
