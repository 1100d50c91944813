"""``upriver mirror``: a table that stays equal to the documents of a bucket."""

from __future__ import annotations

from typing import Any

import click

from ..pipeline_view import run_pipeline
from ..setting_options import (
    config_option,
    json_option,
    mirror_settings,
    otel_option,
    source_argument,
    source_settings,
    spark_options,
)


@click.command()
@source_argument
@click.argument("table")
@mirror_settings
@json_option()
@otel_option
@source_settings
@spark_options
@config_option
def mirror(source: str, table: str, as_json: bool, **options: Any) -> None:
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
    from ...spark.tables.pipelines import mirror as start

    run_pipeline(start, source, table, options, as_json=as_json)
