"""What a task learns of collections: which ones its rows are of, and where some began or ended.

A stream says at which seqno of a vbucket a collection was created, flushed or dropped. Documents
are stored under the name of their collection, and a name can be used again. So each such event
ends all rows of the vbucket that have the collection's name and a lower seqno: they are of an
earlier collection of that name, or of a time before it was emptied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

#: Scope and collection, as rows have them; the scope of an unknown collection is null.
Name: TypeAlias = tuple[str | None, str]


def unnamed(number: int) -> Name:
    """What rows call a collection whose name is not known: two of them must not become one."""
    return None, f"{number:#x}"


class CollectionEnd(NamedTuple):
    """All rows of a vbucket with this name and a lower seqno are gone."""

    vbucket: int
    seqno: int
    scope: str | None
    collection: str


@dataclass(slots=True)
class CollectionLog:
    """What one task gets about collections, and what it reports."""

    #: Names by id, of all collections that the reader has rows of.
    known: Mapping[int, Name] = field(default_factory=dict)
    #: Those that rows were read of.
    met: dict[int, Name] = field(default_factory=dict)
    ends: list[CollectionEnd] = field(default_factory=list)
    #: Those of the ends that can concern rows from before this task.
    ends_of_known: list[CollectionEnd] = field(default_factory=list)
    #: Whether a collection was dropped: only then rows that were just read can be gone.
    dropped: bool = False

    def happened(
        self,
        vbucket: int,
        seqno: int,
        collection: int,
        names: Callable[[int], Name],
        *,
        dropped: bool,
    ) -> None:
        """Takes an event in."""
        found: set[Name | None] = {self.known.get(collection), unnamed(collection)}
        with suppress(LookupError):  # rows of it can only have its number
            found.add(names(collection))
        ends = [CollectionEnd(vbucket, seqno, *name) for name in found if name is not None]
        self.ends += ends
        if collection in self.known or not found.isdisjoint(self.known.values()):
            self.ends_of_known += ends
        self.dropped = self.dropped or dropped


def ended_rows(rows: pa.RecordBatch | pa.Table, ends: list[CollectionEnd]) -> npt.NDArray[np.bool_]:
    """Which rows are ended; they need the columns vbucket, seqno, scope and collection."""
    gone = np.zeros(rows.num_rows, bool)
    vbuckets = np.asarray(rows.column("vbucket"))
    seqnos = np.asarray(rows.column("seqno"))
    by_name: dict[Name, dict[int, int]] = {}
    for end in ends:
        limits = by_name.setdefault((end.scope, end.collection), {})
        limits[end.vbucket] = max(limits.get(end.vbucket, 0), end.seqno)
    for name, limits in by_name.items():
        mine = named_rows(rows, {name})
        if mine.any():
            below = np.zeros(1 + max(int(vbuckets.max()), *limits), np.int64)
            below[list(limits)] = list(limits.values())
            gone |= mine & (seqnos < below[vbuckets])
    return gone


def first_ends(rows: pa.RecordBatch, ends: list[CollectionEnd]) -> npt.NDArray[np.int64]:
    """At which seqno each row is ended first; 0 where none of the ends concerns it."""
    found = np.zeros(rows.num_rows, np.int64)
    places = _places(np.asarray(rows.column("vbucket")), np.asarray(rows.column("seqno")))
    for name in dict.fromkeys((end.scope, end.collection) for end in ends):
        mine = [end for end in ends if (end.scope, end.collection) == name]
        vbuckets, seqnos = (np.array([end[at] for end in mine], np.int64) for at in (0, 1))
        order = np.argsort(limits := _places(vbuckets, seqnos))
        next_one = np.searchsorted(limits[order], places, "right")
        at = order[np.minimum(next_one, len(mine) - 1)]
        same = vbuckets[at] == np.asarray(rows.column("vbucket"))
        chosen = named_rows(rows, {name}) & (next_one < len(mine)) & same
        sooner = chosen & ((found == 0) | (seqnos[at] < found))
        found[sooner] = seqnos[at][sooner]
    return found


def _places(vbuckets: npt.NDArray[Any], seqnos: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """A vbucket and a seqno as one number; no vbucket ever has had 2**48 changes."""
    limited = np.minimum(seqnos.astype(np.uint64), np.uint64(2**48 - 1))
    return (vbuckets.astype(np.uint64) << np.uint64(48)) | limited


def named_rows(rows: pa.RecordBatch | pa.Table, names: set[Name]) -> npt.NDArray[np.bool_]:
    """Which rows are of collections with these names."""
    chosen = np.zeros(rows.num_rows, bool)
    scopes: Any = rows.column("scope")
    collections: Any = rows.column("collection")
    for scope, collection in names:
        same_scope = pc.is_null(scopes) if scope is None else pc.equal(scopes, pa.scalar(scope))
        both = pc.and_(
            pc.fill_null(same_scope, False),
            pc.fill_null(pc.equal(collections, pa.scalar(collection)), False),
        )
        chosen |= np.asarray(both)
    return chosen
