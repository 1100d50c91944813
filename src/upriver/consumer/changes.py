"""`Change`: one row of an Arrow batch as an object.

A batch is converted column by column, which is much faster than reading each cell through Arrow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from ..model import Datatype, Op
from ..wire.columns.result import numbers
from ..wire.values import unwrap

_OPS: Final = tuple(Op)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBERS: Final = (
    "vbucket",
    "seqno",
    "rev",
    "cas",
    "flags",
    "expiry",
    "datatype",
    "collection",
)


class Change(NamedTuple):
    """One change of one document."""

    op: Op
    vbucket: int
    seqno: int
    rev: int
    cas: int
    flags: int
    #: Of a mutation: when the document expires. Of a deletion: when it was deleted. Seconds since
    #: 1970; 0 if never or unknown.
    expiry: int
    #: The encoding of the value, as `Datatype` bits.
    datatype: int
    #: The collection's id; 0 is the default one.
    collection: int
    key: bytes
    value: bytes

    @property
    def time(self) -> datetime:
        """When the change was written, from the CAS: nanoseconds, except for its low 16 bits."""
        return _EPOCH + timedelta(microseconds=(self.cas & ~0xFFFF) // 1000)

    @property
    def body(self) -> bytes:
        """The document, decompressed and without its extended attributes."""
        return unwrap(self.value, Datatype(self.datatype))[1]

    @property
    def xattrs(self) -> dict[str, Any]:
        """The extended attributes by name; empty unless the settings ask for them."""
        xattrs, _ = unwrap(self.value, Datatype(self.datatype))
        return {name: json.loads(value) for name, value in xattrs.items()}

    def json(self) -> Any:
        """The body, parsed as JSON."""
        return json.loads(self.body)


def changes_of(batch: pa.RecordBatch) -> Iterator[Change]:
    """The rows of a batch, in order."""
    ops = batch.column("op")
    assert isinstance(ops, pa.DictionaryArray)
    columns: list[list[Any]] = [list(map(_OPS.__getitem__, numbers(ops.indices).tolist()))]
    columns += [numbers(batch.column(name)).tolist() for name in _NUMBERS]
    columns += [_bytes_of(batch.column(name)) for name in ("key", "value")]
    return map(Change._make, zip(*columns, strict=True))


def _bytes_of(column: pa.Array[Any]) -> list[bytes]:
    """The cells of a binary column, as slices of one copy of its data buffer."""
    if not len(column):
        return []
    _, offset_buffer, data_buffer = column.buffers()
    assert offset_buffer is not None
    ends = np.frombuffer(memoryview(offset_buffer), np.int32)[
        column.offset : column.offset + len(column) + 1
    ]
    first, last = int(ends[0]), int(ends[-1])
    data = b"" if data_buffer is None else data_buffer.slice(first, last - first).to_pybytes()
    return [data[start:end] for start, end in pairwise((ends - first).tolist())]
