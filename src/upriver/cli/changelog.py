"""``upriver changelog``: every change of a bucket, once, in a table."""

from __future__ import annotations

from typing import Any

import click

from .pipeline_options import (
    config_option,
    pipeline_given,
    pipeline_options,
    source_given,
    source_options,
    spark_options,
    spark_session,
)
from .pipeline_view import watch

__all__ = ["changelog"]


@click.command()
@click.argument("source")
@click.argument("table")
@pipeline_options
@click.option(
    "--format",
    "table_format",
    type=click.Choice(["delta", "parquet"]),
    default="delta",
    show_default=True,
    help="How the table is kept.",
)
@source_options
@spark_options
@config_option
def changelog(source: str, table: str, table_format: str, as_json: bool, **options: Any) -> None:
    """Append every change of a bucket to a table, each exactly once.

    SOURCE is couchbase://HOST[:PORT]/BUCKET, or couchbases:// for TLS. TABLE is a directory. After
    a failover that lost changes there is a rollback row; upriver.spark.fold makes current
    documents of the rows. It goes on where it was when it is started again.

    \b
    Examples:
      upriver changelog couchbase://localhost/default ./changes --once
      upriver changelog couchbase://localhost/default ./changes --trigger 10s
      upriver changelog couchbase://localhost/default ./changes --format parquet --once
    """
    from ..spark.tables.api import changelog as start

    given = {**source_given(options), **pipeline_given(options), "format": table_format}
    with spark_session("upriver changelog", options) as spark:
        watch(start(spark, source=source, table=table, **given), as_json=as_json)
