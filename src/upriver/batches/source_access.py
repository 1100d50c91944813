"""How the driver and the tasks reach a bucket: what the options of a read mean for a consumer."""

from __future__ import annotations

from ..consumer.consumer_settings import ConsumerSettings
from ..consumer.topology.seqno_survey import Survey
from .options import ReadOptions


def reading_settings(options: ReadOptions, **chosen: object) -> ConsumerSettings:
    """The settings of a consumer that reads for Spark."""
    return ConsumerSettings(
        collections=options.collections,
        scope=options.scope,
        values=options.rows.values,
        xattrs=options.rows.xattrs,
        compression=options.compression,
        decompress=False,  # rows unpack what they are asked to
        buffer=options.buffer,
        connect_timeout=options.connect_timeout,
        answer_timeout=options.request_timeout,
        wait_at_start=options.retry_timeout,
        give_up_after=options.retry_timeout,
        _whole_snapshots=True,  # tasks leave out themselves what is beyond their steps
        **chosen,  # type: ignore[arg-type]
    )


def survey_of(
    options: ReadOptions, patience: float = 0.0, *, partial_after: float | None = None
) -> Survey:
    """A survey of the collections that are read, with the patience of `Survey`."""
    return Survey(
        options.source,
        options.access,
        timeout=options.request_timeout,
        patience=patience,
        partial_after=partial_after,
        collections=options.collections,
        scope=options.scope,
    )
