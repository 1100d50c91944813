"""``upriver changelog``: every change of a bucket, once, in a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..pipeline_command import pipeline_command
from ..setting_options import changelog_settings

if TYPE_CHECKING:
    from ...tables.pipeline import Pipeline


@pipeline_command(changelog_settings)
def changelog() -> Callable[..., Pipeline]:
    """Append every change of a bucket to a table, each exactly once.

    SOURCE is couchbase://HOST[:PORT]/BUCKET, or couchbases:// for TLS. TABLE is a directory or an
    address such as s3://bucket/path. After a failover that lost changes there is a rollback row;
    upriver.spark.fold makes current documents of the rows. It goes on where it was when it is
    started again.

    \b
    Examples:
      upriver changelog couchbase://localhost/default ./changes --once
      upriver changelog couchbase://localhost/default ./changes --trigger 10s
    """
    from ...spark.pipelines import changelog as start

    return start
