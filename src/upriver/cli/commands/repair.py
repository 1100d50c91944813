"""``upriver repair``: brings the documents of a mirror that differ from its bucket."""

from __future__ import annotations

import json
from typing import Any

import click

from ..setting_options import (
    config_option,
    settings_given,
    source_settings,
    spark_options,
)
from ..spark_process import spark_when_needed
from .verify import difference_lines


@click.command()
@click.argument("source")
@click.argument("table")
@click.option(
    "--most",
    type=click.IntRange(0, 10_000_000),
    default=100_000,
    show_default=True,
    help="If more documents differ, change nothing.",
)
@click.option(
    "--show", type=click.IntRange(0, 100_000), default=10, help="Differences to print at most."
)
@click.option("--json", "as_json", is_flag=True, help="The result as a JSON object.")
@source_settings
@spark_options
@config_option
def repair(source: str, table: str, most: int, show: int, as_json: bool, **options: Any) -> None:
    """Bring the documents of a mirror that differ from its bucket, and no others.

    Compares as `upriver verify` does, and makes one commit with the rows that are missing, differ
    or are too many. Documents that have changed since the mirror's positions are left to its
    pipeline, which must not run meanwhile; the bucket may be written to. Afterwards the pipeline
    takes the table up again, even if another program had changed it.

    \b
    Examples:
      upriver repair couchbase://localhost/default ./documents
      upriver repair couchbase://localhost/default ./documents --most 10 --json
    """
    from ...spark import repair as bring

    given = settings_given(options)
    with spark_when_needed("upriver repair", options) as spark:
        done = bring(spark, source=source, table=table, most=most, show=show, **given)
    if as_json:
        result = {
            "written": done.written,
            "removed": done.removed,
            "left": done.left,
            "equal": done.found.equal,
            "changed_later": done.found.changed_later,
        }
        click.echo(json.dumps(result))
        return
    for line in difference_lines(done.found):
        click.echo(line)
    left = f"; {done.left} changed meanwhile and are left to the pipeline" if done.left else ""
    click.echo(
        f"repaired: {done.written} documents written, {done.removed} removed; {done.found.equal} "
        f"were equal, {done.found.changed_later} changed later{left}"
    )
