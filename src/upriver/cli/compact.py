"""``upriver compact``: fewer and larger files for the tables of a pipeline."""

from __future__ import annotations

import json

import click

from ..errors import ConfigError

__all__ = ["compact"]


@click.command()
@click.argument("table")
@click.option(
    "--keep-versions",
    metavar="HOURS",
    type=click.FloatRange(0, 10**6),
    default=168,
    show_default=True,
    help="How long files of older versions stay, for readers who are at them.",
)
@click.option("--json", "as_json", is_flag=True, help="The result as a JSON object.")
def compact(table: str, keep_versions: float, as_json: bool) -> None:
    """Compact the Delta tables of a change log or mirror, and remove files that nobody needs.

    No row changes. The pipeline may run meanwhile, and runs this by itself every so many batches.

    \b
    Examples:
      upriver compact ./documents
      upriver compact ./documents --keep-versions 24
    """
    from ..spark.tables import maintenance
    from ..spark.tables.places import TablePlace

    done = maintenance.compact(TablePlace.parse(table), hours=keep_versions)
    if not done:
        raise ConfigError(f"there is no Delta table at {table}")
    if as_json:
        told = [
            {
                "table": str(one.path),
                "files_before": one.files_before,
                "files_after": one.files_after,
                "removed": one.vacuumed,
            }
            for one in done
        ]
        click.echo(json.dumps({"tables": told}))
        return
    for one in done:
        click.echo(
            f"{one.path}: {one.files_before} files are {one.files_after} now, "
            f"{one.vacuumed} old ones removed"
        )
