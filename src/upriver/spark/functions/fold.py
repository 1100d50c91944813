"""Folds change rows into the current documents, with Spark's DataFrame operations.

A row is dead if a rollback row of its vbucket has a higher branch and a seqno below the row's. Of
the other rows, the one with the newest (branch, seqno) of a document counts; if it is a deletion or
an expiration, the document does not exist. A restated vbucket has no rollback row: its ``restated``
rows are one to seqno 0. Rows are described in `row_schema` and `restate`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..._extras import extra
from ...batches.row_schema import RESTATE, RESTATED, ROLLBACK
from ...model import Op

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: The columns that identify a document. The vbucket follows from the key, but branches can be
#: compared only within a vbucket.
_DOCUMENT: Final = ("vbucket", "scope", "collection", "key")


def fold(changes: DataFrame) -> DataFrame:
    """One row for each live document: the columns of ``changes`` without ``op``.

    Duplicate rows and the order of rows have no effect. ``changes`` is read twice, first for its
    few rollback rows, so it should be a table, or cached; it must have the complete history of its
    vbuckets, as far as it was read.
    """
    with extra("spark"):
        from pyspark.sql import functions as f

    rollbacks = (
        changes.where(f.col("op").isin(ROLLBACK, RESTATED))
        .select(
            f.col("vbucket").alias("_of"),
            f.col("branch").alias("_since"),
            f.when(f.col("op") == ROLLBACK, f.col("seqno")).otherwise(0).alias("_above"),
        )
        .distinct()
    )
    dead = (
        (f.col("vbucket") == f.col("_of"))
        & (f.col("branch") < f.col("_since"))
        & (f.col("seqno") > f.col("_above"))
    )
    newest = (
        changes.where(~f.col("op").isin(ROLLBACK, RESTATED))
        # few enough for a broadcast join, so that nothing is shuffled
        .join(f.broadcast(rollbacks), dead, "left_anti")
        .groupBy(*_DOCUMENT)
        # expressions only: a declarative pipeline may not ask a frame for its columns
        .agg(f.max_by(f.struct("*"), f.struct("branch", "seqno")).alias("newest"))
        .where(f.col("newest.op").isin(Op.MUTATION.value, RESTATE))
    )
    return newest.select(f.col("newest").dropFields("op").alias("newest")).select("newest.*")
