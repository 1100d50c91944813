"""Conditions on the rows of a batch read: which vbuckets, seqnos, collections and keys.

Those on vbuckets, seqnos and collections decide what is asked of the nodes; keys are compared with
what has arrived.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ..consumer.topology.cluster_map import vbucket_of
from ..consumer.topology.collection_names import Collections

LAST_SEQNO: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RowConditions:
    """What rows are wanted."""

    #: None for all.
    vbuckets: frozenset[int] | None = None
    #: Only changes after the first and up to the second seqno.
    after: int = 0
    until: int = LAST_SEQNO
    #: The keys; None for any.
    keys: frozenset[bytes] | None = None
    #: The lowest and the highest key, both included; None for no bound.
    first_key: bytes = b""
    last_key: bytes | None = None
    #: Names of scopes and collections; None for any.
    collections: frozenset[str] | None = None
    scopes: frozenset[str] | None = None

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
        return self.until < LAST_SEQNO

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
