"""Brings the mirror of a place up to its history: one table, or one for each collection.

The history is the truth and is written first. A mirror says in its own commits which batch it is
at, and is otherwise behind: that is always a state that the history had. So the order of steps is
dead letters, tables, and where there are several tables a mark in the history that all are done;
after a crash in any gap the same steps are done again and do no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc

from .change_log import ChangeLog
from .delta import Commit, DataFiles, DeltaFolder
from .mirror_table import MERGED_BY_DRIVER, MirrorTable, newest_rows
from .places import TablePlace
from .shape import MirrorShape
from .states import CHANGE, final_states

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["MirrorKeeper", "collection_folder"]

#: Bytes of files that the driver reads at once, compressed; its memory holds several times as much.
_MOST_BYTES: Final = 64 * 1024 * 1024
#: In the history: all tables of a mirror with a table for each collection are up to that batch.
_ALL_DONE: Final = "{app}-tables"


class MirrorKeeper:
    """Keeps one mirror."""

    def __init__(
        self,
        place: TablePlace,
        log: ChangeLog,
        shape: MirrorShape,
        *,
        app: str,
        properties: Mapping[str, str],
        per_collection: bool = False,
        on_step: Callable[[str], None] = lambda step: None,
    ) -> None:
        self._place = place
        self._log = log
        self._shape = shape
        self._app = app
        self._properties = properties
        self._per_collection = per_collection
        self._on_step = on_step

    def applied(self) -> int:
        """The batch of the history that the mirror is at; -1 for none."""
        if self._per_collection:
            return self._log.folder.last_batch(_ALL_DONE.format(app=self._app))
        return DeltaFolder(self._place.root).last_batch(self._app)

    def create(self, spark: SparkSession) -> None:
        """Makes the one table at once, so that readers find it, if only empty."""
        if not self._per_collection and not DeltaFolder(self._place.root).exists():
            self._table(self._place.root, self._rows(spark, self._log.last_batch()).schema)

    def bring_up(self, spark: SparkSession, positions: Mapping[str, str]) -> int:
        """Brings the mirror to the newest batch; tells how many dead letters were new."""
        newest, after = self._log.last_batch(), self.applied()
        if newest <= after:
            return 0
        commit = Commit(self._app, newest, positions)
        letters = self._bury(spark, commit) if self._shape.schema else 0
        self._on_step("dead letters")
        if self._is_simple(after):
            self._set_few(self._rows(spark, after), commit)
        else:
            self._set_many(spark, after, commit)
        if self._per_collection:
            done = Commit(_ALL_DONE.format(app=self._app), newest, positions)
            self._log.folder.commit(DataFiles([], 0, 0), done)
        self._on_step("mirror")
        return letters

    def _is_simple(self, after: int) -> bool:
        """Whether new rows alone tell the final states, and are few."""
        rows, size = self._log.size(after)
        few = rows <= MERGED_BY_DRIVER and size <= _MOST_BYTES
        return few and after >= 0 and not self._log.rollbacks(after)

    def _rows(self, spark: SparkSession, after: int) -> DataFrame:
        """New changes in the shape of the mirror, one row each."""
        return self._shape.rows(self._log.rows(spark, after).withColumnRenamed("op", CHANGE))

    def _set_few(self, rows: DataFrame, commit: Commit) -> None:
        states = newest_rows(rows.toArrow())
        if not self._per_collection:
            self._table(self._place.root, rows.schema).merge(states, commit)
            self._on_step("table")
            return
        names = states.group_by(["scope", "collection"]).aggregate([])
        for scope, collection in sorted(map(tuple, map(dict.values, names.to_pylist()))):
            chosen = pc.field("collection") == collection
            chosen &= pc.field("scope").is_null() if scope is None else pc.field("scope") == scope
            path = collection_folder(self._place.root, scope, collection)
            self._table(path, rows.schema).merge(states.filter(chosen), commit)
            self._on_step("table")

    def _set_many(self, spark: SparkSession, after: int, commit: Commit) -> None:
        from pyspark.sql import functions as f

        if after < 0 and not self._per_collection:
            table = self._table(self._place.root, self._rows(spark, after).schema)
            if table.load_first(spark, self._log, commit):
                self._on_step("table")
                return
        states = self._shape.rows(final_states(spark, self._log, after))
        if not self._per_collection:
            self._table(self._place.root, states.schema).set(states, commit)
            self._on_step("table")
            return
        states.persist()
        try:
            names = states.select("scope", "collection").distinct().collect()
            for scope, collection in sorted((row[0], row[1]) for row in names):
                one = f.col("scope").eqNullSafe(f.lit(scope)) & (f.col("collection") == collection)
                path = collection_folder(self._place.root, scope, collection)
                self._table(path, states.schema).set(states.where(one), commit)
                self._on_step("table")
        finally:
            states.unpersist()

    def _table(self, path: Path, states: StructType) -> MirrorTable:
        table = MirrorTable(path, self._shape)
        if not table.folder.exists():
            table.create(states, self._properties)
        return table

    def _bury(self, spark: SparkSession, commit: Commit) -> int:
        """Puts aside what cannot be read, each change once."""
        folder = DeltaFolder(self._place.dead_letters)
        after = folder.last_batch(self._app)
        letters = self._shape.unreadable(self._log.rows(spark, after))
        if not folder.exists():
            folder.create(letters.schema, self._properties)
        if after >= commit.batch:
            return 0
        files = folder.write(letters)
        if files.rows:
            folder.commit(files, commit)
        return files.rows


def collection_folder(root: Path, scope: str | None, collection: str) -> Path:
    return root / (f"{scope}.{collection}" if scope is not None else collection)
