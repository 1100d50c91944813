"""How the driver and the tasks reach a bucket: what the options of a read mean for a consumer."""

from __future__ import annotations

from ..consumer.consumer_settings import ConsumerSettings
from ..consumer.topology.seqno_survey import Survey
from ..wire.dialects.by_name import DIALECTS
from .options import ReadOptions


def reading_settings(options: ReadOptions, **chosen: object) -> ConsumerSettings:
    """The settings of a consumer that reads for Spark."""
    mute, dialect = options.mute, options.dialect
    if mute is not None:
        dialect = mute.dialect
        chosen = {"vbuckets": mute.vbuckets, "_one_node": True, **chosen}
    draft = DIALECTS.get(dialect)
    return ConsumerSettings(
        dialect=dialect,
        collections=options.collections,
        scope=options.scope,
        # the oldest drafts always send values; rows leave them out
        values=options.rows.values or (draft is not None and not draft.negotiates),
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


def asking_survey(
    options: ReadOptions, patience: float = 0.0, *, partial_after: float | None = None
) -> Survey:
    """A survey that asks questions about the collections that are read; see `Survey`."""
    return Survey(
        options.source,
        options.access,
        timeout=options.request_timeout,
        patience=patience,
        partial_after=partial_after,
        collections=options.collections,
        scope=options.scope,
    )
