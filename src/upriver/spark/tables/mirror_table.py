"""A mirror: one row for each document, kept by setting documents to their final states.

Each step is one commit, so readers see the table before it or after it and nothing between. Few
states are merged by `deltalake` in the driver's process. Many are merged by the executors: files of
the touched groups are read, rows of the documents in question left out, the new ones added, and the
files exchanged. Into an empty table that is a plain parallel load, or less (`first_load`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from deltalake import WriterProperties

from .change_log import ChangeLog
from .delta import Commit, DataFiles, DeltaFolder, again_after_conflicts
from .first_load import has_each_document_once, write_first
from .grouped_files import write_grouped
from .shape import GONE, GROUP, MirrorShape
from .states import DOCUMENT, same_document

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["MERGED_BY_DRIVER", "MirrorTable", "newest_rows"]

#: States that the driver merges by itself; more would need too much of its memory. Into a million
#: rows on two cores it took 2.9 s for 99,000, and executors, which shuffle, 13.6 s for 200,000.
MERGED_BY_DRIVER: Final = 250_000

#: The writer has a part of every group's file in memory, which would hold all rows by default.
_WRITING: Final = WriterProperties(compression="SNAPPY", max_row_group_size=16_384)

_SAME: Final = (
    f"t.{GROUP} = s.{GROUP} AND t.vbucket = s.vbucket AND t.key = s.key"
    " AND t.collection = s.collection AND coalesce(t.scope, '') = coalesce(s.scope, '')"
)


@dataclass(frozen=True, slots=True)
class MirrorTable:
    """A mirror in a directory."""

    path: Path
    shape: MirrorShape
    most_merged_by_driver: int = MERGED_BY_DRIVER

    @property
    def folder(self) -> DeltaFolder:
        return DeltaFolder(self.path)

    def create(self, states: StructType, properties: Mapping[str, str]) -> None:
        from pyspark.sql.types import StructType

        columns = [field for field in states.fields if field.name != GONE]
        self.folder.create(StructType(columns), properties, partition_by=[GROUP])

    def load_first(self, spark: SparkSession, log: ChangeLog, commit: Commit) -> bool:
        """Fills it from a history, if it is empty and the history simple; says whether it has."""
        simple = self.shape.is_plain and not self.folder.files()
        if not simple or not has_each_document_once(spark, log):
            return False
        files = self.folder.written(lambda place: write_first(spark, log, self.shape, place))
        self.folder.commit(files, commit)
        return True

    def set(self, states: DataFrame, commit: Commit) -> None:
        """Sets documents to their final states."""
        if not self.folder.files():
            again_after_conflicts(lambda: self._load(states, commit))
            return
        states.persist()
        try:
            count = states.count()
            if count > self.most_merged_by_driver:
                again_after_conflicts(lambda: self._rewrite(states, commit))
            else:
                self.merge(states.toArrow(), commit)
        finally:
            states.unpersist()

    def merge(self, states: pa.Table, commit: Commit) -> None:
        """The same for few states, which the driver has."""
        if states.num_rows:
            again_after_conflicts(lambda: self._merge(states, commit))
        else:  # only the positions are others
            self.folder.commit(DataFiles([], 0, 0), commit)

    def _merge(self, states: pa.Table, commit: Commit) -> None:
        table = self.folder.open()
        schema = pa.schema(table.schema().to_arrow())  # type: ignore[arg-type]  # any Arrow schema will do
        columns = schema.names
        source = states.select([*columns, GONE]).cast(schema.append(pa.field(GONE, pa.bool_())))
        values = {f"`{name}`": f"s.`{name}`" for name in columns}
        (
            table.merge(
                source,
                _SAME,
                source_alias="s",
                target_alias="t",
                streamed_exec=False,  # so that the source's groups narrow what is read
                writer_properties=_WRITING,
                commit_properties=commit.properties(),
            )
            .when_matched_delete(f"s.{GONE}")
            .when_matched_update(values)
            .when_not_matched_insert(values, predicate=f"NOT s.{GONE}")
            .execute()
        )

    def _load(self, states: DataFrame, commit: Commit) -> None:
        from pyspark.sql import functions as f

        live = states.where(~f.col(GONE)).drop(GONE)
        files = self.folder.written(lambda place: write_grouped(live, GROUP, place))
        self.folder.commit(files, commit)

    def _rewrite(self, states: DataFrame, commit: Commit) -> None:
        from pyspark.sql import functions as f

        folder = self.folder
        seen = folder.open()
        files = folder.files(seen)
        live = states.where(~f.col(GONE)).drop(GONE)
        touched = {str(row[0]) for row in states.select(GROUP).distinct().collect()}
        files = [file for file in files if file.partition[GROUP] in touched]
        held = folder.read(states.sparkSession, files, without=[GROUP]).alias("held")
        named = states.select(*DOCUMENT).alias("named")
        kept = held.join(named, same_document("held", "named"), "left_anti")
        both = kept.withColumn(GROUP, self.shape.group()).unionByName(live)
        written = folder.written(lambda place: write_grouped(both, GROUP, place))
        folder.commit(written, commit, instead_of=files, seen=seen)


def newest_rows(rows: pa.Table) -> pa.Table:
    """Of each document its newest row; there is no rollback among them."""
    ordered = rows.sort_by([("branch", "ascending"), ("seqno", "ascending")])
    numbered = ordered.append_column("number", pa.array(range(ordered.num_rows), pa.int64()))
    last = numbered.group_by(list(DOCUMENT)).aggregate([("number", "max")])
    return ordered.take(last.column("number_max"))
