"""Checkpoints of a Delta log: one Parquet file that sums up all commits before it.

`deltalake` would keep the removal of every file that ever went, since only Upriver decides which
versions are kept. A checkpoint of ours has the removals that versions need which are still kept:
those of the checkpoint before it and of the commits since then, without the ones that are older.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...files.storage import Storage

_TEXTS: Final = pa.map_(pa.string(), pa.string())
_VECTOR: Final = pa.struct(
    [
        ("storageType", pa.string()),
        ("pathOrInlineDv", pa.string()),
        ("offset", pa.int32()),
        ("sizeInBytes", pa.int32()),
        ("cardinality", pa.int64()),
    ]
)
_SCHEMA: Final = pa.schema(
    [
        (
            "txn",
            pa.struct(
                [("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())]
            ),
        ),
        (
            "add",
            pa.struct(
                [
                    ("path", pa.string()),
                    ("partitionValues", _TEXTS),
                    ("size", pa.int64()),
                    ("modificationTime", pa.int64()),
                    ("dataChange", pa.bool_()),
                    ("stats", pa.string()),
                    ("deletionVector", _VECTOR),
                ]
            ),
        ),
        (
            "remove",
            pa.struct(
                [
                    ("path", pa.string()),
                    ("deletionTimestamp", pa.int64()),
                    ("dataChange", pa.bool_()),
                    ("extendedFileMetadata", pa.bool_()),
                    ("partitionValues", _TEXTS),
                    ("size", pa.int64()),
                    ("deletionVector", _VECTOR),
                ]
            ),
        ),
        (
            "metaData",
            pa.struct(
                [
                    ("id", pa.string()),
                    ("name", pa.string()),
                    ("description", pa.string()),
                    (
                        "format",
                        pa.struct([("provider", pa.string()), ("options", _TEXTS)]),
                    ),
                    ("schemaString", pa.string()),
                    ("partitionColumns", pa.list_(pa.string())),
                    ("configuration", _TEXTS),
                    ("createdTime", pa.int64()),
                ]
            ),
        ),
        (
            "protocol",
            pa.struct(
                [
                    ("minReaderVersion", pa.int32()),
                    ("minWriterVersion", pa.int32()),
                    ("readerFeatures", pa.list_(pa.string())),
                    ("writerFeatures", pa.list_(pa.string())),
                ]
            ),
        ),
    ]
)
#: Actions that say what a table is; removals only say what it was.
_OF_THE_TABLE: Final = ("add", "txn", "metaData", "protocol")


def checkpoint_path(log: str, version: int) -> str:
    return f"{log}/{version:020}.checkpoint.parquet"


def read_actions(storage: Storage, path: str) -> Iterator[dict[str, Any]]:
    """What a checkpoint says of the table, without the removals in it."""
    with storage.source(path) as source:
        file = pq.ParquetFile(source)
        names = [name for name in _OF_THE_TABLE if name in file.schema_arrow.names]
        for batch in file.iter_batches(columns=names):
            for name in names:
                column: Any = batch.column(name)
                held = column.filter(pc.is_valid(column))
                for value in held.to_pylist(maps_as_pydicts="strict"):
                    yield {name: value}


def write(
    storage: Storage,
    log: str,
    version: int,
    actions: Sequence[Mapping[str, Any]],
    removals: Iterable[Mapping[str, Any]],
    *,
    before: Sequence[str] = (),
    since: float,
) -> None:
    """Writes the checkpoint of a version: what the table is, and what went ``since`` a time.

    The time is in seconds since 1970; ``before`` are the files of the checkpoint before this one,
    and ``removals`` those of the commits after it.
    """
    out, rows = io.BytesIO(), 0
    moment = int(since * 1000)
    live = {_file_id(action["add"]) for action in actions if "add" in action}
    young = [
        action
        for action in removals
        if (action["remove"].get("deletionTimestamp") or 0) >= moment
        and _file_id(action["remove"]) not in live
    ]
    with pq.ParquetWriter(out, _SCHEMA, compression="snappy") as writer:
        for table in (_rows(actions), _rows(young)):
            writer.write_table(table)
            rows += table.num_rows
        for path in before:
            for table in _older_removals(storage, path, moment, live):
                writer.write_table(table)
                rows += table.num_rows
    storage.put(checkpoint_path(log, version), out.getvalue())
    newest = {"version": version, "size": rows, "sizeInBytes": len(out.getvalue())}
    storage.put(f"{log}/_last_checkpoint", json.dumps(newest).encode())


def _file_id(file: Mapping[str, Any]) -> str:
    """A file with the vector that it has: both together are added and removed once."""
    vector = file.get("deletionVector") or {}
    offset = vector.get("offset")
    place = "" if offset is None else str(offset)
    return f"{file['path']} {vector.get('pathOrInlineDv') or ''} {place}"


def _file_ids(files: Any) -> Any:
    """The same for a column of files."""
    vector = pc.struct_field(files, "deletionVector")
    parts = [
        pc.struct_field(files, "path"),
        pc.struct_field(vector, "pathOrInlineDv"),
        pc.struct_field(vector, "offset").cast(pa.string()),
    ]
    return pc.binary_join_element_wise(*(pc.fill_null(part, "") for part in parts), " ")


def _rows(actions: Sequence[Mapping[str, Any]]) -> pa.Table:
    columns = [
        pa.array([_plain(action.get(cell.name)) for action in actions], cell.type)
        for cell in _SCHEMA
    ]
    return pa.Table.from_arrays(columns, schema=_SCHEMA)


def _plain(value: Any) -> Any:
    """A value with its maps as Arrow takes them: lists of pairs."""
    if not isinstance(value, Mapping):
        return value
    made = dict(value)
    for name in ("partitionValues", "configuration"):
        if name in made:
            made[name] = list((made[name] or {}).items())
    if "format" in made:
        options = list((made["format"].get("options") or {}).items())
        made["format"] = {**made["format"], "options": options}
    return made


def _older_removals(storage: Storage, path: str, moment: int, live: Set[str]) -> Iterator[pa.Table]:
    """The removals of an earlier checkpoint that are still needed."""
    with storage.source(path) as source:
        file = pq.ParquetFile(source)
        if "remove" not in file.schema_arrow.names:
            return
        for batch in file.iter_batches(columns=["remove"]):
            column: Any = batch.column("remove")
            young = pc.greater_equal(
                pc.struct_field(column, "deletionTimestamp"), pa.scalar(moment, pa.int64())
            )
            column = column.filter(pc.fill_null(young, False))
            if column.type != _SCHEMA.field("remove").type:  # of another writer
                plain = column.to_pylist(maps_as_pydicts="strict")
                yield _rows([{"remove": one} for one in plain if _file_id(one) not in live])
                continue
            is_live = pc.is_in(_file_ids(column), pa.array(sorted(live), pa.string()))
            yield _alone(column.filter(pc.invert(is_live)))


def _alone(removals: Any) -> pa.Table:
    columns = [
        removals if cell.name == "remove" else pa.nulls(len(removals), cell.type)
        for cell in _SCHEMA
    ]
    return pa.Table.from_arrays(columns, schema=_SCHEMA)
