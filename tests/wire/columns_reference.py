"""What the columns must say: every frame of a buffer decoded alone, by the strict dialect."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import pytest

from upriver.errors import DecodeError
from upriver.wire import messages as m
from upriver.wire.columns import SCHEMA, ControlFrame, Decoded
from upriver.wire.columns.interface import Implementation
from upriver.wire.columns.numpy_path import NUMPY
from upriver.wire.dialects import Dcp
from upriver.wire.framing import packet_length
from upriver.wire.header import HEADER_SIZE, MAGICS, Header, pack_header

C: Implementation | None = None
_ABSENT = ""
try:
    from upriver.wire.columns import c_path
except ImportError as problem:
    _ABSENT = f"the accelerator is not built: {problem}"
else:
    C = c_path.C

needs_c = pytest.mark.skipif(C is None, reason=_ABSENT)
on_both = pytest.mark.parametrize(
    "columns", [pytest.param(NUMPY, id="numpy"), pytest.param(C, id="c", marks=needs_c)]
)
with_and_without_collections = pytest.mark.parametrize(
    "collections", [False, True], ids=["plain", "collections"]
)


@dataclass(frozen=True)
class Expected:
    consumed: int
    rows: list[dict[str, Any]]
    controls: tuple[ControlFrame, ...]


def _op(message: m.Message) -> str | None:
    for kind in (m.Mutation, m.Expiration, m.Deletion):
        if type(message) is kind:
            return kind.__name__.lower()
    return None


def row_of(frame: bytes, *, collections: bool) -> dict[str, Any] | None:
    """The row that a frame must become; None if it must be left to the dialect."""
    try:
        message = Dcp(collections=collections).decode(frame)
    except DecodeError:
        return None
    op = _op(message)
    flexible = frame[0] == 0x08
    if op is None or flexible != (len(message.frames) == 1 and message.stream_id is not None):
        return None
    assert isinstance(message, m.Mutation | m.Deletion)
    return {
        "op": op,
        "vbucket": message.vbucket,
        "seqno": message.seqno,
        "rev": message.rev,
        "cas": message.cas,
        "flags": message.flags,
        "expiry": message.expiry if isinstance(message, m.Mutation) else message.delete_time or 0,
        "datatype": int(message.datatype),
        "collection": message.collection or 0,
        "key": message.key,
        "value": message.value,
        "opaque": message.opaque,
    }


def _next_frame(buffer: bytes, at: int) -> bytes | None:
    """The whole frame at ``at``; `DecodeError` if it cannot be cut, None if bytes are missing."""
    length = packet_length(buffer, at)
    if at < len(buffer) and buffer[at] not in MAGICS:
        raise DecodeError(
            dialect="dcp", packet="packet", field="first byte", offset=0, rule="002", usable=False
        )
    if length is None or len(buffer) - at < length:
        return None
    return buffer[at : at + length]


def expected(buffer: bytes, *, collections: bool) -> Expected:
    """What decoding must give; `DecodeError` if the first frame cannot be cut."""
    at = 0
    rows: list[dict[str, Any]] = []
    controls: list[ControlFrame] = []
    while True:
        try:
            frame = _next_frame(buffer, at)
        except DecodeError:
            if at == 0:
                raise
            break
        if frame is None:
            break
        row = row_of(frame, collections=collections)
        if row is None:
            controls.append(ControlFrame(len(rows), at, len(frame)))
        else:
            rows.append(row)
        at += len(frame)
    return Expected(at, rows, tuple(controls))


def check(columns: Implementation, buffer: bytes, *, collections: bool) -> Decoded | None:
    """Compares an implementation with the dialect; None where both refuse the first frame."""
    try:
        wanted = expected(buffer, collections=collections)
    except DecodeError as problem:
        with pytest.raises(DecodeError) as caught:
            columns.decode(buffer, collections=collections)
        assert not caught.value.usable
        assert (caught.value.field, caught.value.offset) == (problem.field, problem.offset)
        return None
    found = columns.decode(buffer, collections=collections)
    found.batch.validate(full=True)
    assert found.batch.schema.equals(SCHEMA)
    assert found.consumed == wanted.consumed
    assert found.controls == wanted.controls
    assert found.batch.to_pylist() == wanted.rows
    return found


def frame(
    opcode: int,
    extras: bytes,
    key: bytes = b"key",
    value: bytes = b"value",
    *,
    magic: int = 0x80,
    frames: bytes = b"",
    datatype: int = 0,
    key_length: int | None = None,
    extras_length: int | None = None,
    body_length: int | None = None,
) -> bytes:
    """A frame with any lengths in its header, true or not."""
    body = frames + extras + key + value
    header = Header(
        magic,
        opcode,
        len(frames),
        len(key) if key_length is None else key_length,
        len(extras) if extras_length is None else extras_length,
        datatype,
        513,
        len(body) if body_length is None else body_length,
        0xA1B2C3D4,
        0x0102030405060708,
    )
    return pack_header(header) + body


def mutation_extras(seqno: int = 9, nmeta: int = 0) -> bytes:
    return struct.pack(">QQIIIHB", seqno, 2**63 + 1, 0x02000006, 77, 5, nmeta, 1)


def deletion_1_extras(nmeta: int = 0) -> bytes:
    return struct.pack(">QQH", 10, 3, nmeta)


DELETION_2_EXTRAS = struct.pack(">QQIB", 11, 4, 1_700_000_000, 7)
EXPIRATION_EXTRAS = struct.pack(">QQI", 12, 5, 1_700_000_001)
STREAM_ID = b"\x22\x01\x02"

#: Every kind of change, with and without a stream id; the key is valid with and without
#: collections.
_KEY = b"\x00key"
CHANGES = {
    "mutation": frame(0x57, mutation_extras(), _KEY),
    "deletion 1": frame(0x58, deletion_1_extras(), _KEY, b""),
    "deletion 2": frame(0x58, DELETION_2_EXTRAS, _KEY, b""),
    "expiration": frame(0x59, EXPIRATION_EXTRAS, _KEY, b""),
    "mutation of a stream": frame(0x57, mutation_extras(), _KEY, magic=0x08, frames=STREAM_ID),
    "deletion 1 of a stream": frame(
        0x58, deletion_1_extras(), _KEY, b"", magic=0x08, frames=STREAM_ID
    ),
    "deletion 2 of a stream": frame(
        0x58, DELETION_2_EXTRAS, _KEY, b"", magic=0x08, frames=STREAM_ID
    ),
    "expiration of a stream": frame(
        0x59, EXPIRATION_EXTRAS, _KEY, b"", magic=0x08, frames=STREAM_ID
    ),
}
assert HEADER_SIZE == 24
