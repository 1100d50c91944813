"""Repairs a mirror: brings the documents that differ from its bucket, and no others.

The mirror stays at its positions. What `verify` judges to be wrong gets the row that the bucket has
at or below them, or loses its rows, in one commit. Documents that have changed since are left to
the pipeline, which has not read these changes yet. The bucket may be written to meanwhile; the
pipeline must not run, which its lease ensures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import ConfigError
from ..settings.option_types import MirrorOptions
from ..tables.executors import ThisProcess
from ..tables.format.data_files import RowFiles, cast_rows
from ..tables.format.delta_log import REPAIR
from ..tables.format.key_index import NAME_COLUMNS as DOCUMENT
from ..tables.lease import held_lease
from ..tables.merge import Merge, TaskOutcome
from ..tables.pipeline_settings import PipelineSettings
from ..tables.pipeline_start import place_of
from ..tables.pipeline_tables import PipelineTables
from ..tables.rows.row_shape import MirrorShape
from .executors import StartSpark
from .verify_source import GONE
from .verify_table import (
    WRONG,
    Comparison,
    HeldMirror,
    MirrorPart,
    column_named,
    compared,
    held_mirror,
    judgements,
    mirror_properties,
    newest_rows,
    on_other_branches,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Documents that are repaired at most: their rows are gathered in Spark's driver.
MOST: Final = 100_000


@dataclass(frozen=True, slots=True)
class Repaired:
    """What was found and done."""

    #: How the mirror was before.
    found: Comparison
    #: Documents of which the bucket's row was written.
    written: int = 0
    #: Documents whose rows were removed.
    removed: int = 0
    #: Documents that have changed in the bucket while it was compared: the pipeline brings them.
    left: int = 0


def repair(
    spark: SparkSession | StartSpark,
    *,
    source: str,
    table: str,
    most: int = MOST,
    show: int = 10,
    **options: Unpack[MirrorOptions],
) -> Repaired:
    """Makes a mirror equal to its bucket at its positions; its pipeline must not run.

    ConfigError, and nothing is changed, if more than ``most`` documents differ or a vbucket has
    gone over to another branch.
    """
    settings = PipelineSettings.parse("mirror", source, options)
    place = place_of(table, settings)
    mirror_properties(place)  # a lease would leave a folder of ours in a table of others
    with held_lease(place.storage) as lease:
        mirror = held_mirror(spark, settings, place)
        if mirror.shape.versions:
            raise ConfigError(
                f"{place} is a history, and the bucket does not have older versions any more, so "
                "it cannot be repaired; restore an older version of the table, or give a new one"
            )
        _require_same_branches(mirror.others)
        judged = judgements(mirror).persist()
        try:
            found = compared(judged, (), show)
            if found.differing > most:
                raise ConfigError(
                    f"{found.differing} documents of {place} differ, more than {most}; nothing was "
                    "changed. Let a pipeline make a new table, or allow more"
                )
            rows: list[pa.Table] = []
            if found.differing:
                rows = [_rows_for(part, mirror.shape, judged) for part in mirror.parts]
        finally:
            judged.unpersist()
        tables = PipelineTables.open(
            place.storage, mirror.shape.arrow_schema, settings.window, trusting=True
        )
        assert tables is not None
        offset = tables.state.offset
        assert offset is not None
        if not rows and not _has_strangers(tables):
            return Repaired(found)
        # what was read is of the positions only if no vbucket went over in the meantime
        _require_same_branches(on_other_branches(mirror.settings, mirror.positions))
        outcome, repaired = _outcome(tables, settings, mirror, rows)
        # versions before have the rows that were wrong: no rollback may bring these back
        tables.commit_batch([outcome], offset, lease, ThisProcess(), operation=REPAIR, forget=True)
    written = int(repaired.sum())
    removed = len(repaired) - written
    return Repaired(found, written, removed, found.differing - len(repaired))


def _require_same_branches(others: tuple[int, ...]) -> None:
    if others:
        raise ConfigError(
            f"{len(others)} vbuckets have had a failover since the mirror's last batch, the first "
            f"is {others[0]}; nothing was changed. Let the pipeline catch up, and repair then"
        )


def _has_strangers(tables: PipelineTables) -> bool:
    return any(table.snapshot.strangers for table in tables.all_tables().values())


def _rows_for(part: MirrorPart, shape: MirrorShape, judged: DataFrame) -> pa.Table:
    """What the bucket has of the documents that are wrong; rows that are gone for the others."""
    from pyspark.sql import functions as f

    own = [part.collection] if part.collection else [name for name, _ in shape.own]
    mine = f.concat_ws(".", "scope", "collection").isin(own)
    wrong = (
        judged.where(f.col("kind").isin(*WRONG))
        .where(mine if part.collection else ~mine)
        .select(*(f.col(name).alias(f"_{name}") for name in DOCUMENT))
    )
    rows = newest_rows(part.changes)
    same = [rows[name].eqNullSafe(wrong[f"_{name}"]) for name in DOCUMENT]
    together = wrong.join(rows, same, "left")
    columns = [
        f.col(f"_{name}").alias(name) if name in DOCUMENT else column_named(name)
        for name in part.shape.arrow_schema.names
    ]
    gone = f.coalesce(f.col(GONE), f.lit(True)).alias(GONE)
    return together.select(*columns, gone).toArrow()


def _outcome(
    tables: PipelineTables,
    settings: PipelineSettings,
    mirror: HeldMirror,
    found: Sequence[pa.Table],
) -> tuple[TaskOutcome, Any]:
    """Files with the rows of each part, and the rows that they replace; which are written."""
    done, key = TaskOutcome(), tables.key
    assert key is not None
    merge = Merge(
        tables.root, settings.read, mirror.shape, key, (), tables.held(), (), tables.per_collection
    )
    written = [np.empty(0, bool)]
    for part, rows in zip(mirror.parts if found else (), found, strict=True):
        batches, is_row = _repairing(tables, mirror.shape, rows)
        written.append(is_row)
        for batch in batches:
            shaped = cast_rows(batch, part.shape.arrow_schema)
            for name, chosen in merge.by_table(shaped):
                storage = tables.root.under(name) if name else tables.root
                with RowFiles(storage, part.shape.arrow_schema, key=key) as files:
                    files.add(shaped.filter(pa.array(chosen)), is_row[chosen])
                    done.gone[name] = merge.replaced(name, files)
                    if new := files.finish():
                        done.files[name] = new
    return done, np.concatenate(written)


def _repairing(
    tables: PipelineTables, shape: MirrorShape, rows: pa.Table
) -> tuple[list[pa.RecordBatch], Any]:
    """The rows of one part at or below the mirror's positions; and which of them are any."""
    offset = tables.state.offset
    assert offset is not None
    rows = rows.combine_chunks()
    vbuckets = np.asarray(rows.column("vbucket"))
    is_row = ~np.asarray(rows.column(GONE)).astype(bool)
    seqno: Any = rows.column("seqno")
    seqnos = np.asarray(pc.fill_null(seqno, 0))
    known = np.array([offset.at(int(vb)).seqno for vb in vbuckets], np.int64)
    branches = np.array([offset.at(int(vb)).branch for vb in vbuckets], np.int32)
    mine = seqnos <= known
    columns = {
        **{name: rows.column(name) for name in rows.column_names if name != GONE},
        "branch": pa.array(branches),
        "vbucket_group": pa.array((vbuckets % shape.groups).astype(np.int32)),
    }
    batches = pa.table(columns).filter(pa.array(mine)).combine_chunks().to_batches()
    return batches, is_row[mine]
