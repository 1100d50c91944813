"""A change log as plain Parquet files, which Spark's own streaming sink writes.

It needs a directory: Spark keeps the list of its files and its checkpoint there.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from ...errors import ConfigError
from .places import TablePlace
from .progress import ProgressBook
from .settings import PipelineSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ParquetLog"]

#: Seconds between two looks whether it is to stop.
_LOOK: Final = 0.2


class ParquetLog:
    """The work of such a change log."""

    def __init__(
        self, spark: SparkSession, settings: PipelineSettings, place: TablePlace, book: ProgressBook
    ) -> None:
        if not place.storage.is_local:
            raise ConfigError(
                f"format: {place.storage.url} is no directory, which format parquet needs; "
                "use format delta"
            )
        rows = spark.readStream.format("dcp").options(**settings.source).load()
        checkpoint = settings.checkpoint or place.checkpoint
        writer: Any = rows.writeStream.option("checkpointLocation", str(checkpoint))
        if settings.once:
            writer = writer.trigger(availableNow=True)
        elif settings.trigger:
            writer = writer.trigger(processingTime=f"{round(settings.trigger * 1000)} milliseconds")
        self._writer = writer.format("parquet").option("path", str(place.root))

    def run(self, stopped: threading.Event) -> None:
        query = self._writer.start()
        try:
            while not query.awaitTermination(_LOOK):
                if stopped.is_set():
                    return
        finally:
            query.stop()
