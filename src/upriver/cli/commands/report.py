"""``upriver report``: one page about how a pipeline went."""

from __future__ import annotations

from pathlib import Path

import click

from ...errors import ConfigError
from ..common_options import counted


@click.command()
@click.argument("table")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    default=Path("upriver-report.html"),
    show_default=True,
    help="The page; - is stdout.",
)
def report(table: str, output: Path) -> None:
    """Write a page with throughput, lag and batch times of the last runs, rollbacks marked.

    It is one HTML file that needs nothing from anywhere.

    \b
    Examples:
      upriver report ./documents
      upriver report ./documents -o - | less
    """
    from ...tables.heartbeat import read_heartbeat
    from ...tables.pipeline_report import page
    from ...tables.places import TablePlace
    from ...tables.progress_log import read_progress

    place = TablePlace.parse(table)
    records = read_progress(place.storage)
    if not records:
        raise ConfigError(f"no pipeline has recorded a batch at {table}")
    text = page(str(place), records, read_heartbeat(place.storage))
    if str(output) == "-":
        click.echo(text)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as problem:
        raise ConfigError(f"{output} cannot be written: {problem}") from None
    click.echo(f"{output}: {counted(len(records), 'batch', 'batches')}")
