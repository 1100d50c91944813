"""``upriver history``: every version of the documents of a bucket, in a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..pipeline_command import pipeline_command
from ..setting_options import history_settings

if TYPE_CHECKING:
    from ...tables.pipeline import Pipeline


@pipeline_command(history_settings)
def history() -> Callable[..., Pipeline]:
    """Keep every version of a bucket's documents, with when it began and ended.

    SOURCE is couchbase://HOST[:PORT]/BUCKET, or couchbases:// for TLS. TABLE is a directory or an
    address such as s3://bucket/path. A version is current until a change ends it; what a failover
    has undone is undone. The table has the versions that the server sends: of what was written
    before the start, or while no pipeline ran, that is the newest one of each document. It goes on
    where it was when it is started again.

    \b
    Examples:
      upriver history couchbase://localhost/default ./versions --once
      upriver history couchbase://localhost/shop ./versions --schema 'name string, age int'
    """
    from ...spark.pipelines import history as start

    return start
