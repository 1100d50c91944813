"""Finds the frames in a buffer and validates changes, with numpy.

Frames are found one by one, by their lengths; everything else is done for all of them at once.
The validation repeats the rules of `dialects.dcp` as arithmetic on columns. Frames that fail it are
left to the dialect, which produces the error.
"""

from __future__ import annotations

import struct
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ..dialects.dcp import Dcp
from ..header import FLEX_REQUEST, HEADER_SIZE, MAGICS, REQUEST
from ..limits import MAX_BODY, MAX_COLLECTION_KEY, MAX_KEY, MAX_PREFIXED_KEY, MAX_STORED_VALUE
from ..protocol_enums import Command

Numbers: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Bytes: TypeAlias = npt.NDArray[np.uint8]
_Records: TypeAlias = npt.NDArray[Any]

_BODY = struct.Struct(">I")
_BODY_AT: Final = 8
_OPCODE_AND_BODY = struct.Struct(
    ">"
    "x"  # magic
    "B"  # opcode
    "6x"  # lengths, datatype and vbucket
    "I"  # total body length
)

_IS_MAGIC: Final = np.isin(np.arange(256), sorted(MAGICS))

HEADER: Final = np.dtype(
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
STREAM_ID_SIZE: Final = 3
STREAM_ID_TAG: Final = 0x22

#: The kinds of change by (opcode, length of extras), and the ``op`` of each.
_NO_CHANGE, MUTATION, DELETION_1, DELETION_2, EXPIRATION = range(5)
_OPCODES: Final = Dcp.table.opcodes
_KINDS: Final = np.zeros(1 << 16, np.uint8)
(MUTATION_EXTRAS,) = Dcp.table.extras_sizes(Command.MUTATION)
#: Of a deletion without its time, and with it.
DELETION_1_EXTRAS, DELETION_2_EXTRAS = Dcp.table.extras_sizes(Command.DELETION)
(EXPIRATION_EXTRAS,) = Dcp.table.extras_sizes(Command.EXPIRATION)
_KINDS[_OPCODES[Command.MUTATION] << 8 | MUTATION_EXTRAS] = MUTATION
_KINDS[_OPCODES[Command.DELETION] << 8 | DELETION_1_EXTRAS] = DELETION_1
_KINDS[_OPCODES[Command.DELETION] << 8 | DELETION_2_EXTRAS] = DELETION_2
_KINDS[_OPCODES[Command.EXPIRATION] << 8 | EXPIRATION_EXTRAS] = EXPIRATION
#: Whether a kind may have a datatype.
_DATATYPES: Final = np.zeros((5, 256), np.bool_)
_DATATYPES[[MUTATION, EXPIRATION], :8] = True
_DATATYPES[np.ix_([DELETION_1, DELETION_2], [0, 2, 4, 5, 6, 7])] = True


def frames_in(view: memoryview, raw: Bytes) -> tuple[Numbers, Numbers]:
    """The start and end of each whole frame, up to the first with an invalid header."""
    raw.max(initial=0)  # a sequential read fills the cache faster than the jumps below would
    read = _BODY.unpack_from
    places: list[int] = []  # offsets of the length fields, the only ones that are read
    at, header_size = _BODY_AT, HEADER_SIZE
    end = len(view) + _BODY_AT
    last = end - header_size
    while at <= last:
        places.append(at)
        (body,) = read(view, at)
        at += body + header_size
    if at <= end:
        places.append(at)
    return _cut(raw, np.fromiter(places, np.int64, len(places)) - _BODY_AT)


def frames_until(view: memoryview, raw: Bytes, known: AbstractSet[int]) -> tuple[Numbers, Numbers]:
    """As `frames_in`, up to the first frame with another opcode than the known ones."""
    raw.max(initial=0)
    read = _OPCODE_AND_BODY.unpack_from
    places: list[int] = []
    at, header_size, end = 0, HEADER_SIZE, len(view)
    last = end - header_size
    while at <= last:
        places.append(at)
        opcode, body = read(view, at)
        if opcode not in known:
            break
        at += body + header_size
    else:
        if at <= end:
            places.append(at)
    return _cut(raw, np.fromiter(places, np.int64, len(places)))


def _cut(raw: Bytes, edges: Numbers) -> tuple[Numbers, Numbers]:
    """The frames between edges, up to the first with an invalid header.

    Edges after it are meaningless, but always within the buffer.
    """
    starts, ends = edges[:-1], edges[1:]
    sound = _IS_MAGIC[raw[starts]] & (ends - starts <= HEADER_SIZE + MAX_BODY)
    if not sound.all():
        count = int(sound.argmin())
        return starts[:count], ends[:count]
    return starts, ends


def gather(raw: Bytes, at: Numbers, record: np.dtype[Any]) -> _Records:
    """A record from each of the ascending offsets ``at``; zeros beyond the buffer's end."""
    size = record.itemsize
    inside = int(np.searchsorted(at, raw.size - size, side="right"))
    if inside < at.size:
        first = int(at[inside])
        padded = np.zeros(raw.size - first + size, np.uint8)
        padded[:-size] = raw[first:]
        behind = gather(padded, at[inside:] - first, record)
        return np.concatenate([gather(raw, at[:inside], record), behind]) if inside else behind
    # A view with overlapping records at every byte: indexing copies each wanted one as a whole.
    everywhere = np.ndarray(max(raw.size - size + 1, 0), f"V{size}", raw, strides=(1,))
    return everywhere[at].view(record)


class ChangeFrames(NamedTuple):
    """Columns of frames that may be changes, before or after validation."""

    frame: Numbers
    kind: Bytes
    header: _Records
    key_at: Numbers
    value_at: Numbers
    end: Numbers
    extras: _Records
    collection: npt.NDArray[np.uint64]

    def where(self, mask: Mask) -> ChangeFrames:
        if mask.all():
            return self
        kept = np.flatnonzero(mask)  # indexing would copy records field by field
        return ChangeFrames._make(column.take(kept) for column in self)


def changes_among(raw: Bytes, starts: Numbers, ends: Numbers, collections: bool) -> ChangeFrames:
    """The frames that the dialect accepts as changes."""
    header = gather(raw, starts, HEADER)
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
        plain |= flexible & (frames_length == STREAM_ID_SIZE)
    key_at = extras_at + extras_length
    value_at = key_at + key_length
    least, most = (2, MAX_PREFIXED_KEY) if collections else (1, MAX_KEY)
    likely = (
        _DATATYPES[kind, header["datatype"]]  # false for frames that are not changes
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

    changes = ChangeFrames(
        frame,
        of_these(kind),
        of_these(header),
        of_these(key_at),
        of_these(value_at),
        of_these(ends),
        gather(raw, of_these(extras_at), _EXTRAS),
        np.zeros(frame.size, np.uint64),
    )
    changes = changes.where(_sound_extras(changes) & _sound_frames(raw, starts, changes))
    return _split_keys(raw, changes) if collections else changes


def _sound_extras(changes: ChangeFrames) -> Mask:
    """Checks that mutations have a seqno, and that no change has extended metadata."""
    kind, extras = changes.kind, changes.extras
    mutation = (extras["seqno"] != 0) & (extras["extended_length"] == 0)
    deletion = (kind != DELETION_1) | (extras["flags"] >> 16 == 0)
    sound: Mask = np.where(kind == MUTATION, mutation, deletion)
    return sound


def _sound_frames(raw: Bytes, starts: Numbers, changes: ChangeFrames) -> Mask:
    """Checks that framing extras are empty or a stream id."""
    tag = raw[starts[changes.frame] + HEADER_SIZE]
    sound: Mask = (changes.header["magic"] == REQUEST) | (tag == STREAM_ID_TAG)
    return sound


def _split_keys(raw: Bytes, changes: ChangeFrames) -> ChangeFrames:
    """Splits keys into collection id and key, and drops changes with an invalid id or key."""
    prefix = gather(raw, changes.key_at, np.dtype("V5")).view(np.uint8).reshape(-1, 5)
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
        & ~((collection >= 1) & (collection <= 7))  # ids that are reserved for servers
        & (key_length >= 1)
        & (key_length <= np.where(collection == 0, MAX_KEY, MAX_COLLECTION_KEY))
    )
    return changes._replace(key_at=key_at, collection=collection).where(sound)
