"""Copies a bucket into another one with a streaming query, through failovers of the source.

The query is ``readStream.format("dcp")`` to ``writeStream.format("dcp")`` with
``onRollback=restate`` (see `restate`), which users can write themselves. Whatever the source has
replaces what the target has, even if that is newer: the source may itself be a copy whose source
has gone back. Collections are created and dropped in the target as in the source (see
`collection_sync`). Documents of the scope ``_system`` belong to the database and stay out.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..batches.options import ReadOptions, WriteOptions
from ..batches.stream_driver import Driver
from ..consumer.topology.collection_names import SYSTEM_SCOPE
from ..errors import ConfigError
from ..settings.all_settings import READ
from ..settings.setting import Use
from .collection_sync import CollectionSync
from .session import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_CONNECTION: Final = "connectionString"
_RESTATE: Final = {"onRollback": "restate"}
#: Options that a batch read does not take.
_OF_STREAMS: Final = frozenset(
    {"onrollback", *(one.name.lower() for one in READ if one.use is Use.STREAM)}
)
#: Rows of a collection that was dropped may have its number instead of a name.
_COPIED: Final = (
    f"scope IS NULL AND collection IS NULL OR scope <> '{SYSTEM_SCOPE}' "
    "AND NOT scope RLIKE '^0x[0-9a-f]+$'"
)
_TARGET: Final = {"onConflict": "source", "createCollections": "true"}


def copy(
    spark: SparkSession,
    source: str,
    target: str,
    *,
    checkpoint: str | os.PathLike[str],
    once: bool = False,
    anew: bool = False,
    source_options: Mapping[str, str] | None = None,
    target_options: Mapping[str, str] | None = None,
) -> StreamingQuery:
    """Starts to copy a bucket into another one; with ``once`` it ends when all is copied.

    ``checkpoint`` is the directory with the positions, as Spark's checkpointLocation: the same at
    every start. The options are those of the format ``dcp`` for reading and for writing. With
    ``anew`` the whole source is written first, and documents that it has not are removed: for a
    target that has lost what was written into it.
    """
    register(spark)
    reading = {**_RESTATE, **(source_options or {}), _CONNECTION: source}
    writing = {**_TARGET, **(target_options or {}), _CONNECTION: target}
    read, write = ReadOptions.parse(reading).for_stream(), WriteOptions.parse(writing)
    if (read.source.hosts, read.source.bucket) == (write.source.hosts, write.source.bucket):
        raise ConfigError(f"{target} is the source itself; a bucket is copied into another one")

    with closing(Driver(read)) as driver:
        read = driver.reading(read)

    def copy_batch(**options: str) -> None:
        given = reading | {_CONNECTION: followed.source.with_all_nodes}
        batch = {name: text for name, text in given.items() if name.lower() not in _OF_STREAMS}
        found = spark.read.format("dcp").options(**batch | options).load().where(_COPIED)
        chosen = writing | ({} if "onRollback" in options else {"onConflict": "newest"})
        chosen |= {_CONNECTION: followed.target.with_all_nodes}
        found.write.format("dcp").options(**chosen).mode("append").save()

    def copy_again(collection: str) -> None:
        """Copies a collection as it is now; what is newer in the target stays."""
        copy_batch(collections=collection, scope="")

    followed = CollectionSync(read, write, _names_beside(checkpoint), copy_again)
    followed.look()
    # tasks find either cluster if its named host dies
    reading[_CONNECTION] = followed.source.with_all_nodes
    writing[_CONNECTION] = followed.target.with_all_nodes
    if anew:
        copy_batch(**_RESTATE)
    rows = spark.readStream.format("dcp").options(**reading).load()
    writer = rows.where(_COPIED).writeStream.format("dcp").options(**writing).outputMode("append")
    trigger: dict[str, Any] = {"availableNow": True} if once else {"processingTime": "0 seconds"}
    query = writer.option("checkpointLocation", os.fspath(checkpoint)).trigger(**trigger).start()
    followed.follow(lambda: query.isActive)
    return query


def _names_beside(checkpoint: str | os.PathLike[str]) -> Path | None:
    """The file with the names of copied collections, in a local checkpoint."""
    text = os.fspath(checkpoint).removeprefix("file://")
    return None if "://" in text else Path(text) / "upriver-collections.json"
