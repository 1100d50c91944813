"""The change log: every row of the source exactly once, append only, rollback rows included.

Rows are as the source gives them, with the micro-batch that brought them in the column ``batch``.
`upriver.spark.fold` over the log gives the current documents. A mirror is made from such a log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc
import pyarrow.dataset as ds

from ...errors import ConfigError
from ..fold import ROLLBACK
from .delta import Commit, DataFiles, DeltaFolder, TableFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["BATCH_COLUMN", "Appended", "ChangeLog"]

BATCH_COLUMN: Final = "batch"


@dataclass(frozen=True, slots=True)
class Appended:
    """What one batch has brought."""

    rows: int
    bytes: int
    #: Seconds since 1970 of its newest change, if that is known.
    newest: float | None


class ChangeLog:
    """A change log in a directory, written by one pipeline."""

    def __init__(self, path: Path, app: str) -> None:
        self.folder = DeltaFolder(path)
        self._app = app

    def create(self, rows: StructType, properties: Mapping[str, str]) -> None:
        from pyspark.sql.types import LongType, StructType

        schema = StructType([*rows.fields]).add(BATCH_COLUMN, LongType())
        self.folder.create(schema, properties)

    def last_batch(self) -> int:
        """The last batch that is in the log; -1 if there is none."""
        return self.folder.last_batch(self._app)

    def append(self, rows: DataFrame, batch: int, positions: Mapping[str, str]) -> Appended:
        """Commits a batch, unless it is there. The rows are computed at most once."""
        from pyspark.sql import functions as f

        if batch <= self.last_batch():
            self._require_same(batch, positions)
            return Appended(self.size(batch - 1)[0], 0, None)
        files = self.folder.write(rows.withColumn(BATCH_COLUMN, f.lit(batch).cast("bigint")))
        self.folder.commit(files, Commit(self._app, batch, positions))
        return Appended(files.rows, files.bytes, _seconds(files))

    def _require_same(self, batch: int, positions: Mapping[str, str]) -> None:
        """A batch that is skipped must be the batch that is there, and not another plan."""
        found = self.folder.newest_commit(batch)
        if found is not None and found[1] != positions:
            raise ConfigError(
                f"batch {batch} of the checkpoint is not batch {batch} of {self.folder.path}: the "
                "checkpoint was restored or changed; start with a new table"
            )

    # ---- reading -------------------------------------------------------------------------

    def rows(self, spark: SparkSession, after: int = -1) -> DataFrame:
        """The rows of the batches after one."""
        from pyspark.sql import functions as f

        found = self.folder.read(spark, self._files(after))
        return found.where(f.col(BATCH_COLUMN) > after) if after >= 0 else found

    def size(self, after: int) -> tuple[int, int]:
        """How many rows and bytes the batches after one have, or more."""
        files = self._files(after)
        return sum(file.rows for file in files), sum(file.size for file in files)

    def rollbacks(self, after: int) -> dict[int, int]:
        """The vbuckets that went back in the batches after one, and to which seqno at the least."""
        paths = self.folder.paths(self._files(after))
        columns = ["vbucket", "seqno"]
        chosen = (pc.field("op") == ROLLBACK) & (pc.field(BATCH_COLUMN) > after)
        if not paths:
            return {}
        found = ds.dataset(paths, format="parquet").to_table(columns=columns, filter=chosen)
        lowest: dict[int, int] = {}
        for row in found.to_pylist():
            vbucket, seqno = row["vbucket"], row["seqno"]
            lowest[vbucket] = min(seqno, lowest.get(vbucket, seqno))
        return lowest

    def _files(self, after: int) -> list[TableFile]:
        """Those that can have rows of the batches after one."""
        return [
            file
            for file in self.folder.files()
            if (newest := file.greatest.get(BATCH_COLUMN)) is None or newest > after
        ]


def _seconds(files: DataFiles) -> float | None:
    return files.newest / 1_000_000 if files.newest is not None else None
