"""``upriver mirror``: a table that stays equal to the documents of a bucket."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..pipeline_command import pipeline_command
from ..setting_options import mirror_settings

if TYPE_CHECKING:
    from ...tables.pipeline import Pipeline


@pipeline_command(mirror_settings)
def mirror() -> Callable[..., Pipeline]:
    """Keep a Delta table equal to the documents of a bucket.

    SOURCE is couchbase://HOST[:PORT]/BUCKET, or couchbases:// for TLS. TABLE is a directory or an
    address such as s3://bucket/path; readers of Delta tables can read it at any time. Deleted and
    expired documents leave it, and what a failover has undone is undone. It goes on where it was
    when it is started again, from nothing but the table, on this machine or another.

    \b
    Examples:
      upriver mirror couchbase://localhost/default ./documents --once
      upriver mirror couchbase://localhost/default ./documents
      upriver mirror couchbase://localhost/default s3://lake/documents
      upriver mirror couchbase://localhost/shop ./people --schema 'name string, age int'
    """
    from ...spark.pipelines import mirror as start

    return start
