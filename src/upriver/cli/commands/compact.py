"""``upriver compact``: fewer and larger files for the tables of a pipeline."""

from __future__ import annotations

import json

import click

from ..._extras import extra
from ...settings.all_settings import named
from ..common_options import interruptible
from ..setting_options import compact_settings, json_option


@click.command()
@click.argument("table")
@compact_settings
@json_option()
def compact(table: str, as_json: bool, **options: str | None) -> None:
    """Compact the Delta tables of a change log or mirror, and remove files that nobody needs.

    TABLE is a directory or an address such as s3://bucket/path. No row changes. The pipeline may
    run meanwhile, and compacts by itself every so many batches; then it alone decides which older
    versions stay.

    \b
    Examples:
      upriver compact ./documents
      upriver compact ./documents --keep-versions 24h
    """
    with extra("spark"):
        from ...tables.upkeep import manual_maintenance
    from ...tables.places import TablePlace

    (setting,) = named("keepVersions")
    seconds = setting.parse(options[setting.name] or setting.default or "")
    with interruptible(lambda: "files of some tables may be compacted; run it again"):
        done = manual_maintenance.compact(TablePlace.parse(table), seconds=seconds)
    if as_json:
        compacted = [
            {
                "table": one.path,
                "files_before": one.files_before,
                "files_after": one.files_after,
                "removed": one.vacuumed,
            }
            for one in done
        ]
        click.echo(json.dumps({"tables": compacted}))
        return
    for one in done:
        click.echo(
            f"{one.path}: {one.files_before} files are {one.files_after} now, "
            f"{one.vacuumed} old ones removed"
        )
