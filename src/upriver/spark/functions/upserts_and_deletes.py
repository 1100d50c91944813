"""A micro-batch as upserts and deletes by key, for databases that are written in ``foreachBatch``.

    with changes_for(batch, held=keys_of) as changes:
        ...  # write changes.upserts, delete changes.deletes, in one transaction

Of each document only its newest row of the batch counts, so the order of writing does not matter,
and writing a batch a second time has no effect. Rollbacks need a source with ``onRollback=restate``
(see `restate`): then ``held`` is asked which documents of the restated vbuckets the database has,
and those that the bucket does not have are among the deletes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from ...batches.row_schema import RESTATE, RESTATED, ROLLBACK
from ...errors import ConfigError, UpriverError
from ...model import Op

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

_DOCUMENT: Final = ("vbucket", "scope", "collection", "key")
_DELETES: Final = "vbucket int, scope string, collection string, key binary"
_BEGUN: Final = "_vbucket int, _scope string, _collection string, _seqno bigint"

#: Returns scope, collection and key of all documents that a database has of some vbuckets.
Held: TypeAlias = Callable[[Sequence[int]], Iterable[tuple[str, str, bytes]]]


@dataclass(frozen=True, slots=True)
class Changes:
    """What a batch changes; each document is in one of the two, once."""

    #: Documents to write: all columns of the batch but ``op``.
    upserts: DataFrame
    #: Documents to delete: vbucket, scope, collection and key.
    deletes: DataFrame


@contextmanager
def changes_for(batch: DataFrame, held: Held | None = None) -> Iterator[Changes]:
    """The changes of a micro-batch, which is cached until the block ends.

    ``held`` gets a list of vbuckets and returns scope, collection and key of every document that
    the database has of them; the database must know the vbucket of each document for that.
    """
    from pyspark.sql import functions as f

    rows = batch.persist()
    try:
        special = rows.where(f.col("op").isin(ROLLBACK, RESTATED))
        marked = special.select("op", "vbucket", "scope", "collection", "value").collect()
        if any(row["op"] == ROLLBACK for row in marked):
            raise UpriverError(
                "DCP-BAD-ROW: a rollback row does not say what the documents were before; set the "
                "source's option onRollback to restate, and start the query again"
            )
        others = [name for name in rows.columns if name not in _DOCUMENT]
        newest = (
            _of_present_collections(rows, marked)
            .groupBy(*_DOCUMENT)
            .agg(f.max_by(f.struct(*others), f.struct("branch", "seqno")).alias("newest"))
        )
        lives = f.col("newest.op").isin(Op.MUTATION.value, RESTATE)
        columns = [
            f.col(name) if name in _DOCUMENT else f.col("newest")[name].alias(name)
            for name in rows.columns
            if name != "op"
        ]
        deletes = newest.where(~lives).select(*_DOCUMENT)
        gone = _gone(marked, held)
        if gone:
            known = rows.sparkSession.createDataFrame(gone, _DELETES)
            deletes = deletes.union(known).distinct()
        yield Changes(newest.where(lives).select(*columns), deletes)
    finally:
        rows.unpersist()


def _of_present_collections(rows: DataFrame, marked: Sequence[Row]) -> DataFrame:
    """Rows of documents, without those of collections that began anew in the same batch."""
    from pyspark.sql import functions as f

    from ...batches.restate import Restated

    documents = rows.where(~f.col("op").isin(ROLLBACK, RESTATED))
    restated = [(row, Restated.of_json(row["value"])) for row in marked if row["op"] == RESTATED]
    begun = [
        (row["vbucket"], row["scope"], row["collection"], part.begun)
        for row, part in restated
        if part.begun
    ]
    if not begun:
        return documents
    named = rows.sparkSession.createDataFrame(begun, _BEGUN)
    older = (
        (f.col("vbucket") == f.col("_vbucket"))
        & (f.col("scope") == f.col("_scope"))
        & (f.col("collection") == f.col("_collection"))
        & (f.col("seqno") < f.col("_seqno"))
    )
    return documents.join(f.broadcast(named), older, "left_anti")


def _gone(marked: Sequence[Row], held: Held | None) -> list[tuple[int, str, str, bytes]]:
    """The documents that the database has and the bucket has not, of the restated vbuckets."""
    from ...batches.restate import Restated

    read = [(row["scope"], row["collection"], Restated.of_json(row["value"])) for row in marked]
    if held is None:  # a collection that is new has no documents from before, as a rule
        read = [one for one in read if one[2].whole]
    if not read:
        return []
    if held is None:
        raise ConfigError(
            "held: after a rollback the documents that the database has must be known, to delete "
            "those that the bucket has lost; give a function that returns them by vbucket"
        )
    parts: dict[tuple[str, str], list[Restated]] = {}
    for scope, collection, part in read:
        parts.setdefault((scope, collection), []).append(part)
    vbuckets = sorted({part.vbucket for some in parts.values() for part in some})
    return [
        (part.vbucket, scope, collection, key)
        for scope, collection, key in held(vbuckets)
        for part in parts.get((scope, collection), ())
        if part.excludes(key)
    ]
