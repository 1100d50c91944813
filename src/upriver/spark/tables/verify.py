"""Compares a mirror with the bucket it is of, document by document, in Spark.

The mirror is at positions: a seqno of a branch for each vbucket. The bucket is read as it is now,
which may be later. So only what was last changed at or below the mirror's seqno can be compared; a
document that has changed since is counted as changed later and not judged. A vbucket that has gone
over to another branch since cannot be compared at all, until the pipeline has followed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ...errors import ConfigError
from ..driver import Driver
from ..fold import ROLLBACK
from ..session import register
from .delta import DeltaFolder
from .places import TablePlace
from .settings import (
    KIND,
    PER_COLLECTION,
    PIPELINE,
    SHAPE,
    PipelineSettings,
    identity_properties,
    require_same,
)
from .shape import GONE, GROUP, MirrorShape
from .states import DOCUMENT, newest, same_document

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["Comparison", "Difference", "verify"]

#: Compared by themselves or of no meaning to a comparison: a branch number counts our rollbacks.
_NOT_HASHED: Final = frozenset({*DOCUMENT, GROUP, GONE, "branch"})


@dataclass(frozen=True, slots=True)
class Difference:
    """A document that is not the same on both sides."""

    #: missing (in the mirror), extra (in the mirror) or different.
    kind: str
    vbucket: int
    scope: str | None
    collection: str | None
    key: bytes
    #: The seqnos that the bucket and the mirror have.
    bucket_seqno: int | None
    mirror_seqno: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What came out."""

    #: Documents that were compared and are equal.
    equal: int = 0
    missing: int = 0
    extra: int = 0
    different: int = 0
    #: Documents that the bucket has changed after the mirror's positions.
    changed_later: int = 0
    #: Vbuckets that have gone over to another branch since.
    incomparable: tuple[int, ...] = ()
    differences: tuple[Difference, ...] = field(default=())

    @property
    def differing(self) -> int:
        return self.missing + self.extra + self.different


@dataclass(frozen=True, slots=True)
class _Mirror:
    """A mirror as it is at one moment."""

    rows: DataFrame
    shape: MirrorShape
    #: By vbucket the seqno and the vbuuid.
    positions: Mapping[int, tuple[int, int]]


def verify(
    spark: SparkSession,
    *,
    source: str,
    table: str,
    show: int = 10,
    **options: Any,
) -> Comparison:
    """Compares; ``options`` are those of the source, and select what the mirror selects."""
    register(spark)
    settings = PipelineSettings.parse("mirror", source, options)
    place = TablePlace.parse(table)
    mirror = _mirror(spark, place, settings)
    driver = Driver(settings.read)
    try:
        identity = identity_properties(settings, driver.identity())
        require_same(place.root, DeltaFolder(place.history).properties(), identity)
        sights = driver.look()
    finally:
        driver.close()
    others = tuple(
        vbucket
        for vbucket, (_, vbuuid) in mirror.positions.items()
        if vbucket in sights and sights[vbucket].vbuuid != vbuuid
    )
    batch = {name: text for name, text in settings.source.items() if "PerTrigger" not in name}
    changes = spark.read.format("dcp").options(**batch).load()
    return _compared(mirror, changes, others, show)


def _mirror(spark: SparkSession, place: TablePlace, settings: PipelineSettings) -> _Mirror:
    history = DeltaFolder(place.history)
    if not history.exists():
        kind = DeltaFolder(place.root).properties().get(KIND) if _is_table(place) else None
        what = "a change log; fold it and compare that" if kind else "no mirror"
        raise ConfigError(f"{place.root} is {what}")
    held = history.properties()
    if held[PER_COLLECTION] == "true":
        found = history.newest_commit()
        done = history.last_batch(f"{held[PIPELINE]}-tables")
        if found is not None and found[0] != done:
            raise ConfigError(
                f"the last batch of {place.root} is not in all of its tables: start the pipeline "
                "once more, and compare then"
            )
        folders = [
            DeltaFolder(path)
            for path in sorted(place.root.iterdir())
            if _is_table(TablePlace(path))
        ]
    else:
        folders = [DeltaFolder(place.root)]
        found = folders[0].newest_commit()
    if found is None:
        raise ConfigError(f"{place.root} is still empty: its pipeline has not brought it up yet")
    shape = MirrorShape.of_json(held[SHAPE])
    rows = None
    for folder in folders:
        part = folder.read(spark, without=[GROUP]).withColumn(GROUP, shape.group())
        rows = part if rows is None else rows.unionByName(part)
    if rows is None:
        raise ConfigError(f"{place.root} has no table of a collection yet")
    return _Mirror(rows, shape, {int(vb): _position(text) for vb, text in found[1].items()})


def _is_table(place: TablePlace) -> bool:
    return DeltaFolder(place.root).exists()


def _position(text: str) -> tuple[int, int]:
    seqno, _, vbuuid = text.partition(" ")
    return int(seqno), int(vbuuid, 16)


def _compared(
    mirror: _Mirror, changes: DataFrame, others: tuple[int, ...], show: int
) -> Comparison:
    from pyspark.sql import functions as f

    comparable = ~f.col("vbucket").isin(list(others)) if others else f.lit(True)
    states = mirror.shape.rows(newest(changes.where(f.col("op") != ROLLBACK)))
    bucket = _hashed(states.where(comparable)).alias("bucket")
    table = _hashed(mirror.rows.where(comparable).withColumn(GONE, f.lit(False))).alias("mirror")
    vbucket = f.coalesce(f.col("bucket.vbucket"), f.col("mirror.vbucket"))
    in_bucket = f.col("bucket.vbucket").isNotNull() & ~f.col("bucket.gone")
    in_mirror = f.col("mirror.vbucket").isNotNull()
    verdict = (
        f.when(f.col("bucket.seqno") > _seqno_of(mirror.positions, vbucket), "changed later")
        .when(~in_bucket & ~in_mirror, "gone")
        .when(in_bucket & ~in_mirror, "missing")
        .when(~in_bucket & in_mirror, "extra")
        .when(f.col("bucket.hash") != f.col("mirror.hash"), "different")
        .otherwise("equal")
    )
    judged = (
        bucket.join(table, same_document("bucket", "mirror"), "full")
        .select(
            verdict.alias("kind"),
            *(
                f.coalesce(f.col(f"bucket.{name}"), f.col(f"mirror.{name}")).alias(name)
                for name in DOCUMENT
            ),
            f.col("bucket.seqno").alias("bucket_seqno"),
            f.col("mirror.seqno").alias("mirror_seqno"),
        )
        .persist()
    )
    try:
        counts = {row["kind"]: row["count"] for row in judged.groupBy("kind").count().collect()}
        wrong = judged.where(f.col("kind").isin("missing", "extra", "different"))
        shown = wrong.orderBy("vbucket", "scope", "collection", "key").limit(show).collect()
    finally:
        judged.unpersist()
    return Comparison(
        equal=counts.get("equal", 0),
        missing=counts.get("missing", 0),
        extra=counts.get("extra", 0),
        different=counts.get("different", 0),
        changed_later=counts.get("changed later", 0),
        incomparable=others,
        differences=tuple(
            Difference(**{**row.asDict(), "key": bytes(row["key"])}) for row in shown
        ),
    )


def _hashed(rows: DataFrame) -> DataFrame:
    """The document, its seqno, and one number for all else that a row says."""
    from pyspark.sql import functions as f

    columns = [f.col(name) for name in sorted(rows.columns) if name not in _NOT_HASHED]
    return rows.select(*DOCUMENT, "seqno", GONE, f.xxhash64(*columns).alias("hash"))


def _seqno_of(positions: Mapping[int, tuple[int, int]], vbucket: Column) -> Column:
    from pyspark.sql import functions as f

    pairs = [f.lit(n) for vb, (seqno, _) in positions.items() for n in (vb, seqno)]
    known = f.create_map(*pairs)[vbucket] if pairs else f.lit(None)
    return f.coalesce(known.cast("bigint"), f.lit(0))
