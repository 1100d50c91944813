"""The schema of the source's rows, and their conversion from the consumer's columns.

    op          string     mutation, deletion, expiration, rollback, restate or restated
    vbucket     int
    seqno       bigint     of a rollback: what the vbucket goes back to
    branch      int        grows with every rollback of the vbucket
    vbuuid      bigint     names that branch
    key         binary     null in a rollback, like everything below
    value       binary     null where there is none; a string if the reader asks for text
    cas         bigint
    rev         bigint
    flags       bigint
    expiry      timestamp  when the document expires; null if never, and in what is gone
    datatype    int        1 JSON, 2 Snappy, 4 extended attributes: what the value still is
    scope       string     null where the collection is not known
    collection  string     its number (0x1f) where its name is not known
    event_time  timestamp  from the CAS; null if that is no time

On request there are ``xattrs map<string, string>`` and, with text, a binary column for values that
are no text.

Spark has no unsigned numbers, and decimals cost a third of its throughput and more. So unsigned
64-bit numbers keep their bits as bigint, as they would in a long of Java. That is exact; it is the
same number below 2**63 (a CAS until the year 2262; servers make vbuuids of 48 bits), and
less by 2**64 above.

The conversion works on columns, not on single rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import ConfigError, RemoteProtocolError
from ..model import Op
from ..wire.columns.result import OPS
from .collection_events import unnamed
from .options import RowFormat
from .value_columns import XATTRS, Bodies, read_bodies

#: The ``op`` of a row that rolls its vbucket back to its seqno.
ROLLBACK: Final = "rollback"
#: The ``op`` of a document that is restated, and of the list of all of them.
RESTATE: Final = "restate"
RESTATED: Final = "restated"

_Array: TypeAlias = "pa.Array[Any]"
_Numbers: TypeAlias = "npt.NDArray[Any]"

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_OP_NAMES: Final = tuple(op.value for op in OPS)
_MUTATION: Final = OPS.index(Op.MUTATION)
#: Constant text columns that are cached for the next batch: an op, a scope, a collection, and one
#: more for smaller batches. Each is at most as large as a column of keys.
_TEXTS_AT_HAND: Final = 4

_MICROSECONDS: Final = 1_000_000
_NANOSECONDS_EACH: Final = np.uint64(1_000)
#: The low bits of a CAS are a counter.
_TIME_BITS: Final = np.uint64(~0xFFFF & 0xFFFF_FFFF_FFFF_FFFF)
#: From 2010, before such CAS values existed, to 2100: any other CAS is not a time.
_FIRST_TIME: Final = np.uint64(1_262_304_000_000_000_000)
_LAST_TIME: Final = np.uint64(4_102_444_800_000_000_000)

#: vbuckets have 16 bits.
_VBUCKETS: Final = 1 << 16
_LAST_SEQNO: Final = 2**63 - 1


@cache
def arrow_schema(rows: RowFormat) -> pa.Schema:
    """The Arrow schema of the batches that are given to Spark."""
    columns: list[tuple[str, Any]] = [
        ("op", pa.string()),
        ("vbucket", pa.int32()),
        ("seqno", pa.int64()),
        ("branch", pa.int32()),
        ("vbuuid", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.string() if rows.text else pa.binary()),
        ("cas", pa.int64()),
        ("rev", pa.int64()),
        ("flags", pa.int64()),
        ("expiry", TIMESTAMP),
        ("datatype", pa.int32()),
        ("scope", pa.string()),
        ("collection", pa.string()),
        ("event_time", TIMESTAMP),
    ]
    if rows.xattrs:
        columns.append(("xattrs", XATTRS))
    if rows.corrupt_column is not None:
        # Spark's column names are case-insensitive
        if rows.corrupt_column.lower() in (name for name, _ in columns):
            raise ConfigError(
                f"columnNameOfCorruptRecord: rows have a column {rows.corrupt_column} already"
            )
        columns.append((rows.corrupt_column, pa.binary()))
    if not rows.columns:
        return pa.schema(columns)
    known = {name.lower(): (name, kind) for name, kind in columns}
    for name in rows.columns:
        if name not in known:
            there = ", ".join(name for name, _ in columns)
            raise ConfigError(f"columns: rows have no column {name!r}, only {there}")
    return pa.schema([known[name] for name in rows.columns])


class RowBuilder:
    """Builds the rows of vbuckets, each of which is on one branch.

    ``names`` returns the scope and the name of a collection id, or raises LookupError for an
    unknown id; it is called once per id.
    """

    def __init__(
        self,
        rows: RowFormat,
        *,
        branches: Mapping[int, int],
        vbuuids: Mapping[int, int],
        names: Callable[[int], tuple[str | None, str]],
    ) -> None:
        self._rows = rows
        self._schema = arrow_schema(rows)
        self._names = names
        self._known: dict[int, tuple[str | None, str]] = {}
        self._branches = np.full(_VBUCKETS, -1, np.int32)
        self._vbuuids = np.zeros(_VBUCKETS, np.uint64)
        for vbucket, branch in branches.items():
            self._branches[vbucket] = branch
            self._vbuuids[vbucket] = vbuuids[vbucket]

    def on_branch(self, vbucket: int, vbuuid: int) -> None:
        """Sets the branch of the following changes of a vbucket."""
        self._vbuuids[vbucket] = vbuuid

    def rollbacks(self, points: Mapping[int, int]) -> pa.RecordBatch:
        """A rollback row for each vbucket, with the seqno to which it rolls back."""
        seqnos = pa.array(list(points.values()), pa.uint64())
        columns = self._placed(np.array(list(points), np.uint16), seqnos)
        columns["op"] = pa.repeat(ROLLBACK, len(points))
        return self._assembled(len(points), columns)

    def changes(self, decoded: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows of decoded changes: one batch, or several if decompression makes it large."""
        if decoded.num_rows:
            for piece, bodies in read_bodies(decoded, self._rows):
                yield self._batch(piece, bodies)

    def _batch(self, decoded: pa.RecordBatch, bodies: Bodies) -> pa.RecordBatch:
        op: Any = decoded.column("op")
        ops = op.indices.to_numpy()
        cas = decoded.column("cas")
        columns = self._placed(decoded.column("vbucket").to_numpy(), decoded.column("seqno"))
        columns |= {
            "op": _spelled(_OP_NAMES, ops),
            "key": decoded.column("key"),
            "value": bodies.value,
            "cas": cas.view(pa.int64()),
            "rev": decoded.column("rev").view(pa.int64()),
            "flags": pa.array(decoded.column("flags").to_numpy().astype(np.int64)),
            "expiry": _expiries(decoded.column("expiry").to_numpy(), ops == _MUTATION),
            "datatype": bodies.datatype,
            "event_time": _event_times(cas.to_numpy()),
        }
        columns["scope"], columns["collection"] = self._named(
            decoded.column("collection").to_numpy()
        )
        if bodies.xattrs is not None:
            columns["xattrs"] = bodies.xattrs
        if bodies.corrupt is not None and self._rows.corrupt_column is not None:
            columns[self._rows.corrupt_column] = bodies.corrupt
        return self._assembled(decoded.num_rows, columns)

    def _placed(self, vbuckets: _Numbers, seqnos: _Array) -> dict[str, _Array]:
        """The columns vbucket, seqno, branch and vbuuid."""
        last = int(seqnos.to_numpy().max(initial=0))
        if last > _LAST_SEQNO:
            raise RemoteProtocolError(f"the seqno {last} does not fit Spark's bigint")
        branches = self._branches[vbuckets]
        if branches.min(initial=0) < 0:
            stray = int(vbuckets[branches < 0][0])
            raise RemoteProtocolError(f"a change of vbucket {stray} was not requested")
        return {
            "vbucket": pa.array(vbuckets.astype(np.int32)),
            "seqno": seqnos.view(pa.int64()),
            "branch": pa.array(branches),
            "vbuuid": pa.array(self._vbuuids[vbuckets].view(np.int64)),
        }

    def _named(self, collections: _Numbers) -> tuple[_Array, _Array]:
        if (collections == collections[0]).all():
            numbers, indices = collections[:1], np.zeros(len(collections), np.int8)
        else:
            encoded: Any = pa.array(collections).dictionary_encode()
            numbers, indices = encoded.dictionary.to_numpy(), encoded.indices.to_numpy()
        names = [self._name(number) for number in numbers.tolist()]
        scopes, titles = zip(*names, strict=True)
        return _spelled(scopes, indices), _spelled(titles, indices)

    def _name(self, number: int) -> tuple[str | None, str]:
        if number not in self._known:
            try:
                self._known[number] = self._names(number)
            except LookupError:
                self._known[number] = unnamed(number)
        return self._known[number]

    def _assembled(self, count: int, columns: Mapping[str, _Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            [
                columns[cell.name] if cell.name in columns else pa.nulls(count, cell.type)
                for cell in self._schema
            ],
            schema=self._schema,
        )


def _spelled(texts: Sequence[str | None], indices: _Numbers) -> _Array:
    """A column of a few distinct texts; in most batches there is only one."""
    count, first = len(indices), texts[indices[0]]
    if first is not None and (len(texts) == 1 or (indices == indices[0]).all()):
        return _repeated(first, 1 << (count - 1).bit_length()).slice(0, count)
    return pa.array(texts, pa.string()).take(indices)


@lru_cache(maxsize=_TEXTS_AT_HAND)
def _repeated(text: str, count: int) -> _Array:
    return pa.repeat(text, count)


def _expiries(seconds: _Numbers, mutations: _Numbers) -> _Array:
    """The expiry of mutations; in other changes the number is the time of the deletion."""
    never = (seconds == 0) | ~mutations
    moments = seconds.astype(np.int64) * _MICROSECONDS
    return pa.array(moments, mask=never if never.any() else None).view(TIMESTAMP)


def _event_times(cas: _Numbers) -> _Array:
    moments = ((cas & _TIME_BITS) // _NANOSECONDS_EACH).view(np.int64)
    no_time = (cas < _FIRST_TIME) | (cas >= _LAST_TIME)
    return pa.array(moments, mask=no_time if no_time.any() else None).view(TIMESTAMP)
