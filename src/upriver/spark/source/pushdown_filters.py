"""Filter push-down of batch reads: which vbuckets, seqnos, collections and keys to read.

Spark's filters are AND-ed. The conditions that restrict reading are used. Filters that decide by
themselves which rows are read are Spark's no more, and its plan shows them as pushed; the others
Spark evaluates as well, on the rows that remain.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from ...consumer.topology.cluster_map import vbucket_of
from ...consumer.topology.collection_names import Collections
from .filter_classes import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

_LAST_SEQNO: Final = 2**63 - 1
_LAST_VBUCKET: Final = 2**16 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedFilters:
    """The conditions of Spark's filters that restrict what is read."""

    #: None for all.
    vbuckets: frozenset[int] | None = None
    #: Only changes after the first and up to the second seqno.
    after: int = 0
    until: int = _LAST_SEQNO
    #: The keys; None for any.
    keys: frozenset[bytes] | None = None
    #: The lowest and the highest key, both included; None for no bound.
    first_key: bytes = b""
    last_key: bytes | None = None
    #: Names of scopes and collections; None for any.
    collections: frozenset[str] | None = None
    scopes: frozenset[str] | None = None

    @classmethod
    def of(cls, filters: Iterable[Filter]) -> Self:
        wanted = cls()
        for one in filters:
            wanted = wanted._narrowed(one)
        return wanted

    def _narrowed(self, one: Filter) -> Self:
        column: tuple[str, ...] = getattr(one, "attribute", ())
        if len(column) != 1:
            return self
        name = column[0].lower()
        if isinstance(one, EqualTo | EqualNullSafe):
            return self._one_of(name, (one.value,))
        if isinstance(one, In):
            return self._one_of(name, one.value)
        if name == "key" and isinstance(one, GreaterThan | GreaterThanOrEqual):
            return replace(self, first_key=max(self.first_key, _bytes(one.value)))
        if name == "key" and isinstance(one, LessThan | LessThanOrEqual):
            known = () if self.last_key is None else (self.last_key,)
            return replace(self, last_key=min((_bytes(one.value), *known)))
        if name not in ("seqno", "vbucket") or not isinstance(getattr(one, "value", None), int):
            return self
        return self._range(name, one)

    def _one_of(self, name: str, values: Iterable[Any]) -> Self:
        chosen = [value for value in values if value is not None]
        if name == "vbucket":
            return replace(self, vbuckets=_both(self.vbuckets, chosen))
        if name == "key":
            return replace(self, keys=_both(self.keys, map(_bytes, chosen)))
        if name == "collection":
            return replace(self, collections=_both(self.collections, chosen))
        if name == "scope":
            return replace(self, scopes=_both(self.scopes, chosen))
        if name == "seqno" and chosen:
            after, until = max(self.after, min(chosen) - 1), min(self.until, max(chosen))
            return replace(self, after=after, until=until)
        return self

    def _range(self, name: str, one: Any) -> Self:
        low, high = 0, _LAST_SEQNO
        if isinstance(one, GreaterThan):
            low = one.value + 1
        elif isinstance(one, GreaterThanOrEqual):
            low = one.value
        elif isinstance(one, LessThan):
            high = one.value - 1
        elif isinstance(one, LessThanOrEqual):
            high = one.value
        if name == "vbucket":
            chosen = range(max(0, low), min(high, _LAST_VBUCKET) + 1)
            return replace(self, vbuckets=_both(self.vbuckets, chosen))
        return replace(self, after=max(self.after, low - 1), until=min(self.until, high))

    @staticmethod
    def decides(one: Filter) -> bool:
        """Whether exactly the rows are read that match a filter."""
        name = ".".join(getattr(one, "attribute", ())).lower()
        if name == "vbucket" and isinstance(one, EqualNullSafe | In):
            return True
        return (
            name in ("vbucket", "seqno")
            and isinstance(
                one, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
            )
            and isinstance(one.value, int)
        )

    def has_seqno(self, seqno: int) -> bool:
        return self.after < seqno <= self.until

    def chosen_vbuckets(self, count: int) -> frozenset[int]:
        """The vbuckets of a bucket with ``count`` vbuckets that can have matching rows."""
        chosen = frozenset(range(count))
        if self.vbuckets is not None:
            chosen &= self.vbuckets
        if self.keys is not None:
            chosen &= {vbucket_of(key, count) for key in self.keys}
        return chosen

    @property
    def ends(self) -> bool:
        """Whether there is an upper bound of the seqno."""
        return self.until < _LAST_SEQNO

    @property
    def names_collections(self) -> bool:
        return self.collections is not None or self.scopes is not None

    def chosen_collections(self, known: Collections, among: tuple[str, ...]) -> tuple[str, ...]:
        """The existing collections that match, as ``scope.collection``."""
        names = {known.names(number) for number in known.collections.keys() - known.dropped}
        chosen = {
            f"{scope}.{name}"
            for scope, name in names
            if (self.scopes is None or scope in self.scopes)
            and (self.collections is None or name in self.collections)
        }
        return tuple(sorted(chosen & set(among) if among else chosen))

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of decoded changes whose keys match."""
        if self.keys is not None:
            keys = pa.array(sorted(self.keys), pa.binary())
            batch = batch.filter(pc.is_in(batch.column("key"), keys))
        if self.first_key:
            batch = batch.filter(pc.greater_equal(batch.column("key"), pa.scalar(self.first_key)))
        if self.last_key is not None:
            batch = batch.filter(pc.less_equal(batch.column("key"), pa.scalar(self.last_key)))
        if self.after or self.ends:
            seqnos = batch.column("seqno").to_numpy()
            batch = batch.filter(pa.array((seqnos > self.after) & (seqnos <= self.until)))
        return batch


def _both(before: frozenset[Any] | None, now: Iterable[Any]) -> frozenset[Any]:
    chosen = frozenset(now)
    return chosen if before is None else before & chosen


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
