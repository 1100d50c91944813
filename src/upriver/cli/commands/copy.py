"""``upriver copy``: a bucket into another bucket, through failovers of the source."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..setting_options import (
    config_option,
    json_option,
    name_value_option,
    settings_given,
    source_argument,
    source_settings,
    spark_options,
)
from ..spark_process import spark_session, stop_requests
from ..wait_messages import waiting_for

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


@click.command()
@source_argument
@click.argument("target")
@click.option(
    "--checkpoint",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The directory with the positions: the same at every start.",
)
@click.option("--once", is_flag=True, help="Copy what is there now, then stop.")
@click.option(
    "--anew",
    is_flag=True,
    help="Write all documents first, and remove others: for a TARGET that has lost documents, "
    "such as in a failover.",
)
@name_value_option("--target-option", "target_pairs", "Any option of the format dcp for TARGET.")
@json_option()
@source_settings
@spark_options
@config_option
def copy(
    source: str,
    target: str,
    checkpoint: Path,
    once: bool,
    anew: bool,
    target_pairs: dict[str, str],
    as_json: bool,
    **options: Any,
) -> None:
    """Copy the documents of a bucket into another one, and go on with its changes.

    SOURCE and TARGET are couchbase://HOST[:PORT]/BUCKET, or couchbases:// for TLS. Documents keep
    their CAS, revision, flags and expiry; extended attributes are not copied. Collections are
    created in TARGET as in SOURCE, and those that SOURCE drops are dropped there. If a failover of
    SOURCE loses changes, the documents of its vbuckets are read again, and TARGET gets the versions
    that SOURCE has, and loses documents that SOURCE does not have: use a TARGET that nobody else
    writes to. TARGET may be the SOURCE of another copy. What a failover of TARGET loses is not
    noticed: start with --anew then.

    User and password of TARGET come from the environment, or --target-option user=NAME and
    --target-option passwordFile=FILE.

    \b
    Examples:
      upriver copy couchbase://a/shop couchbase://b/shop --checkpoint ./positions --once
      upriver copy couchbase://a/shop couchbase://b/shop --checkpoint ./positions
    """
    from ...spark.bucket_copy import copy as start
    from ...spark.runtime.internals import as_ours

    given = {name: str(value) for name, value in settings_given(options).items()}
    began, status = time.monotonic(), 0
    with spark_session("upriver copy", options) as spark:
        with waiting_for(f"{source} to answer, and for Spark to begin"):
            query = start(
                spark,
                source,
                target,
                checkpoint=checkpoint.absolute(),
                once=once,
                anew=anew,
                source_options=given,
                target_options=target_pairs,
            )
        counted = _Count(query)
        try:
            with stop_requests() as stop:
                while not stop and not query.awaitTermination(1):
                    counted.look()
            if stop:
                query.stop()
                status = stop.status
        except Exception as problem:
            raise as_ours(problem) from None
        counted.look()
    seconds = time.monotonic() - began
    if as_json:
        click.echo(json.dumps({"changes": counted.rows, "seconds": round(seconds, 3)}))
    else:
        click.echo(f"copied: {counted.rows} changes in {seconds:.1f} s")
    if status:
        raise SystemExit(status)


class _Count:
    """Counts the rows of a query from its progress, of which Spark keeps only the newest part."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._seen = -1
        self.rows = 0

    def look(self) -> None:
        for progress in self._query.recentProgress:
            if progress["batchId"] > self._seen and progress["numInputRows"]:
                self._seen = progress["batchId"]
                self.rows += progress["numInputRows"]
