"""What documents have become: the step from a change log to a mirror, as a DataFrame.

A mirror that holds what the log's batches up to A amount to is brought to the log's end by the
**final states** of the documents that may differ. A state is the newest change that lives, or
nothing. Setting a document to its final state twice does no harm, and neither does a document
whose state did not change; so a step that is repeated after a crash, even from an earlier A and to
a later end, gives the same mirror.

A document may differ if the new batches have a row of it, or if a rollback in them killed one: a
row of a vbucket that went back, above the lowest point to which it went. For these vbuckets the
states come from their whole history, so an update that was rolled back brings the older version
back, an insert disappears, and a deletion is taken back. For the others the new rows are enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from ...model import Op
from ..fold import ROLLBACK, fold
from .change_log import BATCH_COLUMN, ChangeLog

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["CHANGE", "DOCUMENT", "final_states", "newest", "repeated", "same_document"]

#: What makes two rows rows of one document.
DOCUMENT: Final = ("vbucket", "scope", "collection", "key")
#: The column that says what the newest change was; null if no change is left.
CHANGE: Final = "change"
#: A number that two documents hardly ever share; where they do, no harm is done.
_NAME: Final = "_name"
#: Documents with several changes of which every executor is told, in some tens of megabytes.
_MOST_REPEATED: Final = 1_000_000


def final_states(spark: SparkSession, log: ChangeLog, after: int) -> DataFrame:
    """One row for each document that may differ from what batches up to ``after`` came to."""
    from pyspark.sql import functions as f

    new = log.rows(spark, after)
    points = log.rollbacks(after)
    if not points:
        return _newest_of_many(new)
    if after < 0:
        return newest(new)
    rolled = f.col("vbucket").isin(list(points))
    history = log.rows(spark).where(rolled)
    touched = (
        history.where(f.col("op") != ROLLBACK)
        .where((f.col(BATCH_COLUMN) > after) | (f.col("seqno") > _of_vbucket(points)))
        .select(*DOCUMENT)
        .distinct()
        .alias("touched")
    )
    found = newest(history).alias("found")
    states = touched.join(found, same_document("touched", "found"), "left").select(
        *(f.col(f"{'touched' if c in DOCUMENT else 'found'}.{c}") for c in found.columns)
    )
    return newest(new.where(~rolled)).unionByName(states)


def _newest_of_many(changes: DataFrame) -> DataFrame:
    """The same as `newest` if there is no rollback, and faster where few documents changed twice.

    Then nothing is shuffled but eight bytes of each row, to find those documents.
    """
    from pyspark.sql import functions as f

    names = repeated(changes)
    count = names.count()
    if count > _MOST_REPEATED:
        return newest(changes)
    if not count:
        return changes.withColumnRenamed("op", CHANGE)
    few = f.broadcast(names)
    named = changes.withColumn(_NAME, _name())
    once = named.join(few, _NAME, "left_anti").withColumnRenamed("op", CHANGE)
    several = newest(named.join(few, _NAME, "left_semi").drop(_NAME))
    return once.drop(_NAME).unionByName(several)


def repeated(changes: DataFrame) -> DataFrame:
    """The names, or rather hashes of the names, of documents that have several rows."""
    names = changes.select(_name().alias(_NAME))
    return names.groupBy(_NAME).count().where("count > 1").select(_NAME)


def _name() -> Column:
    from pyspark.sql import functions as f

    return f.xxhash64(*DOCUMENT)


def newest(changes: DataFrame) -> DataFrame:
    """The newest change of each document that lives, deletions too; in `CHANGE` what it was.

    To `fold` deletions are told as documents, so that it keeps them.
    """
    from pyspark.sql import functions as f

    kept = f.when(f.col("op") == ROLLBACK, f.col("op")).otherwise(f.lit(Op.MUTATION.value))
    return fold(changes.withColumns({CHANGE: f.col("op"), "op": kept}))


def same_document(left: str, right: str) -> Column:
    """The condition that two frames' rows are of one document; a scope may be null."""
    from pyspark.sql import functions as f

    condition = f.lit(True)
    for name in DOCUMENT:
        condition = condition & f.col(f"{left}.{name}").eqNullSafe(f.col(f"{right}.{name}"))
    return condition


def _of_vbucket(points: Mapping[int, int]) -> Column:
    from pyspark.sql import functions as f

    pairs = [f.lit(number) for pair in points.items() for number in pair]
    return f.create_map(*pairs)[f.col("vbucket")]
