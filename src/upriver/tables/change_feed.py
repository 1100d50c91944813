"""The change feed of a mirror: what is different between two of its versions, by document.

Rows have the columns and types of the later version, and ``_change_type``: insert, update_preimage,
update_postimage or delete. A value of the earlier version that these types cannot hold is null.
Rows that were only moved, or read again, are no change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import ConfigError
from ..files.storage import Storage
from .format.data_files import GROUP, VALID_TO, cast_rows, read_rows
from .format.deletion_vectors import read_vector, rows_of
from .format.delta_log import DataFile, TableSnapshot
from .format.key_index import NAME_COLUMNS

CHANGE_TYPE: Final = "_change_type"
#: What a change of a document is known by.
_OF_A_CHANGE: Final = ("seqno", "cas")
#: What is different when a change was only read again.
_OF_A_READING: Final = frozenset({"branch", GROUP})

#: A batch, and a row of it.
_Place: TypeAlias = tuple[int, int]
#: A file of one version, and the same file in the other one if that has it too.
_Pair: TypeAlias = tuple[DataFile, DataFile | None]


@dataclass(frozen=True, slots=True)
class FeedPart:
    """What one task compares: the files in which the versions differ, for one group of vbuckets."""

    #: None for all.
    group: int | None
    before: Sequence[_Pair]
    after: Sequence[_Pair]
    schema: pa.Schema


def feed_parts(old: TableSnapshot, new: TableSnapshot, names: Sequence[str]) -> list[FeedPart]:
    """The parts of a feed that has the named columns; ConfigError if the table has no feed."""
    whole = new.arrow_schema()
    if missing := [name for name in NAME_COLUMNS if name not in whole.names]:
        raise ConfigError(f"readChangeFeed: the table has no column {missing[0]}: no mirror")
    if VALID_TO in whole.names:
        raise ConfigError(
            "readChangeFeed: a history has a row for each change; compare _valid_from_seqno "
            "and _valid_to_seqno instead"
        )
    wanted = dict.fromkeys([*names, *NAME_COLUMNS, *_OF_A_CHANGE, GROUP])
    schema = pa.schema([whole.field(name) for name in wanted if name in whole.names])
    before, after = _differing(old.files, new.files), _differing(new.files, old.files)
    ranges = [file.groups for file, _ in (*before, *after)]
    if any(one is None for one in ranges):
        return [FeedPart(None, before, after, schema)]
    made = []
    for group in range(max((one[1] for one in ranges if one), default=-1) + 1):
        gone = [pair for pair in before if pair[0].may_have(group)]
        come = [pair for pair in after if pair[0].may_have(group)]
        if gone or come:
            made.append(FeedPart(group, gone, come, schema))
    return made or [FeedPart(None, [], [], schema)]


def feed_rows(storage: Storage, part: FeedPart, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    before, after = _Rows.read(storage, part, part.before), _Rows.read(storage, part, part.after)
    changed = _changed(before, after)
    for kind, rows, places in (
        ("delete", before, before.places_without(after)),
        ("update_preimage", before, [place for place, _ in changed]),
        ("update_postimage", after, [place for _, place in changed]),
        ("insert", after, after.places_without(before)),
    ):
        for some in rows.take(places):
            kinds = pa.array([kind] * some.num_rows, pa.string())
            yield some.select(list(names)).append_column(CHANGE_TYPE, kinds)


def _differing(mine: Mapping[str, DataFile], other: Mapping[str, DataFile]) -> list[_Pair]:
    """The files of which one version has live rows that the other has not."""
    return [
        (file, other.get(name))
        for name, file in mine.items()
        if name not in other or other[name].vector != file.vector
    ]


class _Rows:
    """The rows that only one of the versions has."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        #: By a document's name.
        self.places: dict[tuple[Any, ...], _Place] = {}

    @classmethod
    def read(cls, storage: Storage, part: FeedPart, files: Sequence[_Pair]) -> _Rows:
        found = cls()
        for file, other in files:
            shared = None
            if other is not None:  # what lives in both is no difference
                dead = rows_of(read_vector(storage, other.vector)).astype(np.int64)
                shared = np.setdiff1d(np.arange(file.rows), dead)
            for rows in read_rows(storage, file, part.schema.names, but=shared):
                chosen = rows
                if part.group is not None:
                    group = pa.scalar(part.group, pa.int32())
                    chosen = rows.filter(pc.equal(rows.column(GROUP), group))
                found._add(_as_in(part.schema, chosen))
        return found

    def _add(self, rows: pa.RecordBatch) -> None:
        names = (rows.column(column).to_pylist() for column in NAME_COLUMNS)
        for number, name in enumerate(zip(*names, strict=True)):
            self.places[name] = len(self._batches), number
        self._batches.append(rows)

    def places_without(self, other: _Rows) -> list[_Place]:
        return [place for name, place in self.places.items() if name not in other.places]

    def take(self, places: Iterable[_Place]) -> Iterator[pa.RecordBatch]:
        by_batch: dict[int, list[int]] = {}
        for batch, number in places:
            by_batch.setdefault(batch, []).append(number)
        for batch, numbers in by_batch.items():
            yield self._batches[batch].take(pa.array(numbers, pa.int64()))


def _changed(before: _Rows, after: _Rows) -> list[tuple[_Place, _Place]]:
    """Where the rows are of documents that both versions have, but not alike."""
    pairs: dict[tuple[int, int], list[tuple[_Place, _Place]]] = {}
    for name, old in before.places.items():
        if (new := after.places.get(name)) is not None:
            pairs.setdefault((old[0], new[0]), []).append((old, new))
    changed = []
    for some in pairs.values():
        (left,) = before.take(old for old, _ in some)
        (right,) = after.take(new for _, new in some)
        same = np.ones(len(some), bool)
        for column in left.schema.names:
            if column not in _OF_A_READING:
                same &= _equal(left.column(column), right.column(column))
        changed += [pair for pair, is_same in zip(some, same, strict=True) if not is_same]
    return changed


def _equal(left: Any, right: Any) -> npt.NDArray[np.bool_]:
    if pa.types.is_nested(left.type) or pa.types.is_floating(left.type):
        # Arrow compares no nested values, and NaN with nothing
        pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
        return np.array([repr(one) == repr(other) for one, other in pairs], bool)
    both_null = pc.and_(left.is_null(), right.is_null())
    same: Any = pc.or_(pc.fill_null(pc.equal(left, right), False), both_null)
    return np.asarray(same.to_numpy(zero_copy_only=False), bool)


def _as_in(schema: pa.Schema, rows: pa.RecordBatch) -> pa.RecordBatch:
    """The columns of a schema; null where a row's value cannot be of the column's type."""
    columns: list[Any] = []
    for cell in schema:
        try:
            columns.append(cast_rows(rows, pa.schema([cell])).column(0))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            values: Iterable[Any] = rows.column(cell.name)
            columns.append(pa.array([_value_as(cell.type, one) for one in values], cell.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _value_as(kind: pa.DataType, value: Any) -> Any:
    try:
        return value.cast(kind).as_py()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
