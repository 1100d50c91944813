"""A Delta table whose data files Spark's executors write, and whose log `deltalake` writes.

One commit is one atomic step: it takes files in and out and says, as an application transaction,
up to which batch the table is. Whoever finds that number in the table does not commit that batch
again. Nothing here knows what the rows mean.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from ...errors import ConfigError
from .grouped_files import ATTEMPTS, UNIQUE_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["Commit", "DataFiles", "DeltaFolder", "TableFile", "again_after_conflicts"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

#: Which batch a commit brought, and where the bucket was at its end.
BATCH: Final = "upriver.batch"
POSITIONS: Final = "upriver.positions"
#: Commits that are looked through for the newest one of ours: first few, since it is nearly always
#: among them, then as many as maintenance could have made since.
_LOOKS_BACK: Final = (10, 1000)
#: How often a step that met a concurrent one is done again before it fails.
_ATTEMPTS: Final = 8

#: Delta has timestamps in microseconds; Spark's default is an older kind that Delta has not.
_TIMESTAMPS: Final = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
_WRITING: Final = {
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # values that hardly repeat: a dictionary of them is work for nothing
    **{f"parquet.enable.dictionary#{name}": "false" for name in UNIQUE_COLUMNS},
}


@dataclass(frozen=True, slots=True)
class Commit:
    """What a commit says of itself."""

    #: Whose count of batches it is, and how far that is now.
    app: str
    batch: int
    positions: Mapping[str, str]

    def properties(self, *, only_if_unchanged: bool = False) -> CommitProperties:
        return CommitProperties(
            max_commit_retries=0 if only_if_unchanged else None,
            custom_metadata={
                BATCH: self.batch,
                POSITIONS: json.dumps(self.positions, separators=(",", ":")),
            },
            app_transactions=[Transaction(self.app, self.batch)],
        )


@dataclass(frozen=True, slots=True)
class DataFiles:
    """Files that were written and are not part of a table yet."""

    actions: list[AddAction]
    rows: int
    bytes: int
    #: The largest ``event_time`` in them, in microseconds since 1970, if it is known.
    newest: int | None = None


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file that is part of a table, as the table's log tells."""

    #: Relative to the table, as the log spells it.
    name: str
    size: int
    rows: int
    partition: Mapping[str, str | None]
    #: The greatest values of columns, as far as they are known.
    greatest: Mapping[str, Any]


class DeltaFolder:
    """A directory with a Delta table, or where one will be."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def exists(self) -> bool:
        return (self.path / "_delta_log").is_dir() and DeltaTable.is_deltatable(str(self.path))

    def open(self) -> DeltaTable:
        """The table as it is now."""
        return DeltaTable(str(self.path))

    def create(
        self, schema: StructType, properties: Mapping[str, str], partition_by: Sequence[str] = ()
    ) -> None:
        DeltaTable.create(
            str(self.path),
            Schema.from_json(schema.json()),
            mode="ignore",
            partition_by=list(partition_by),
            configuration=dict(properties),
            raise_if_key_not_exists=False,
        )

    def properties(self) -> dict[str, str]:
        found = self.open().metadata().configuration
        return {name: value for name, value in found.items() if isinstance(value, str)}

    def last_batch(self, app: str) -> int:
        """The last batch that is in the table; -1 if there is none."""
        if not self.exists():
            return -1
        found = self.open().transaction_version(app)
        return -1 if found is None else found

    def newest_commit(self, batch: int | None = None) -> tuple[int, dict[str, str]] | None:
        """The batch and the positions that the newest commit (of that batch) tells."""
        table = self.open()
        for commits in _LOOKS_BACK:
            for entry in table.history(commits):
                if POSITIONS in entry and batch in (None, int(entry[BATCH])):
                    return int(entry[BATCH]), json.loads(entry[POSITIONS])
        return None

    # ---- reading -------------------------------------------------------------------------

    def files(self, table: DeltaTable | None = None) -> list[TableFile]:
        """The files of the table, as it was when it was opened, or as it is now."""
        listed = pa.table((table or self.open()).get_add_actions(flatten=True))
        return [_table_file(row) for row in listed.to_pylist()]

    def paths(self, files: Iterable[TableFile]) -> list[str]:
        return [str(self.path / unquote(file.name)) for file in files]

    def read(
        self,
        spark: SparkSession,
        files: Iterable[TableFile] | None = None,
        *,
        without: Sequence[str] = (),
    ) -> DataFrame:
        """Files of the table (all) in Spark, which knows no Delta; ``without`` partitions."""
        from pyspark.sql.types import StructType

        schema = StructType.fromJson(json.loads(self.open().schema().to_json()))
        schema = StructType([field for field in schema.fields if field.name not in without])
        paths = self.paths(self.files() if files is None else files)
        if not paths:
            return spark.createDataFrame([], schema)
        reader = spark.read.schema(schema).option("recursiveFileLookup", "true")
        return reader.parquet(*paths)

    # ---- writing -------------------------------------------------------------------------

    def write(self, rows: DataFrame) -> DataFiles:
        """Has the executors write rows into new files beside those of the table."""
        spark = rows.sparkSession
        before = spark.conf.get(_TIMESTAMPS[0], None)
        spark.conf.set(*_TIMESTAMPS)
        try:
            return self.written(lambda place: rows.write.options(**_WRITING).parquet(str(place)))
        finally:
            if before is not None:
                spark.conf.set(_TIMESTAMPS[0], before)

    def written(self, write: Callable[[Path], None]) -> DataFiles:
        """What ``write`` writes into a new directory beside the files of the table."""
        directory = self.path / f"data-{uuid.uuid4().hex}"
        write(directory)
        return _described(directory, self.path)

    def commit(
        self,
        files: DataFiles,
        commit: Commit,
        *,
        instead_of: Iterable[TableFile] = (),
        seen: DeltaTable | None = None,
    ) -> None:
        """Takes files in, and those of ``instead_of`` out, in one step.

        Who takes files out says in which state of the table they were ``seen``, and nothing is
        committed if it has changed since: `deltalake` would not notice that a compaction has
        moved their rows elsewhere.
        """
        table = seen or self.open()
        now = int(time.time() * 1000)
        removed = [
            RemoveAction(file.name, True, now, file.size, dict(file.partition))
            for file in instead_of
        ]
        table.create_write_transaction(
            [*removed, *files.actions],
            "append",
            table.schema(),
            partition_by=table.metadata().partition_columns,
            commit_properties=commit.properties(only_if_unchanged=seen is not None),
        )


def again_after_conflicts(step: Callable[[], _T]) -> _T:
    """Does a step; anew, from what the table is then, if somebody else was faster."""
    for left in range(_ATTEMPTS - 1, -1, -1):
        try:
            return step()
        except CommitFailedError as problem:
            if not left:
                raise ConfigError(f"others keep changing the table: {problem}") from None
            _log.info("the table has changed meanwhile, trying again: %s", problem)
    raise AssertionError("unreachable")


def _table_file(row: Mapping[str, Any]) -> TableFile:
    partition = _under("partition.", row)
    return TableFile(
        name=row["path"],
        size=row["size_bytes"],
        rows=row["num_records"],
        partition={name: None if one is None else str(one) for name, one in partition.items()},
        greatest=_under("max.", row),
    )


def _under(prefix: str, row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name.removeprefix(prefix): value for name, value in row.items() if name.startswith(prefix)
    }


def _described(directory: Path, table: Path) -> DataFiles:
    """What Spark has written there; without empty files, and without its check sums."""
    actions, rows, size, newest = [], 0, 0, None
    for path in sorted(directory.rglob("*")) if directory.exists() else ():
        if not path.is_file() or ATTEMPTS in path.parts:
            continue
        if path.suffix != ".parquet" or path.name.startswith((".", "_")):
            path.unlink()
            continue
        footer = pq.read_metadata(path)
        if not footer.num_rows:
            path.unlink()
            continue
        relative = path.relative_to(table)
        about = path.stat()
        lows, highs = _limits(footer)
        if "event_time" in highs:
            newest = max(newest or 0, highs.pop("event_time"))
            lows.pop("event_time")
        stats = {"numRecords": footer.num_rows, "minValues": lows, "maxValues": highs}
        actions.append(
            AddAction(
                path=quote(relative.as_posix(), safe="/=%"),
                size=about.st_size,
                partition_values=_hive_partition(relative.parts[1:-1]),
                modification_time=int(about.st_mtime * 1000),
                data_change=True,
                stats=json.dumps({**stats, "nullCount": {}}),
            )
        )
        rows += footer.num_rows
        size += about.st_size
    return DataFiles(actions, rows, size, newest)


def _hive_partition(folders: Iterable[str]) -> dict[str, str | None]:
    pairs = (folder.partition("=") for folder in folders)
    return {name: unquote(value) for name, _, value in pairs}


def _limits(footer: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The least and the greatest of each column of whole numbers, and of the event times."""
    lows: dict[str, Any] = {}
    highs: dict[str, Any] = {}
    for at in range(footer.num_columns):
        name = footer.schema.column(at).path
        parts = [
            footer.row_group(group).column(at).statistics for group in range(footer.num_row_groups)
        ]
        if any(part is None or not part.has_min_max for part in parts):
            continue
        if footer.schema.column(at).physical_type not in ("INT32", "INT64") or "." in name:
            continue
        if name == "event_time":
            lows[name] = min(part.min_raw for part in parts)
            highs[name] = max(part.max_raw for part in parts)
        elif isinstance(parts[0].min, int):
            lows[name] = min(part.min for part in parts)
            highs[name] = max(part.max for part in parts)
    return lows, highs
