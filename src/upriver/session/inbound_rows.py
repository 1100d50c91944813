"""Decodes a producer's bytes into batches of rows, with the other messages in between.

The current DCP dialect is decoded into columns, thousands of changes at a time. The older drafts
are decoded message by message into the same columns, so the caller need not know the draft. Bytes
may arrive in any pieces: a chunk ends with the last complete packet. This module knows no streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import pyarrow as pa

from ..errors import DecodeError
from ..model import Op
from ..wire import columns
from ..wire import messages as m
from ..wire.columns.result import words
from ..wire.dialects import Dialect
from ..wire.dialects.draft002 import opaque_of
from ..wire.framing import Framer, packet_length
from .flow_control import counted_size

#: The buffer size of one read. Large reads make columns efficient: the fixed cost of a batch equals
#: that of some thousand rows.
READ_SIZE: Final = 2 << 20

_OP_NAMES: Final = words([op.value for op in Op])
_OPS: Final = {
    kind: list(Op).index(op)
    for kind, op in (
        (m.Mutation, Op.MUTATION),
        (m.Deletion, Op.DELETION),
        (m.Expiration, Op.EXPIRATION),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable(m.Request):
    """A whole packet that breaks a rule of draft 002, which has a message to say so."""

    problem: DecodeError


@dataclass(frozen=True, slots=True)
class RowChunk:
    """Rows, and the other messages before, between and after them."""

    batch: pa.RecordBatch
    #: Each message with the number of rows that precede it.
    others: tuple[tuple[int, m.Message], ...]
    #: Bytes of the flow-control window that the rows, and the other messages, occupy.
    rows_counted: int
    others_counted: int


class Inbound(Protocol):
    """Decodes bytes into chunks. After a `DecodeError` nothing more can be decoded."""

    def space(self) -> memoryview:
        """Returns the buffer into which the next bytes are written."""

    def wrote(self, size: int) -> Iterator[RowChunk]:
        """Decodes ``size`` bytes that were written to `space`."""


def inbound_for(dialect: Dialect, vbucket_of: Callable[[int], int]) -> Inbound:
    """Returns the decoder for a dialect.

    ``vbucket_of`` maps an opaque to its vbucket, for drafts whose packets do not carry it.
    """
    if dialect.has_columns:
        return _Columns(dialect)
    return _Messages(dialect, vbucket_of)


class _Buffered:
    """The receive buffer that both decoders share."""

    def __init__(self) -> None:
        self._buffer = bytearray(READ_SIZE)
        self._filled = 0

    def space(self) -> memoryview:
        if self._filled == len(self._buffer):
            # the decoder has found the packet's length to be within its limit
            self._resize((packet_length(self._buffer) or 0) + READ_SIZE)
        # no more than one read beyond a large packet, so that no batch has several of them
        return memoryview(self._buffer)[self._filled : self._filled + READ_SIZE]

    def _resize(self, size: int) -> None:
        """Allocates a new buffer: a bytearray with exported memoryviews cannot be resized."""
        grown = bytearray(size)
        grown[: self._filled] = memoryview(self._buffer)[: self._filled]
        self._buffer = grown

    def _drop(self, size: int) -> None:
        left = self._filled - size
        if left:
            self._buffer[:left] = self._buffer[size : self._filled]
        self._filled = left
        if len(self._buffer) > READ_SIZE > left:  # it grew for one large packet; shrink it again
            self._resize(READ_SIZE)


class _Columns(_Buffered):
    """Decodes the current DCP dialect into columns."""

    def __init__(self, dialect: Dialect) -> None:
        super().__init__()
        self._dialect = dialect

    def wrote(self, size: int) -> Iterator[RowChunk]:
        self._filled += size
        # Decode again after each consumed chunk: the next byte may be invalid, and the error must
        # be raised now although no more bytes may come.
        while self._filled:
            view = memoryview(self._buffer)[: self._filled]
            decoded = columns.decode(view, collections=self._dialect.collections)
            if not decoded.consumed:
                return
            chunk, problem = self._chunk(view, decoded)
            self._drop(decoded.consumed)
            yield chunk
            if problem is not None:
                raise problem

    def _chunk(
        self, view: memoryview, decoded: columns.Decoded
    ) -> tuple[RowChunk, DecodeError | None]:
        """Builds a chunk up to the first packet that breaks a rule, and returns that error."""
        others, counted, size_of_others = [], 0, 0
        batch, problem = decoded.batch, None
        odd: list[tuple[int, m.Mutation | m.Deletion]] = []
        for rows_before, offset, length in decoded.controls:
            packet = bytes(view[offset : offset + length])
            try:
                message = self._dialect.decode(packet)
            except DecodeError as broken:
                batch, problem = batch.slice(0, rows_before), broken
                break
            if isinstance(message, m.Mutation | m.Deletion):
                odd.append((rows_before, message))  # framing extras that columns cannot decode
                continue
            others.append((rows_before + len(odd), message))
            counted += counted_size(packet)
            size_of_others += length
        rows_counted = decoded.consumed - size_of_others
        if odd:
            batch = _with_changes(batch, odd)
        return RowChunk(batch, tuple(others), rows_counted, counted), problem


class _Messages(_Buffered):
    """Decodes the older drafts packet by packet."""

    def __init__(self, dialect: Dialect, vbucket_of: Callable[[int], int]) -> None:
        super().__init__()
        self._dialect = dialect
        self._vbucket_of = vbucket_of
        self._framer = Framer()

    def wrote(self, size: int) -> Iterator[RowChunk]:
        changes: list[m.Mutation | m.Deletion] = []
        others: list[tuple[int, m.Message]] = []
        rows_counted = others_counted = 0
        data = bytes(memoryview(self._buffer)[:size])
        problem: DecodeError | None = None
        try:
            for packet in self._framer.feed(data):
                message = self._decode(packet)
                if isinstance(message, m.Mutation | m.Deletion):
                    if message.vbucket == m.VBUCKET_NOT_CARRIED:
                        message = replace(message, vbucket=self._vbucket_of(message.opaque))
                    changes.append(message)
                    rows_counted += len(packet)
                else:
                    others.append((len(changes), message))
                    others_counted += len(packet)
        except DecodeError as broken:
            problem = broken
        if changes or others:
            yield RowChunk(_as_batch(changes), tuple(others), rows_counted, others_counted)
        if problem is not None:
            raise problem

    def _decode(self, packet: bytes) -> m.Message:
        try:
            return self._dialect.decode(packet)
        except DecodeError as broken:
            if not broken.usable or self._dialect.has_memcached_header:
                raise
            return Unreadable(opaque=opaque_of(packet), problem=broken)


def _with_changes(
    batch: pa.RecordBatch, odd: list[tuple[int, m.Mutation | m.Deletion]]
) -> pa.RecordBatch:
    """Inserts single changes into a batch, each after the given number of rows."""
    pieces, at = [], 0
    for rows_before, change in odd:
        pieces += [batch.slice(at, rows_before - at), _as_batch([change])]
        at = rows_before
    (whole,) = pa.Table.from_batches([*pieces, batch.slice(at)]).combine_chunks().to_batches()
    return whole


def _as_batch(changes: list[m.Mutation | m.Deletion]) -> pa.RecordBatch:
    """Converts decoded changes to the column schema of DCP."""
    cells: dict[str, list[Any]] = {
        "vbucket": [change.vbucket for change in changes],
        "seqno": [change.seqno for change in changes],
        "rev": [change.rev for change in changes],
        "cas": [change.cas for change in changes],
        "flags": [change.flags for change in changes],
        "expiry": [_time(change) for change in changes],
        "datatype": [int(change.datatype) for change in changes],
        "collection": [change.collection or 0 for change in changes],
        "key": [change.key for change in changes],
        "value": [change.value for change in changes],
        "opaque": [change.opaque for change in changes],
    }
    ops = pa.array([_OPS[type(change)] for change in changes], pa.int8())
    arrays: list[pa.Array[Any]] = [pa.DictionaryArray.from_arrays(ops, _OP_NAMES)]
    arrays += [pa.array(cells[field.name], field.type) for field in list(columns.SCHEMA)[1:]]
    return pa.RecordBatch.from_arrays(arrays, schema=columns.SCHEMA)


def _time(change: m.Mutation | m.Deletion) -> int:
    """Returns a mutation's expiry, or a deletion's delete time; 0 if its draft carries none."""
    if isinstance(change, m.Mutation):
        return change.expiry
    return change.delete_time or 0
