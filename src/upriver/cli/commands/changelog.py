"""``upriver changelog``: every change of a bucket, once, in a table."""

from __future__ import annotations

from typing import Any

import click

from ..pipeline_view import run_pipeline
from ..setting_options import (
    changelog_settings,
    config_option,
    json_option,
    otel_option,
    source_argument,
    source_settings,
    spark_options,
)


@click.command()
@source_argument
@click.argument("table")
@changelog_settings
@json_option()
@otel_option
@source_settings
@spark_options
@config_option
def changelog(source: str, table: str, as_json: bool, **options: Any) -> None:
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
    from ...spark.tables.pipelines import changelog as start

    run_pipeline(start, source, table, options, as_json=as_json)
