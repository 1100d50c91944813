"""Row filters: remove document bodies, decompress values, remove internal documents.

Some server releases send values that the client did not request, and no server leaves out the
documents that transactions and the database itself write. So the client filters rows here, the same
way for every client. Steps still cover every seqno, and the counted bytes stay those of the
received rows, because the flow-control window counts what was received.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...model import Datatype
from ...session.consumer_events import Rows
from ...wire.columns.result import numbers
from ...wire.values import inflate, join_xattrs, unwrap
from ..changes import Change, changes_of

#: Key prefix of the documents in which transactions keep their state.
_TRANSACTIONS: Final = "_txn:"
_NANOSECONDS: Final = 10**9


def without_bodies(rows: Rows, *, xattrs: bool) -> Rows:
    """Removes the values, except extended attributes if ``xattrs``, and the datatypes with them.

    Needed because not every release can leave out values, and some leave the datatype of a value
    that they left out.
    """
    values = rows.batch.column("value")
    assert isinstance(values, pa.BinaryArray)
    lengths: Any = pc.binary_length(values)
    if pc.sum(lengths).as_py() or numbers(rows.batch.column("datatype")).any():
        return _changed(rows, _xattrs_only if xattrs else _nothing)
    return rows


def inflated(rows: Rows) -> Rows:
    """Decompresses Snappy values."""
    datatypes = numbers(rows.batch.column("datatype"))
    return _changed(rows, _inflated) if (datatypes & Datatype.SNAPPY).any() else rows


def without_internal(rows: Rows, collections: frozenset[int]) -> Rows:
    """Removes the documents of transactions, and all documents of ``collections``."""
    batch = rows.batch
    keys = batch.column("key")
    assert isinstance(keys, pa.BinaryArray)
    internal = pc.starts_with(keys, _TRANSACTIONS).to_numpy(zero_copy_only=False)
    if collections:
        internal = internal | np.isin(numbers(batch.column("collection")), list(collections))
    if not internal.any():
        return rows
    return rows.filter(~internal)


def of_vbuckets(rows: Rows, vbuckets: Collection[int], hidden: Collection[int]) -> Rows:
    """Keeps only rows of some vbuckets, and none of the collections in ``hidden``.

    The steps of other vbuckets go with their rows.
    """
    batch = rows.batch
    kept = np.isin(numbers(batch.column("vbucket")), list(vbuckets))
    if hidden:
        kept &= ~np.isin(numbers(batch.column("collection")), list(hidden))
    if not kept.all():
        rows = rows.filter(kept)
    steps = tuple(step for step in rows.steps if step.vbucket in vbuckets)
    return replace(rows, steps=steps)


def written_since(rows: Rows, moment: datetime) -> Rows:
    """Keeps only changes since a moment: a CAS is nanoseconds since 1970, but for its low bits."""
    zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    least = min(max(0, int(zoned.timestamp() * _NANOSECONDS)), 2**64 - 1)
    kept = numbers(rows.batch.column("cas")) >= np.uint64(least)
    return rows if kept.all() else rows.filter(kept)


def up_to(rows: Rows, ends: Mapping[int, int], at: Callable[[int], int]) -> Rows:
    """Keeps only rows up to the end seqnos of their vbuckets.

    ``at`` is the seqno that a vbucket has reached before them. A position goes no further than the
    end, and stays in the snapshot that the end is in.
    """
    beyond = {step.vbucket for step in rows.steps if step.seqno > ends[step.vbucket] or step.holds}
    if not beyond:
        return rows
    limits = {vbucket: ends[vbucket] for vbucket in beyond}
    seqnos, vbuckets = numbers(rows.batch.column("seqno")), numbers(rows.batch.column("vbucket"))
    kept = np.ones(len(seqnos), np.bool_)
    for vbucket, end in limits.items():
        kept &= (vbuckets != vbucket) | (seqnos <= np.uint64(end))
    rows = rows if kept.all() else rows.filter(kept)
    reached: dict[int, int] = {}
    steps = []
    for step in rows.steps:
        vbucket, end = step.vbucket, ends[step.vbucket]
        before = reached[vbucket] if vbucket in reached else at(vbucket)
        if step.seqno > end and not step.holds:
            if before >= end or step.snapshot.start > end:
                continue
            step = step._replace(seqno=end, closes=False)
        reached[vbucket] = step.seqno
        steps.append(step)
    return replace(rows, steps=tuple(steps))


def _changed(rows: Rows, change: Callable[[Change], tuple[bytes, int]]) -> Rows:
    """Replaces the value and the datatype of every row by the result of ``change``."""
    batch = rows.batch
    changed = [change(row) for row in changes_of(batch)]
    columns: dict[str, pa.Array[Any]] = {n: batch.column(n) for n in batch.schema.names}
    columns["value"] = pa.array([value for value, _ in changed], pa.binary())
    columns["datatype"] = pa.array([datatype for _, datatype in changed], pa.uint8())
    batch = pa.RecordBatch.from_arrays(list(columns.values()), schema=batch.schema)
    return replace(rows, batch=batch)


def _nothing(change: Change) -> tuple[bytes, int]:
    return b"", int(Datatype.RAW)


def _xattrs_only(change: Change) -> tuple[bytes, int]:
    """The extended attributes of a document; empty if the value cannot be decoded."""
    datatype = Datatype(change.datatype)
    if datatype & Datatype.XATTR:
        try:
            xattrs, _ = unwrap(change.value, datatype)
            return join_xattrs(xattrs, b""), int(Datatype.XATTR)
        except ValueError:
            pass
    return b"", int(Datatype.RAW)


def _inflated(change: Change) -> tuple[bytes, int]:
    """The decompressed value and its datatype; unchanged if the value is not valid Snappy."""
    if change.datatype & Datatype.SNAPPY:
        try:
            return inflate(change.value), change.datatype & ~Datatype.SNAPPY
        except ValueError:
            pass
    return change.value, change.datatype
