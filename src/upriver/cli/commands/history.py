"""``upriver history``: every version of the documents of a bucket, in a table."""

from __future__ import annotations

from typing import Any

import click

from ..pipeline_view import run_pipeline
from ..setting_options import (
    config_option,
    history_settings,
    json_option,
    otel_option,
    source_argument,
    source_settings,
    spark_options,
)


@click.command()
@source_argument
@click.argument("table")
@history_settings
@json_option()
@otel_option
@source_settings
@spark_options
@config_option
def history(source: str, table: str, as_json: bool, **options: Any) -> None:
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
    from ...spark.tables.pipelines import history as start

    run_pipeline(start, source, table, options, as_json=as_json)
