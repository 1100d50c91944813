"""The value columns of decoded changes: decompressed, split from xattrs, optionally as text.

Most batches have no compressed values and no xattrs; then no value is copied. A value that cannot
be decoded or is not text stays unchanged (its datatype says what it is), goes into the column for
such values, or fails the read, as the options say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import UpriverError
from ..model import Datatype, Op
from ..wire.columns.result import OPS
from ..wire.values import inflate, split_xattrs
from .options import RowFormat

_Array: TypeAlias = "pa.Array[Any]"
_Mask: TypeAlias = "npt.NDArray[np.bool_]"

#: The type of the column ``xattrs``: their values are JSON, so they are text.
XATTRS: Final = pa.map_(pa.string(), pa.string())

_WRAPPED: Final = int(Datatype.SNAPPY | Datatype.XATTR)
_MUTATION: Final = OPS.index(Op.MUTATION)

#: The bytes that decompressed values may add to a batch before it is split: small packets
#: decompress to 21 MiB each, and a binary column of Arrow holds at most 2 GiB.
_MOST_UNPACKED: Final = 8 * 1024 * 1024

#: The most bytes of a key that an error shows.
_KEY_SHOWN: Final = 60


@dataclass(frozen=True, slots=True)
class Bodies:
    """The columns made from a batch's values. None stands for a column of nulls."""

    value: _Array
    datatype: _Array
    xattrs: _Array | None
    corrupt: _Array | None


@dataclass(slots=True)
class _Unwrapped:
    """The decoded values of a batch, by row, for the rows that needed decoding."""

    bodies: dict[int, bytes] = field(default_factory=dict)
    xattrs: dict[int, list[tuple[str, str]]] = field(default_factory=dict)
    broken: list[int] = field(default_factory=list)
    size: int = 0


def read_bodies(
    decoded: pa.RecordBatch, rows: RowFormat
) -> Iterator[tuple[pa.RecordBatch, Bodies]]:
    """A batch and its value columns; in several parts if decompression makes them large."""
    datatypes = decoded.column("datatype").to_numpy()
    wrapped = np.flatnonzero(datatypes & _WRAPPED)
    start, found = 0, _Unwrapped()
    values = _bytes_at(decoded.column("value"), wrapped)
    for row, value in zip(wrapped.tolist(), values, strict=True):
        if found.size > _MOST_UNPACKED:
            yield _piece(decoded.slice(start, row - start), found, rows)
            start, found = row, _Unwrapped()
        try:
            _unwrap(value, int(datatypes[row]), row - start, found, rows)
        except ValueError as problem:
            if rows.fail_fast:
                raise _bad_value(decoded, row, str(problem)) from None
            found.broken.append(row - start)
    yield _piece(decoded.slice(start), found, rows)


def _unwrap(value: bytes, datatype: int, row: int, found: _Unwrapped, rows: RowFormat) -> None:
    if datatype & Datatype.SNAPPY:
        if not rows.inflate:
            return
        value = inflate(value)
    if datatype & Datatype.XATTR:
        xattrs, value = split_xattrs(value)
        if rows.xattrs:
            found.xattrs[row] = [(name, content.decode()) for name, content in xattrs.items()]
    found.bodies[row] = value
    found.size += len(value)


def _piece(
    decoded: pa.RecordBatch, found: _Unwrapped, rows: RowFormat
) -> tuple[pa.RecordBatch, Bodies]:
    value = _replaced(decoded.column("value"), found.bodies)
    present = (_lengths(value) > 0) & rows.values
    if rows.values:  # an empty value is not null
        op: Any = decoded.column("op")
        present |= op.indices.to_numpy() == _MUTATION
    corrupt = None
    if rows.text:
        value, corrupt = _as_text(decoded, value, present, found.broken, rows)
    else:
        value = _only(value, present)
    return decoded, Bodies(
        value=value,
        datatype=_datatypes(decoded, found),
        xattrs=_xattrs(decoded.num_rows, found),
        corrupt=corrupt,
    )


def _datatypes(decoded: pa.RecordBatch, found: _Unwrapped) -> _Array:
    datatypes = decoded.column("datatype").to_numpy().astype(np.int32)
    if found.bodies:
        datatypes[list(found.bodies)] &= ~_WRAPPED
    return pa.array(datatypes)


def _xattrs(count: int, found: _Unwrapped) -> _Array | None:
    if not found.xattrs:
        return None
    return pa.array([found.xattrs.get(row) for row in range(count)], XATTRS)


def _as_text(
    decoded: pa.RecordBatch, value: _Array, present: _Mask, broken: list[int], rows: RowFormat
) -> tuple[_Array, _Array | None]:
    """The values as strings, and separately those that are not text."""
    text = present.copy()
    text[broken] = False
    try:
        strings = _only(value, text).cast(pa.string())  # checks UTF-8
    except pa.ArrowInvalid:
        for row in np.flatnonzero(text).tolist():
            try:
                value[row].as_py().decode()
            except UnicodeDecodeError as problem:
                if rows.fail_fast:
                    raise _bad_value(decoded, row, str(problem)) from None
                text[row] = False
        strings = _only(value, text).cast(pa.string())
    corrupt = present & ~text
    if not corrupt.any():
        return strings, None
    # ``take`` instead of a mask: a masked column would carry all bytes a second time
    places: Any = pa.array(np.arange(len(value)), mask=~corrupt)
    return strings, value.take(places)


def _replaced(value: _Array, bodies: dict[int, bytes]) -> _Array:
    """The column with some of its cells replaced."""
    if not bodies:
        return value
    fresh = pa.array(bodies.values(), pa.binary())
    if len(fresh) == len(value):
        return fresh
    places = np.arange(len(value))
    places[list(bodies)] = len(value) + np.arange(len(fresh))
    return pa.concat_arrays([value, fresh]).take(places)


def _bytes_at(value: _Array, places: npt.NDArray[np.intp]) -> list[Any]:
    return value.take(places).to_pylist() if len(places) else []


def _lengths(value: _Array) -> npt.NDArray[np.int32]:
    buffers: list[Any] = value.buffers()
    offsets: npt.NDArray[np.int32] = np.frombuffer(buffers[1], np.int32)
    return offsets[value.offset + 1 :][: len(value)] - offsets[value.offset :][: len(value)]


def _only(value: _Array, present: _Mask) -> _Array:
    """The column with nulls where ``present`` is false, sharing the same bytes."""
    if present.all():
        return value
    bits: Any = np.packbits(np.pad(present, (value.offset, 0)), bitorder="little")
    buffers: list[Any] = [pa.py_buffer(bits), *value.buffers()[1:]]
    return pa.Array.from_buffers(value.type, len(value), buffers, offset=value.offset)


def _bad_value(decoded: pa.RecordBatch, row: int, problem: str) -> UpriverError:
    vbucket, seqno, key = (
        decoded.column(name)[row].as_py() for name in ("vbucket", "seqno", "key")
    )
    # a token to search for, because Spark keeps only the text of an error
    return UpriverError(
        f"DCP-BAD-VALUE vb={vbucket} seqno={seqno} key={key[:_KEY_SHOWN]!r}: {problem}; "
        "use mode PERMISSIVE to keep such values as bytes"
    )
