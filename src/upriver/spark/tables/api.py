"""What users call: keep a change log or a mirror of a bucket."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from .pipeline import Pipeline, start_pipeline
from .places import TablePlace
from .settings import PipelineSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["changelog", "mirror"]


def changelog(
    spark: SparkSession, *, source: str, table: str | os.PathLike[str], **options: Any
) -> Pipeline:
    """Starts to append every change of a bucket to a table, each exactly once.

    ``options`` are those of the format ``dcp`` and of change logs, as Spark or as Python spells
    them: ``maxOffsetsPerTrigger=1000`` or ``max_offsets_per_trigger=1000``.
    """
    settings = PipelineSettings.parse("changelog", source, options)
    return start_pipeline(spark, settings, TablePlace.parse(table))


def mirror(
    spark: SparkSession, *, source: str, table: str | os.PathLike[str], **options: Any
) -> Pipeline:
    """Starts to keep a table equal to the documents of a bucket, through restarts and failovers.

    ``options`` are those of the format ``dcp`` and of mirrors, as for `changelog`.
    """
    settings = PipelineSettings.parse("mirror", source, options)
    return start_pipeline(spark, settings, TablePlace.parse(table))
