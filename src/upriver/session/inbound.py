"""What a producer sends, as chunks of rows with the other messages between them.

Today's DCP goes through the columns, thousands of changes at a time; the older drafts are decoded
message by message into the same columns, so whoever takes chunks need not know the draft. Bytes
are taken as they come: a chunk ends with the last whole packet. Nothing here knows a stream.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import pyarrow as pa

from ..errors import DecodeError
from ..model import Op
from ..wire import columns
from ..wire import messages as m
from ..wire.dialects import Dcp, Dialect
from ..wire.framing import Framer
from .flow import counted_size

__all__ = ["Chunk", "Inbound", "inbound_for"]

#: Room for what one read brings. Large reads make columns cheap: a batch costs as much as some
#: thousand rows before its first one.
READ_SIZE: Final = 2 << 20
#: A buffer that grew beyond this for one large packet is given back.
_SHRINK_ABOVE: Final = READ_SIZE

_OP_NAMES: Final = pa.array([op.value for op in Op], pa.string())
_OPS: Final = {
    kind: list(Op).index(op)
    for kind, op in (
        (m.Mutation, Op.MUTATION),
        (m.Deletion, Op.DELETION),
        (m.Expiration, Op.EXPIRATION),
    )
}


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows, and the messages before, between and behind them."""

    batch: pa.RecordBatch
    #: How many rows come before each message.
    others: tuple[tuple[int, m.Message], ...]
    #: What the rows' packets, and those of the other messages, take of the window.
    rows_counted: int
    others_counted: int


class Inbound(Protocol):
    """Takes bytes, gives chunks. `DecodeError` where bytes break a rule: nothing can follow it."""

    def space(self) -> memoryview:
        """Where the next bytes may be written."""

    def wrote(self, size: int) -> Iterator[Chunk]:
        """Takes ``size`` bytes that were written there."""

    def feed(self, data: bytes | memoryview) -> Iterator[Chunk]:
        """Takes bytes from elsewhere."""


def inbound_for(dialect: Dialect, vbucket_of: Callable[[int], int]) -> Inbound:
    """The way for a dialect. ``vbucket_of`` an opaque, where packets do not carry the vbucket."""
    if isinstance(dialect, Dcp):
        return _Columns(dialect)
    return _Messages(dialect, vbucket_of)


class _Buffered(ABC):
    """The buffer that both ways receive into."""

    def __init__(self) -> None:
        self._buffer = bytearray(READ_SIZE)
        self._filled = 0

    def space(self) -> memoryview:
        if self._filled == len(self._buffer):
            self._resize(2 * len(self._buffer))
        return memoryview(self._buffer)[self._filled :]

    def feed(self, data: bytes | memoryview) -> Iterator[Chunk]:
        while data:
            space = self.space()
            size = min(len(space), len(data))
            space[:size] = data[:size]
            space.release()
            yield from self.wrote(size)
            data = data[size:]

    @abstractmethod
    def wrote(self, size: int) -> Iterator[Chunk]: ...

    def _resize(self, size: int) -> None:
        """A new buffer, because whoever still looks at the old one keeps it from growing."""
        grown = bytearray(size)
        grown[: self._filled] = memoryview(self._buffer)[: self._filled]
        self._buffer = grown

    def _drop(self, size: int) -> None:
        left = self._filled - size
        if left:
            self._buffer[:left] = self._buffer[size : self._filled]
        self._filled = left
        if len(self._buffer) > _SHRINK_ABOVE and left < READ_SIZE:
            self._resize(READ_SIZE)


class _Columns(_Buffered):
    """DCP: changes straight to columns."""

    def __init__(self, dialect: Dcp) -> None:
        super().__init__()
        self._dialect = dialect

    def wrote(self, size: int) -> Iterator[Chunk]:
        self._filled += size
        # once more after what was taken: a first byte may be wrong, and nothing may come behind it
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
    ) -> tuple[Chunk, DecodeError | None]:
        """What was decoded, up to the first packet that breaks a rule."""
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
                odd.append((rows_before, message))  # with framing extras that columns do not know
                continue
            others.append((rows_before + len(odd), message))
            counted += counted_size(packet)
            size_of_others += length
        rows_counted = decoded.consumed - size_of_others
        if odd:
            batch = _with_changes(batch, odd)
        return Chunk(batch, tuple(others), rows_counted, counted), problem


class _Messages(_Buffered):
    """The older drafts: packet by packet."""

    def __init__(self, dialect: Dialect, vbucket_of: Callable[[int], int]) -> None:
        super().__init__()
        self._dialect = dialect
        self._vbucket_of = vbucket_of
        self._framer = Framer()

    def wrote(self, size: int) -> Iterator[Chunk]:
        changes: list[m.Mutation | m.Deletion] = []
        others: list[tuple[int, m.Message]] = []
        rows_counted = others_counted = 0
        data = bytes(memoryview(self._buffer)[:size])
        problem: DecodeError | None = None
        try:
            for packet in self._framer.feed(data):
                message = self._dialect.decode(packet)
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
            yield Chunk(_as_batch(changes), tuple(others), rows_counted, others_counted)
        if problem is not None:
            raise problem


def _with_changes(
    batch: pa.RecordBatch, odd: list[tuple[int, m.Mutation | m.Deletion]]
) -> pa.RecordBatch:
    """Rows with single changes among them, each behind so many of the rows."""
    pieces, at = [], 0
    for rows_before, change in odd:
        pieces += [batch.slice(at, rows_before - at), _as_batch([change])]
        at = rows_before
    (whole,) = pa.Table.from_batches([*pieces, batch.slice(at)]).combine_chunks().to_batches()
    return whole


def _as_batch(changes: list[m.Mutation | m.Deletion]) -> pa.RecordBatch:
    """Decoded changes as the columns that DCP's come in."""
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
    """A mutation's expiry; of a deletion its own time, where its draft tells it."""
    if isinstance(change, m.Mutation):
        return change.expiry
    return change.delete_time or 0
