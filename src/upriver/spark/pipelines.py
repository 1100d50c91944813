"""The functions that start a pipeline: `changelog`, `mirror` and `history`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Unpack

from .._extras import extra
from ..settings.option_types import ChangelogOptions, HistoryOptions, MirrorOptions
from ..tables.pipeline_settings import PipelineSettings

with extra("spark"):
    from ..tables.pipeline import Pipeline
    from ..tables.pipeline_start import place_of, start_pipeline
    from .executors import StartSpark, executors_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def changelog(
    spark: SparkSession | StartSpark,
    *,
    source: str,
    table: str | os.PathLike[str],
    **options: Unpack[ChangelogOptions],
) -> Pipeline:
    """Starts to append every change of a bucket to a table, each exactly once.

    ``spark`` is a session, or a function that starts one: with ``once`` it is called only if there
    are more changes than this process appends itself.
    ``options`` are those of the format ``dcp`` and of change logs, as Spark or as Python spells
    them: ``maxOffsetsPerTrigger=1000`` or ``max_offsets_per_trigger=1000``.
    """
    settings = PipelineSettings.parse("changelog", source, options)
    return start_pipeline(executors_of(spark), settings, place_of(table, settings))


def history(
    spark: SparkSession | StartSpark,
    *,
    source: str,
    table: str | os.PathLike[str],
    **options: Unpack[HistoryOptions],
) -> Pipeline:
    """Starts to keep every version of the documents of a bucket, with when it began and ended.

    ``spark`` and ``options`` are as for `changelog`; options of histories are taken too.
    """
    settings = PipelineSettings.parse("history", source, options)
    return start_pipeline(executors_of(spark), settings, place_of(table, settings))


def mirror(
    spark: SparkSession | StartSpark,
    *,
    source: str,
    table: str | os.PathLike[str],
    **options: Unpack[MirrorOptions],
) -> Pipeline:
    """Starts to keep a table equal to the documents of a bucket, through restarts and failovers.

    ``spark`` and ``options`` are as for `changelog`; options of mirrors are taken too.
    """
    settings = PipelineSettings.parse("mirror", source, options)
    return start_pipeline(executors_of(spark), settings, place_of(table, settings))
