"""Copies a bucket into another one with a streaming query, through failovers of the source.

The query is ``readStream.format("dcp")`` to ``writeStream.format("dcp")`` with
``onRollback=restate`` (see `restate`), which users can write themselves. The collections of the
source are created in the target first. Documents of the scope ``_system`` belong to the database
and are not copied.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ..consumer.topology.collection_names import SYSTEM_SCOPE
from ..consumer.transport.management_http import CollectionsManagement
from ..consumer.writing.documents import Documents
from ..errors import ConfigError
from .options import ReadOptions, WriteOptions
from .session import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["copy"]

_RESTATE: Final = {"onRollback": "restate"}


def copy(
    spark: SparkSession,
    source: str,
    target: str,
    *,
    checkpoint: str | os.PathLike[str],
    once: bool = False,
    source_options: Mapping[str, str] | None = None,
    target_options: Mapping[str, str] | None = None,
) -> StreamingQuery:
    """Starts to copy a bucket into another one; with ``once`` it ends when all is copied.

    ``checkpoint`` is the directory with the positions, as Spark's checkpointLocation: the same at
    every start. The options are those of the format ``dcp`` for reading and for writing.
    """
    register(spark)
    reading = {**_RESTATE, **(source_options or {}), "connectionString": source}
    writing = {**(target_options or {}), "connectionString": target}
    read, write = ReadOptions.parse(reading).for_stream(), WriteOptions.parse(writing)
    if (read.source.hosts, read.source.bucket) == (write.source.hosts, write.source.bucket):
        raise ConfigError(f"{target} is the source itself; a bucket is copied into another one")
    _create_collections(read, write)
    rows = spark.readStream.format("dcp").options(**reading).load()
    copied = rows.where(f"scope IS NULL OR scope <> '{SYSTEM_SCOPE}'")
    writer = copied.writeStream.format("dcp").options(**writing).outputMode("append")
    trigger: dict[str, Any] = {"availableNow": True} if once else {"processingTime": "0 seconds"}
    return writer.option("checkpointLocation", os.fspath(checkpoint)).trigger(**trigger).start()


def _create_collections(read: ReadOptions, write: WriteOptions) -> None:
    """Creates those collections in the target that the source has and the target has not."""
    with Documents(read.source, read.access) as documents:
        theirs = documents.collections
    wanted = {theirs.names(number) for number in theirs.live(read.collections, read.scope)}
    with Documents(write.source, write.access) as documents:
        ours = documents.collections
    there = {ours.names(number) for number in ours.live((), "")}
    missing = sorted(name for name in wanted - there if name[0] != SYSTEM_SCOPE)
    if not missing:
        return
    management = CollectionsManagement(write.source, write.access)
    scopes = set(ours.scopes.values())
    for scope, collection in missing:
        if scope not in scopes:
            management.create_scope(scope)
            scopes.add(scope)
        management.create_collection(scope, collection)
