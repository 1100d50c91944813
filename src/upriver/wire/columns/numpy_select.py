"""The reference implementation of selecting stored frames for a stream, with numpy.

Frames that are sent as they are stored are copied in runs. If any frame has to be patched, the
heads of all packets are rebuilt, and Arrow joins heads, keys and values from one array of cells.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...model import Datatype
from ..canonical import OPAQUE_AT
from ..dialects.dcp import Dcp
from ..header import FLEX_REQUEST, HEADER_SIZE, REQUEST
from ..protocol_enums import Command
from .frame_selection import MAX_LEFT, LeftFrame, Part, Selected, Selection
from .numpy_frames import (
    DELETION_1_EXTRAS,
    DELETION_2,
    DELETION_2_EXTRAS,
    EXPIRATION,
    EXPIRATION_EXTRAS,
    HEADER,
    MUTATION,
    MUTATION_EXTRAS,
    STREAM_ID_SIZE,
    STREAM_ID_TAG,
    Bytes,
    Mask,
    Numbers,
    changes_among,
    frames_until,
    gather,
)

_OPCODES: Final = Dcp.table.opcodes
_CHANGE_OPCODES: Final = frozenset(
    _OPCODES[command] for command in (Command.MUTATION, Command.DELETION, Command.EXPIRATION)
)
_EVENT_OPCODE: Final = _OPCODES[Command.SYSTEM_EVENT]
_DELETION_OPCODE: Final = _OPCODES[Command.DELETION]
_SNAPPY: Final = int(Datatype.SNAPPY)
_XATTR: Final = int(Datatype.XATTR)
_LENGTH_SIZE: Final = 4
_SEQNO = struct.Struct(">Q")
_STREAM_ID = struct.Struct(
    ">"
    "B"  # tag and size
    "H"  # stream id
)
#: Where the seqnos, with which all extras begin, and a time of deletion after them end. An
#: expiration has nothing else.
_SEQNOS_END: Final = 2 * _SEQNO.size
_TIME_END: Final = EXPIRATION_EXTRAS
_MOST_KEY: Final = 0xFF

_LEFT, _DROPPED, _TAKEN = range(3)


class _Packets(NamedTuple):
    """Columns of the packets to make: the parts of each, as positions in its frame."""

    frame: Numbers
    opcode: Bytes
    datatype: Bytes
    extras_length: Numbers
    #: How many bytes of the extras are copied from the frame; the others are zeros.
    extras_copied: Numbers
    key_at: Numbers
    value_at: Numbers
    value_from: Numbers
    value_to: Numbers

    def where(self, mask: Mask) -> _Packets:
        return _Packets._make(column[mask] for column in self)


def select_frames(view: memoryview, selection: Selection) -> Selected:
    """`Implementation.select` with numpy."""
    parts = selection.parts
    raw = np.frombuffer(view, np.uint8)
    known = _CHANGE_OPCODES | {_EVENT_OPCODE} if parts & Part.EVENTS else _CHANGE_OPCODES
    starts, ends = frames_until(view, raw, known)
    decision, packets = _decide(raw, starts, ends, selection)
    left = np.flatnonzero(decision == _LEFT)
    if left.size > MAX_LEFT:
        cut = int(left[MAX_LEFT])
        starts, ends, left = starts[:cut], ends[:cut], left[:MAX_LEFT]
        packets = packets.where(packets.frame < cut)
    if not starts.size:
        return Selected(bytearray(), 0, 0, (), 0)
    joined, sizes = _join(view, raw, starts, ends, packets, selection)
    before = np.concatenate([[0], np.cumsum(sizes)])[np.searchsorted(packets.frame, left)]
    places = zip(
        before.tolist(), starts[left].tolist(), (ends - starts)[left].tolist(), strict=True
    )
    count = packets.frame.size
    last = _seqno(view, int(starts[packets.frame[-1]])) if count else 0
    return Selected(joined, count, last, tuple(map(LeftFrame._make, places)), int(ends[-1]))


def _seqno(view: memoryview, at: int) -> int:
    at += HEADER_SIZE
    number: int = _SEQNO.unpack_from(view, at)[0] if at + _SEQNO.size <= len(view) else 0
    return number


def _decide(
    raw: Bytes, starts: Numbers, ends: Numbers, selection: Selection
) -> tuple[Bytes, _Packets]:
    """Decides for each frame whether it is sent, dropped or left; returns the packets to send."""
    parts = selection.parts
    rows = changes_among(raw, starts, ends, collections=True)
    stored = np.isin(rows.kind, [MUTATION, DELETION_2, EXPIRATION]) & (
        rows.header["magic"] == REQUEST
    )
    rows = rows.where(stored)
    mutation = rows.kind == MUTATION
    value_at, value_to = rows.value_at, rows.end
    datatype = rows.header["datatype"]
    extras_length = rows.header["extras_length"].astype(np.int64)
    compressed, has_xattrs = datatype & _SNAPPY != 0, datatype & _XATTR != 0
    left = np.zeros(mutation.size, np.bool_)

    # The size of the xattrs before a body, including their length field.
    size = np.zeros(mutation.size, np.int64)
    if has_xattrs.any():
        lengths = gather(raw, value_at, np.dtype(">u4")).astype(np.int64)
        room = value_to - value_at
        sound = has_xattrs & (room >= _LENGTH_SIZE) & (lengths <= room - _LENGTH_SIZE)
        size = np.where(sound, lengths + _LENGTH_SIZE, 0)

    wanted_xattrs = has_xattrs & bool(parts & Part.XATTRS)
    if parts & Part.VALUE:
        hidden = mutation & has_xattrs & (not parts & Part.XATTRS)
        left |= hidden & (compressed | (size == 0))
        value_from = np.where(hidden, value_at + size, value_at)
        sent_type = np.where(hidden, datatype & ~np.uint8(_XATTR), datatype)
        if not parts & Part.SNAPPY_VALUES:
            left |= mutation & compressed
        if not parts & Part.PLAIN_VALUES:
            left |= mutation & ~compressed & (value_from < value_to)
    else:
        value_from = value_at
        left |= mutation & wanted_xattrs & (compressed | (size == 0))
        value_to = np.where(mutation, value_at + np.where(wanted_xattrs, size, 0), value_to)
        sent_type = np.where(wanted_xattrs, np.uint8(_XATTR), np.uint8(0))
        if parts & Part.DATATYPE:
            sent_type = datatype & ~np.uint8(_SNAPPY)

    if not mutation.all():  # deletions and expirations
        removal = ~mutation
        chosen = wanted_xattrs & bool(parts & Part.DELETED_USER_XATTRS)
        left |= removal & wanted_xattrs & (compressed | ~chosen | (size == 0))
        kept = np.where(chosen & (size > _LENGTH_SIZE), size, 0)
        value_from = np.where(removal, value_at, value_from)
        value_to = np.where(removal, value_at + kept, value_to)
        sent_type = np.where(removal, np.where(kept > 0, _XATTR, 0), sent_type)
    opcode, extras_copied = rows.header["opcode"], extras_length
    as_deletion = ~mutation
    if parts & Part.EXPIRATIONS:
        as_deletion = rows.kind == DELETION_2
    if as_deletion.any():
        timed = bool(parts & Part.DELETE_TIMES)
        opcode = np.where(as_deletion, _DELETION_OPCODE, opcode)
        length = DELETION_2_EXTRAS if timed else DELETION_1_EXTRAS
        extras_length = np.where(as_deletion, length, extras_length)
        extras_copied = np.where(as_deletion, _TIME_END if timed else _SEQNOS_END, extras_copied)

    if selection.collections is None:
        wanted = np.ones(mutation.size, np.bool_)
    else:
        wanted = np.isin(rows.collection, np.array(selection.collections, np.uint64))
    if not parts & Part.DELETIONS:
        wanted &= mutation
    decision = np.full(starts.size, _LEFT, np.uint8)
    decision[rows.frame] = np.where(wanted, np.where(left, _LEFT, _TAKEN), _DROPPED)
    key_at = rows.key_at
    if parts & Part.PREFIX:
        key_at = starts[rows.frame] + HEADER_SIZE + rows.header["extras_length"]
    packets = _Packets(
        rows.frame,
        opcode.astype(np.uint8),
        sent_type.astype(np.uint8),
        extras_length,
        extras_copied,
        key_at,
        value_at,
        value_from,
        value_to,
    ).where(wanted & ~left)
    return (
        _with_events(raw, starts, ends, decision, packets)
        if parts & Part.EVENTS
        else (
            decision,
            packets,
        )
    )


def _with_events(
    raw: Bytes, starts: Numbers, ends: Numbers, decision: Bytes, packets: _Packets
) -> tuple[Bytes, _Packets]:
    """Adds the system events, which are sent whole."""
    event = np.flatnonzero(raw[starts + 1] == _EVENT_OPCODE)
    if not event.size:
        return decision, packets
    header = gather(raw, starts[event], HEADER)
    extras_length = header["extras_length"].astype(np.int64)
    key_length = header["lengths"].astype(np.int64)
    key_at = starts[event] + HEADER_SIZE + extras_length
    value_at, end = key_at + key_length, ends[event]
    sound = (header["magic"] == REQUEST) & (key_length <= _MOST_KEY) & (value_at <= end)
    decision[event[sound]] = _TAKEN
    events = _Packets(
        event,
        header["opcode"],
        header["datatype"],
        extras_length,
        extras_length,
        key_at,
        value_at,
        value_at,
        end,
    ).where(sound)
    order = np.argsort(np.concatenate([packets.frame, events.frame]))
    columns: list[npt.NDArray[Any]] = [
        np.concatenate([of_changes, of_events])[order]
        for of_changes, of_events in zip(_columns(packets), _columns(events), strict=True)
    ]
    return decision, _Packets._make(columns)


def _columns(packets: _Packets) -> tuple[npt.NDArray[Any], ...]:
    return tuple(packets)


def _join(
    view: memoryview,
    raw: Bytes,
    starts: Numbers,
    ends: Numbers,
    packets: _Packets,
    selection: Selection,
) -> tuple[bytearray, Numbers]:
    """All packets joined, and the size of each."""
    framing = 0 if selection.stream_id is None else STREAM_ID_SIZE
    key_length = packets.value_at - packets.key_at
    value_length = packets.value_to - packets.value_from
    body = framing + packets.extras_length + key_length + value_length
    sizes = HEADER_SIZE + body
    if not sizes.size:
        return bytearray(), sizes
    begin, end = starts[packets.frame], ends[packets.frame]
    whole = (
        (sizes == end - begin)
        & (packets.opcode == raw[begin + 1])
        & (packets.extras_copied == packets.extras_length)
        & (packets.datatype == raw[begin + 5])
    )
    if not framing and whole.all():
        joined = _runs(view, begin, end)
    else:
        joined = _assembled(raw, begin, packets, key_length, body, selection)
    at = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    out = np.frombuffer(joined, np.uint8)
    np.ndarray(out.size - HEADER_SIZE + 1, ">u4", out, OPAQUE_AT, (1,))[at] = selection.opaque
    return joined, sizes


def _runs(view: memoryview, begin: Numbers, end: Numbers) -> bytearray:
    """Unchanged frames; adjacent ones are copied together."""
    breaks = np.flatnonzero(begin[1:] != end[:-1]) + 1
    firsts = begin[np.concatenate([[0], breaks])].tolist()
    lasts = end[np.concatenate([breaks - 1, [-1]])].tolist()
    return bytearray().join([view[a:b] for a, b in zip(firsts, lasts, strict=True)])


def _assembled(
    raw: Bytes,
    begin: Numbers,
    packets: _Packets,
    key_length: Numbers,
    body: Numbers,
    selection: Selection,
) -> bytearray:
    """Packets with rebuilt heads: header, stream id and extras."""
    rows = begin.size
    most = max(MUTATION_EXTRAS, int(packets.extras_length.max()))
    header = gather(raw, begin, HEADER).copy()
    header["opcode"] = packets.opcode
    header["datatype"] = packets.datatype
    header["extras_length"] = packets.extras_length
    header["lengths"] = key_length
    header["body_length"] = body
    framing = b""
    if selection.stream_id is not None:
        framing = _STREAM_ID.pack(STREAM_ID_TAG, selection.stream_id)
        header["magic"] = FLEX_REQUEST
        header["lengths"] += STREAM_ID_SIZE << 8
    extras_at = HEADER_SIZE + len(framing)
    heads = np.empty((rows, extras_at + most), np.uint8)
    heads[:, :HEADER_SIZE] = header.view(np.uint8).reshape(rows, HEADER_SIZE)
    heads[:, HEADER_SIZE:extras_at] = np.frombuffer(framing, np.uint8)
    extras = gather(raw, begin + HEADER_SIZE, np.dtype(f"V{most}"))
    extras = extras.view(np.uint8).reshape(rows, most)
    heads[:, extras_at:] = np.where(
        np.arange(most) < packets.extras_copied[:, np.newaxis], extras, np.uint8(0)
    )
    # Cells: for each frame key, gap, value, gap to the next frame; for each head itself and a gap.
    source = np.concatenate([raw, heads.reshape(-1)])
    edges = np.empty((rows, 4), np.int32)
    edges[:, 0] = packets.key_at
    edges[:, 1] = packets.value_at
    edges[:, 2] = packets.value_from
    edges[:, 3] = packets.value_to
    head_edges = np.empty((rows, 2), np.int32)
    head_edges[:, 0] = raw.size + np.arange(rows) * heads.shape[1]
    head_edges[:, 1] = head_edges[:, 0] + extras_at + packets.extras_length
    offsets = np.concatenate([edges.reshape(-1), head_edges.reshape(-1)])
    cells = pa.Array.from_buffers(
        pa.binary(),
        offsets.size - 1,
        [None, pa.py_buffer(offsets.data), pa.py_buffer(source.data)],
        0,
    )
    wanted = np.empty((rows, 3), np.int32)
    number = np.arange(rows)
    wanted[:, 0] = 4 * rows + 2 * number
    wanted[:, 1] = 4 * number
    wanted[:, 2] = 4 * number + 2
    contents = cells.take(wanted.reshape(-1)).buffers()[2]
    assert contents is not None
    return bytearray(memoryview(contents)[: int((HEADER_SIZE + body).sum())])
