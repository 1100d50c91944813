"""Compares a mirror or a history with the bucket it is of, document by document, in Spark.

Both sides are made by executors' Python: the table's rows are read with its deletion vectors, and
the bucket's documents get the same shape as the rows that pipelines write.

The mirror is at positions: a seqno of a branch for each vbucket. The bucket is read as it is now,
which may be later. So only what was last changed at or below the mirror's seqno can be compared; a
document that has changed since is counted as changed later and not judged. A vbucket that has gone
over to another branch since cannot be compared at all, until the pipeline has followed.

Of a history the current versions are compared in this way. Besides, the versions of each document
must follow each other: each ends where the next begins, unless the document was gone in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Final, Literal, Unpack

from .._extras import extra
from ..batches.options import ReadOptions
from ..batches.stream_driver import Driver
from ..errors import ConfigError
from ..settings.option_types import MirrorOptions
from ..tables.commit_state import DEAD_LETTERS, positions_of
from ..tables.format.data_files import GROUP
from ..tables.format.key_index import NAME_COLUMNS as DOCUMENT
from ..tables.kinds import KINDS
from ..tables.pipeline_settings import (
    KIND,
    PIPELINE,
    SHAPE,
    ForeignTable,
    PipelineSettings,
    identity_properties,
    require_same,
)
from ..tables.pipeline_start import held_properties, place_of
from ..tables.pipeline_tables import PipelineTables
from ..tables.places import TablePlace
from ..tables.rows.row_shape import VERSION_COLUMNS, MirrorShape
from ..tables.upkeep.version_retention import Window
from .executors import StartSpark
from .session import register

with extra("spark"):
    from .hashed_columns import hashable
    from .table_reader import read_table
    from .verify_source import GONE, documents_as_rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: Compared by themselves or of no meaning to a comparison: a branch number counts our rollbacks.
_NOT_HASHED: Final = frozenset({*DOCUMENT, GROUP, GONE, "branch", "ended", "broken"})


#: What a comparison comes to. A table with doubled rows is broken, whatever the bucket holds; and
#: where no document could be compared, nothing is known to be equal.
Verdict = Literal["equal", "different", "doubled", "unknown", "nothing compared"]
#: How a document is judged, as far as it is wrong.
WRONG: Final = ("missing", "extra", "different", "doubled", "broken")
#: Whether a version of a history does not fit the next one, and whether it has ended.
_BROKEN: Final = "broken"
_ENDED: Final = "ended"


@dataclass(frozen=True, slots=True)
class Difference:
    """A document that is not the same on both sides."""

    #: missing (in the mirror), extra (in the mirror), different, doubled (several rows of the
    #: mirror are this document), or broken (its versions in a history overlap or leave a gap).
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
    #: Documents of which the mirror has more than one row, whatever the rows say.
    doubled: int = 0
    #: Documents whose versions in a history overlap or leave a gap.
    broken: int = 0
    #: Documents that the bucket has changed after the mirror's positions.
    changed_later: int = 0
    #: Vbuckets that have gone over to another branch since.
    incomparable: tuple[int, ...] = ()
    differences: tuple[Difference, ...] = field(default=())

    @property
    def differing(self) -> int:
        """Documents that are not the same on both sides."""
        return self.missing + self.extra + self.different + self.doubled + self.broken

    @property
    def verdict(self) -> Verdict:
        """The one word for all of it; the worst of what was found."""
        if self.doubled:
            return "doubled"
        if self.differing:
            return "different"
        if self.incomparable:
            return "unknown"
        return "equal" if self.equal else "nothing compared"


@dataclass(frozen=True, slots=True)
class MirrorPart:
    """The tables of a mirror whose rows have one shape, and what the bucket has of them."""

    rows: DataFrame
    #: Every change of the bucket as a row of the mirror.
    changes: DataFrame
    shape: MirrorShape
    #: The collection that it is of; empty for all that are no part of their own.
    collection: str = ""


@dataclass(frozen=True, slots=True)
class HeldMirror:
    """A mirror as it is at one moment, and what its bucket has now."""

    parts: tuple[MirrorPart, ...]
    shape: MirrorShape
    #: By vbucket the seqno and the vbuuid.
    positions: Mapping[int, tuple[int, int]]
    #: As they were given, with the nodes of the cluster.
    settings: PipelineSettings
    #: Vbuckets that have gone over to another branch since.
    others: tuple[int, ...] = ()


def verify(
    spark: SparkSession | StartSpark,
    *,
    source: str,
    table: str,
    show: int = 10,
    **options: Unpack[MirrorOptions],
) -> Comparison:
    """Compares; ``options`` are those of the source, and select what the mirror selects.

    ``spark`` is a session, or a function that starts one: it is called only if table and source
    can be compared.
    """
    settings = PipelineSettings.parse("mirror", source, options)
    mirror = held_mirror(spark, settings, place_of(table, settings))
    judged = judgements(mirror).persist()
    try:
        return compared(judged, mirror.others, show)
    finally:
        judged.unpersist()


def held_mirror(
    spark: SparkSession | StartSpark, settings: PipelineSettings, place: TablePlace
) -> HeldMirror:
    """A mirror or history beside its bucket; ConfigError if it is none, or of something else."""
    held = mirror_properties(place)
    settings = replace(settings, kind=KINDS.get(held[KIND], settings.kind))
    driver = Driver(settings.read)
    try:
        identity = identity_properties(settings, driver.identity())
        require_same(place.storage.url, held, identity)
        live = {f"{scope}.{name}" for scope, name in driver.collections().live_names().values()}
        settings = settings.knowing(driver.addresses)
    finally:
        driver.close()
    mirror = _mirror(spark, place, settings, held, live)
    return replace(mirror, others=on_other_branches(settings, mirror.positions))


def mirror_properties(place: TablePlace) -> dict[str, str]:
    """The properties of a mirror or history; ConfigError for any other table."""
    try:
        held = held_properties(place)
    except ForeignTable:
        raise ConfigError(f"{place} is no mirror: no pipeline has made it") from None
    if held is None or SHAPE not in held:
        what = "a change log; fold it and compare that" if held is not None else "no mirror"
        raise ConfigError(f"{place} is {what}")
    return held


def on_other_branches(
    settings: PipelineSettings, positions: Mapping[int, tuple[int, int]]
) -> tuple[int, ...]:
    """The vbuckets that are on another branch now than at some positions."""
    driver = Driver(settings.read)
    try:
        branches = driver.newest_branches(positions)
    finally:
        driver.close()
    return tuple(
        vbucket
        for vbucket, (_, vbuuid) in positions.items()
        if vbucket in branches and branches[vbucket] != vbuuid
    )


def _there(
    options: Mapping[str, str], read: ReadOptions, live: set[str], own: set[str], part: str
) -> tuple[dict[str, str], bool]:
    """Options that select what there is of a part of a selection; and whether there is anything.

    What was dropped has no documents, and a batch read would refuse its name.
    """
    inside = [name for name in live if not read.scope or name.startswith(f"{read.scope}.")]
    wanted = sorted(name for name in inside if not read.collections or name in read.collections)
    named = bool(read.collections)
    if own:  # the collections of each part are named
        wanted = [name for name in wanted if (name == part if part else name not in own)]
        named = True
    # a scope, or the whole bucket, is read by its own name, also what is created meanwhile
    dropped = {"collections", "scope"} if named or not wanted else {"collections"}
    chosen = {name: text for name, text in options.items() if name.lower() not in dropped}
    if named and wanted:
        chosen["collections"] = ",".join(wanted)
    return chosen, bool(wanted) or not (named or read.scope)


def _mirror(
    spark: SparkSession | StartSpark,
    place: TablePlace,
    settings: PipelineSettings,
    held: Mapping[str, str],
    live: set[str],
) -> HeldMirror:
    shape = MirrorShape.of_json(held[SHAPE])
    # as it is, whoever has written to it: that is what is to be found out
    tables = PipelineTables.open(place.storage, shape.arrow_schema, Window(0, 0), trusting=True)
    if tables is None or tables.state.offset is None:
        raise ConfigError(f"{place} is still empty: its pipeline has not brought it up yet")
    app, batch = held[PIPELINE], tables.state.batch
    for name in tables.state.pending:
        if name != DEAD_LETTERS and (
            name not in tables.others
            or tables.others[name].snapshot.transactions.get(app, 0) < batch
        ):
            raise ConfigError(
                f"the last batch of {place} is not in all of its tables: start the pipeline once "
                "more, and compare then"
            )
    if callable(spark):
        spark = spark()
    register(spark)
    own = {name for name, _ in shape.own}
    held_rows: dict[str, DataFrame] = {}
    for name, table in tables.data_tables().items():
        path = place.storage.under(name).url if name else place.storage.url
        some = read_table(
            spark,
            path,
            version_as_of=table.snapshot.version,
            storage_options=dict(settings.storage) or None,
        )
        part = name if name in own else ""
        held_rows[part] = held_rows[part].unionByName(some) if part in held_rows else some
    if not held_rows:
        raise ConfigError(f"{place} has no table of a collection yet")
    reading = {name: text for name, text in settings.source.items() if "PerTrigger" not in name}
    parts = []
    for part in ("", *sorted(own)):
        one = shape.of(part)
        chosen, is_any = _there(reading, settings.read, live, own, part)
        changes = documents_as_rows(spark, chosen, is_any, replace(one, versions=False))
        rows = held_rows.get(part)
        if rows is None:
            if not is_any:
                continue
            rows = changes.drop(GONE).limit(0)
        parts.append(MirrorPart(rows, changes, one, part))
    return HeldMirror(tuple(parts), shape, positions_of(tables.state.offset), settings)


def judgements(mirror: HeldMirror) -> DataFrame:
    """Of each document on either side its kind, and the seqnos that both have."""
    from pyspark.sql import functions as f

    others = mirror.others
    comparable = ~f.col("vbucket").isin(list(others)) if others else f.lit(True)
    no, yes = f.lit(False), f.lit(True)
    sides = []
    for part in mirror.parts:
        states = newest_rows(part.changes).where(comparable)
        rows = part.rows.where(comparable).withColumn(GONE, no)
        if mirror.shape.versions:
            rows = _judged_versions(rows).drop(*VERSION_COLUMNS)
        else:
            rows = rows.withColumns({_ENDED: no, _BROKEN: no})
        bucket = _hashed(states.withColumns({_ENDED: no, _BROKEN: no}))
        sides.append(bucket.withColumn("mirrored", no))
        sides.append(_hashed(rows).withColumn("mirrored", yes))
    # one shuffle of all sides: a document's rows meet, however many there are of it
    documents = reduce(lambda one, other: one.unionByName(other), sides).groupBy(*DOCUMENT)
    in_bucket, in_mirror = ~f.col("mirrored"), f.col("mirrored") & ~f.col(_ENDED)
    met = documents.agg(
        f.count_if(in_bucket & ~f.col(GONE)).alias("in_bucket"),
        f.count_if(in_mirror).alias("in_mirror"),
        f.max(f.when(in_bucket, f.col("seqno"))).alias("bucket_seqno"),
        f.max(f.when(in_mirror, f.col("seqno"))).alias("mirror_seqno"),
        f.max(f.when(in_bucket, f.col("hash"))).alias("bucket_hash"),
        f.max(f.when(in_mirror, f.col("hash"))).alias("mirror_hash"),
        f.max(_BROKEN).alias(_BROKEN),
    )
    known = _seqno_of(mirror.positions, f.col("vbucket"))
    verdict = (
        f.when(f.col("in_mirror") > 1, "doubled")
        .when(f.col(_BROKEN), "broken")
        .when(f.col("bucket_seqno") > known, "changed later")
        .when((f.col("in_bucket") == 0) & (f.col("in_mirror") == 0), "gone")
        .when(f.col("in_mirror") == 0, "missing")
        .when(f.col("in_bucket") == 0, "extra")
        .when(f.col("bucket_hash") != f.col("mirror_hash"), "different")
        .otherwise("equal")
    )
    return met.select(verdict.alias("kind"), *DOCUMENT, "bucket_seqno", "mirror_seqno")


def compared(judged: DataFrame, others: tuple[int, ...], show: int) -> Comparison:
    """What judgements come to."""
    from pyspark.sql import functions as f

    counts = {row["kind"]: row["count"] for row in judged.groupBy("kind").count().collect()}
    wrong = judged.where(f.col("kind").isin(*WRONG))
    shown = wrong.orderBy("vbucket", "scope", "collection", "key").limit(show).collect()
    return Comparison(
        equal=counts.get("equal", 0),
        **{kind: counts.get(kind, 0) for kind in WRONG},
        changed_later=counts.get("changed later", 0),
        incomparable=others,
        differences=tuple(Difference(**{**row.asDict(), "key": _key(row["key"])}) for row in shown),
    )


def newest_rows(rows: DataFrame) -> DataFrame:
    """Of each document its newest row; the documents that are gone too."""
    from pyspark.sql import functions as f

    others = [name for name in rows.columns if name not in DOCUMENT]
    newest = f.max_by(f.struct(*map(column_named, others)), f.struct("branch", "seqno")).alias(
        "newest"
    )
    return rows.groupBy(*DOCUMENT).agg(newest).select(*DOCUMENT, "newest.*")


def column_named(name: str) -> Column:
    """A column by its name, which may have dots and backticks; members of documents can."""
    from pyspark.sql import functions as f

    return f.col("`" + name.replace("`", "``") + "`")


def _key(key: str | bytes | bytearray) -> bytes:
    return key.encode() if isinstance(key, str) else bytes(key)


def _hashed(rows: DataFrame) -> DataFrame:
    """The document, its seqno, and one number for all else that a row says."""
    from pyspark.sql import functions as f

    names = [name for name in sorted(rows.columns) if name not in _NOT_HASHED]
    columns = [hashable(column_named(name), rows.schema[name].dataType) for name in names]
    # the hash passes over nulls, so which columns are null is hashed separately
    nulls = [column.isNull() for column in columns]
    told = f.xxhash64(*columns, *nulls).alias("hash")
    return rows.select(*DOCUMENT, "seqno", GONE, _ENDED, _BROKEN, told)


def _judged_versions(rows: DataFrame) -> DataFrame:
    """Versions, whether they have ended, and whether they do not fit the next one."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    following = Window.partitionBy(*DOCUMENT).orderBy("seqno")
    begin, end, began, ended, by = map(f.col, VERSION_COLUMNS)
    next_begin, next_began = f.lead(begin).over(following), f.lead(began).over(following)
    fits = (
        f.when(end.isNull(), next_begin.isNull() & ended.isNull() & by.isNull())
        .when(by == "mutation", next_begin.eqNullSafe(end) & next_began.eqNullSafe(ended))
        .otherwise(f.coalesce(next_begin > end, f.lit(True)) & ended.isNotNull() & by.isNotNull())
    )
    wrong = ~(fits & (begin == f.col("seqno")) & f.coalesce(end >= begin, f.lit(True)))
    judged = f.coalesce(wrong, f.lit(True))
    return rows.withColumns({_ENDED: end.isNotNull(), _BROKEN: judged})


def _seqno_of(positions: Mapping[int, tuple[int, int]], vbucket: Column) -> Column:
    from pyspark.sql import functions as f

    pairs = [f.lit(n) for vb, (seqno, _) in positions.items() for n in (vb, seqno)]
    known = f.create_map(*pairs)[vbucket] if pairs else f.lit(None)
    return f.coalesce(known.cast("bigint"), f.lit(0))
