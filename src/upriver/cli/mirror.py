"""``upriver mirror``: a table that stays equal to the documents of a bucket."""

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

__all__ = ["mirror"]


@click.command()
@click.argument("source")
@click.argument("table")
@pipeline_options
@click.option(
    "--value-format",
    type=click.Choice(["binary", "string"]),
    help="Values as bytes or as text.  [default: binary]",
)
@click.option(
    "--schema",
    metavar="DDL",
    help="Values as columns, as 'name string, age int', or infer; what does not fit is put aside.",
)
@click.option("--keep-deleted", is_flag=True, help="Mark deleted documents; do not drop them.")
@click.option("--table-per-collection", is_flag=True, help="TABLE/SCOPE.COLLECTION for each.")
@click.option("--groups", type=click.IntRange(1, 1024), help="Groups of files.  [default: 64]")
@source_options
@spark_options
@config_option
def mirror(
    source: str,
    table: str,
    as_json: bool,
    value_format: str | None,
    schema: str | None,
    keep_deleted: bool,
    table_per_collection: bool,
    groups: int | None,
    **options: Any,
) -> None:
    """Keep a Delta table equal to the documents of a bucket.

    SOURCE is couchbase://HOST[:PORT]/BUCKET, or couchbases:// for TLS. TABLE is a directory; any
    reader of Delta tables can read it at any time. Deleted and expired documents leave it, and
    what a failover has undone is undone. It goes on where it was when it is started again.

    \b
    Examples:
      upriver mirror couchbase://localhost/default ./documents --once
      upriver mirror couchbase://localhost/default ./documents
      upriver mirror couchbase://localhost/shop ./people --schema 'name string, age int'
    """
    from ..spark.tables.api import mirror as start

    given = {
        **source_given(options),
        **pipeline_given(options),
        "valueFormat": value_format,
        "valueSchema": schema,
        "keepDeleted": keep_deleted,
        "tablePerCollection": table_per_collection,
        "groups": groups,
    }
    with spark_session("upriver mirror", options) as spark:
        watch(start(spark, source=source, table=table, **given), as_json=as_json)
