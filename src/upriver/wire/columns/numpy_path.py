"""The reference: frames to columns with numpy and Arrow's own kernels, no compiler needed.

Frames are found one by one, by their lengths alone; everything else is done for all of them at
once. Which frames are changes is `dialects.dcp` once more, as arithmetic on columns; what it
refuses is left to the dialect to explain, so nothing here says what is wrong.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...model import Op
from ..canonical import OPAQUE_AT
from ..header import FLEX_REQUEST, HEADER_SIZE, MAGICS, REQUEST
from ..limits import (
    MAX_BODY,
    MAX_COLLECTION_KEY,
    MAX_KEY,
    MAX_PREFIXED_KEY,
    MAX_STORED_VALUE,
)
from .interface import Implementation
from .result import FIXED, OPS, ControlFrame, Decoded, allocate_fixed, as_batch

__all__ = ["NUMPY"]

_Numbers: TypeAlias = npt.NDArray[np.int64]
_Mask: TypeAlias = npt.NDArray[np.bool_]
_Bytes: TypeAlias = npt.NDArray[np.uint8]
_Records: TypeAlias = npt.NDArray[Any]

_BODY = struct.Struct(">I")
_BODY_AT: Final = 8

_IS_MAGIC: Final = np.isin(np.arange(256), sorted(MAGICS))

_HEADER: Final = np.dtype(
    [
        ("magic", "u1"),
        ("opcode", "u1"),
        ("lengths", ">u2"),  # of the key, or of framing extras and key
        ("extras_length", "u1"),
        ("datatype", "u1"),
        ("vbucket", ">u2"),
        ("body_length", ">u4"),
        ("opaque", ">u4"),
        ("cas", ">u8"),
    ]
)
#: The extras of a mutation without their last byte. All kinds begin with the seqnos; a deletion
#: or expiration has its time, or the length of its extended metadata, where a mutation's flags are.
_EXTRAS: Final = np.dtype(
    [
        ("seqno", ">u8"),
        ("rev", ">u8"),
        ("flags", ">u4"),
        ("expiry", ">u4"),
        ("lock_time", ">u4"),
        ("extended_length", ">u2"),
    ]
)
_STREAM_ID_SIZE: Final = 3
_STREAM_ID_TAG: Final = 0x22

#: The kinds of change by opcode and length of extras, and the ``op`` of each.
_NO_CHANGE, _MUTATION, _DELETION_1, _DELETION_2, _EXPIRATION = range(5)
_KINDS: Final = np.zeros(1 << 16, np.uint8)
_KINDS[0x57 << 8 | 31] = _MUTATION
_KINDS[0x58 << 8 | 18] = _DELETION_1
_KINDS[0x58 << 8 | 21] = _DELETION_2
_KINDS[0x59 << 8 | 20] = _EXPIRATION
_OP_OF_KIND: Final = np.array(
    [-1, *map(OPS.index, (Op.MUTATION, Op.DELETION, Op.DELETION, Op.EXPIRATION))], np.int8
)
#: Whether a kind may have a datatype.
_DATATYPES: Final = np.zeros((5, 256), np.bool_)
_DATATYPES[[_MUTATION, _EXPIRATION], :8] = True
_DATATYPES[np.ix_([_DELETION_1, _DELETION_2], [0, 2, 4, 5, 6, 7])] = True


def _patch_frames(view: memoryview, opaque: int) -> tuple[int, int]:
    raw = np.frombuffer(view, np.uint8)
    starts, ends = _frames(view, raw)
    if not starts.size:
        return 0, 0
    opaques = np.ndarray(raw.size - HEADER_SIZE + 1, ">u4", raw, OPAQUE_AT, (1,))
    opaques[starts] = opaque
    return starts.size, int(ends[-1])


def _frames(view: memoryview, raw: _Bytes) -> tuple[_Numbers, _Numbers]:
    """Where each whole frame begins and ends, up to the first that cannot be cut."""
    raw.max(initial=0)  # a read in order brings the bytes near faster than the walk's jumps would
    read = _BODY.unpack_from
    places: list[int] = []  # of the lengths, because they are all that is read
    at, header_size = _BODY_AT, HEADER_SIZE
    end = len(view) + _BODY_AT
    last = end - header_size
    while at <= last:
        places.append(at)
        (body,) = read(view, at)
        at += body + header_size
    if at <= end:
        places.append(at)
    edges = np.fromiter(places, np.int64, len(places)) - _BODY_AT
    starts, ends = edges[:-1], edges[1:]
    # Behind a frame that is none the walk went astray, but never outside, so it is cut off here.
    sound = _IS_MAGIC[raw[starts]] & (ends - starts <= HEADER_SIZE + MAX_BODY)
    if not sound.all():
        count = int(sound.argmin())
        return starts[:count], ends[:count]
    return starts, ends


def _gather(raw: _Bytes, at: _Numbers, record: np.dtype[Any]) -> _Records:
    """A record from each of the ascending places ``at``; zeros stand behind the buffer's end."""
    size = record.itemsize
    inside = int(np.searchsorted(at, raw.size - size, side="right"))
    if inside < at.size:
        first = int(at[inside])
        padded = np.zeros(raw.size - first + size, np.uint8)
        padded[:-size] = raw[first:]
        behind = _gather(padded, at[inside:] - first, record)
        return np.concatenate([_gather(raw, at[:inside], record), behind]) if inside else behind
    # Records at every byte, overlapping: indexing copies each wanted one as a whole.
    everywhere = np.ndarray(max(raw.size - size + 1, 0), f"V{size}", raw, strides=(1,))
    return everywhere[at].view(record)


class _Changes(NamedTuple):
    """Columns of frames that may still turn out to be no changes."""

    frame: _Numbers
    kind: _Bytes
    header: _Records
    key_at: _Numbers
    value_at: _Numbers
    end: _Numbers
    extras: _Records
    collection: npt.NDArray[np.uint64]

    def where(self, mask: _Mask) -> _Changes:
        if mask.all():
            return self
        kept = np.flatnonzero(mask)  # indexing would copy records field by field
        return _Changes._make(column.take(kept) for column in self)


def _decode_window(view: memoryview, collections: bool) -> Decoded:
    raw = np.frombuffer(view, np.uint8)
    starts, ends = _frames(view, raw)
    changes = _changes(raw, starts, ends, collections)
    return Decoded(
        int(ends[-1]) if ends.size else 0,
        _batch(view, changes),
        _controls(starts, ends, changes.frame),
    )


def _changes(raw: _Bytes, starts: _Numbers, ends: _Numbers, collections: bool) -> _Changes:
    """The frames that the dialect accepts as changes."""
    header = _gather(raw, starts, _HEADER)
    lengths = header["lengths"].astype(np.int64)
    extras_length = header["extras_length"]
    kind = _KINDS[header["opcode"].astype(np.int64) << 8 | extras_length]
    plain = header["magic"] == REQUEST
    extras_at, key_length = starts + HEADER_SIZE, lengths
    if not plain.all():
        flexible = header["magic"] == FLEX_REQUEST
        frames_length = np.where(flexible, lengths >> 8, 0)
        key_length = np.where(flexible, lengths & 0xFF, lengths)
        extras_at = extras_at + frames_length
        plain |= flexible & (frames_length == _STREAM_ID_SIZE)
    key_at = extras_at + extras_length
    value_at = key_at + key_length
    least, most = (2, MAX_PREFIXED_KEY) if collections else (1, MAX_KEY)
    likely = (
        _DATATYPES[kind, header["datatype"]]  # false for what is no change
        & plain
        & (key_length >= least)
        & (key_length <= most)
        & (value_at <= ends)
        & (ends - value_at <= MAX_STORED_VALUE)
    )
    frame = np.flatnonzero(likely)
    all_of_them = frame.size == starts.size

    def of_these(column: _Records) -> _Records:
        return column if all_of_them else column.take(frame)

    changes = _Changes(
        frame,
        of_these(kind),
        of_these(header),
        of_these(key_at),
        of_these(value_at),
        of_these(ends),
        _gather(raw, of_these(extras_at), _EXTRAS),
        np.zeros(frame.size, np.uint64),
    )
    changes = changes.where(_sound_extras(changes) & _sound_frames(raw, starts, changes))
    return _split_keys(raw, changes) if collections else changes


def _sound_extras(changes: _Changes) -> _Mask:
    """A mutation has a seqno, and no change has extended metadata."""
    kind, extras = changes.kind, changes.extras
    mutation = (extras["seqno"] != 0) & (extras["extended_length"] == 0)
    deletion = (kind != _DELETION_1) | (extras["flags"] >> 16 == 0)
    sound: _Mask = np.where(kind == _MUTATION, mutation, deletion)
    return sound


def _sound_frames(raw: _Bytes, starts: _Numbers, changes: _Changes) -> _Mask:
    """Framing extras are a stream id, if there are any."""
    tag = raw[starts[changes.frame] + HEADER_SIZE]
    sound: _Mask = (changes.header["magic"] == REQUEST) | (tag == _STREAM_ID_TAG)
    return sound


def _split_keys(raw: _Bytes, changes: _Changes) -> _Changes:
    """Takes the collection ids off the keys, and drops changes whose id or key is not allowed."""
    prefix = _gather(raw, changes.key_at, np.dtype("V5")).view(np.uint8).reshape(-1, 5)
    collection = (prefix[:, 0] & 0x7F).astype(np.uint64)
    size = np.ones(collection.size, np.int64)
    unfinished = prefix[:, 0] >= 0x80
    shortest = np.ones(collection.size, np.bool_)
    for position in range(1, 5):
        if not unfinished.any():
            break
        byte = prefix[:, position]
        collection |= np.where(unfinished, byte & 0x7F, 0).astype(np.uint64) << (7 * position)
        size += unfinished
        shortest &= ~unfinished | (byte != 0)
        unfinished = unfinished & (byte >= 0x80)
    key_at = changes.key_at + size
    key_length = changes.value_at - key_at
    sound = (
        ~unfinished
        & shortest
        & (collection <= 0xFFFFFFFF)
        & ~((collection >= 1) & (collection <= 7))  # ids that servers keep to themselves
        & (key_length >= 1)
        & (key_length <= np.where(collection == 0, MAX_KEY, MAX_COLLECTION_KEY))
    )
    return changes._replace(key_at=key_at, collection=collection).where(sound)


def _batch(view: memoryview, changes: _Changes) -> pa.RecordBatch:
    kind, header, extras = changes.kind, changes.header, changes.extras
    mutation = kind == _MUTATION
    times = np.where(kind == _DELETION_1, 0, extras["flags"])
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


def _blobs(view: memoryview, changes: _Changes) -> tuple[pa.Array[Any], pa.Array[Any]]:
    """Keys and values, copied by Arrow out of one array that covers the buffer.

    Its cells are key, value, and what lies before the next key, again and again.
    """
    rows = changes.frame.size
    if not rows:
        empty = pa.array([], pa.binary())
        return empty, empty
    edges = np.empty((rows, 3), np.int32)
    edges[:, 0] = changes.key_at
    edges[:, 1] = changes.value_at
    edges[:, 2] = changes.end
    cells = pa.Array.from_buffers(
        pa.binary(), 3 * rows - 1, [None, pa.py_buffer(edges.data), pa.py_buffer(view)], 0
    )
    keys = np.arange(0, 3 * rows, 3, dtype=np.int32)
    return cells.take(keys), cells.take(keys + 1)


def _controls(starts: _Numbers, ends: _Numbers, rows: _Numbers) -> tuple[ControlFrame, ...]:
    """The frames that are no rows."""
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


NUMPY: Final = Implementation("numpy", _decode_window, _patch_frames)
