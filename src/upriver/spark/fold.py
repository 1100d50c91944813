"""Current documents from change rows, as a DataFrame of Spark's own parts.

A row is dead if a rollback row of its vbucket has a higher branch and a seqno below the row's. Of
what lives, the newest (branch, seqno) of a document counts; if that is a deletion or an expiration,
there is no such document. It knows rows (see `rows`) and not where they come from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..model import Op

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["ROLLBACK", "fold"]

#: The ``op`` of a row that says: forget what this vbucket had above this seqno.
ROLLBACK: Final = "rollback"

#: What makes two changes changes of one document. The vbucket follows from the key, but a branch
#: means something within a vbucket only.
_DOCUMENT: Final = ("vbucket", "scope", "collection", "key")


def fold(changes: DataFrame) -> DataFrame:
    """One row for each live document: the columns of ``changes`` without ``op``.

    Rows that are there twice do no harm, and their order means nothing. ``changes`` is read twice,
    first for its few rollback rows, so it should be a table, or cached; it must be the whole
    history of its vbuckets, as far as it was read.
    """
    from pyspark.sql import functions as f

    rollbacks = (
        changes.where(f.col("op") == ROLLBACK)
        .select(
            f.col("vbucket").alias("_of"),
            f.col("branch").alias("_since"),
            f.col("seqno").alias("_above"),
        )
        .distinct()
    )
    dead = (
        (f.col("vbucket") == f.col("_of"))
        & (f.col("branch") < f.col("_since"))
        & (f.col("seqno") > f.col("_above"))
    )
    others = [name for name in changes.columns if name not in _DOCUMENT]
    newest = (
        changes.where(f.col("op") != ROLLBACK)
        # few enough to be sent everywhere, so that nothing is shuffled for them
        .join(f.broadcast(rollbacks), dead, "left_anti")
        .groupBy(*_DOCUMENT)
        .agg(f.max_by(f.struct(*others), f.struct("branch", "seqno")).alias("newest"))
        .where(f.col("newest.op") == Op.MUTATION.value)
    )
    return newest.select(
        *(
            f.col(name) if name in _DOCUMENT else f.col("newest")[name].alias(name)
            for name in changes.columns
            if name != "op"
        )
    )
