"""``upriver``: the command group, and how errors reach a person."""

from __future__ import annotations

import sys

import click

from .. import __version__
from ..errors import UpriverError
from .check import check
from .checkpoint import checkpoint
from .cluster import cluster
from .dashboard import dashboard
from .decode import decode
from .load import load
from .serve import serve
from .tail import tail
from .users import users

__all__ = ["cli", "main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="upriver")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def cli(context: click.Context, debug: bool) -> None:
    """The change stream of a Couchbase-style database (UPR / DCP) in Python and Spark."""
    context.obj = {"debug": debug}


cli.add_command(check)
cli.add_command(checkpoint)
cli.add_command(cluster)
cli.add_command(dashboard)
cli.add_command(decode)
cli.add_command(load)
cli.add_command(serve)
cli.add_command(tail)
cli.add_command(users)


def main() -> None:
    """Runs the command line; an error of ours is one line, a traceback only with --debug."""
    try:
        cli()
    except UpriverError as error:
        if "--debug" in sys.argv[1:]:
            raise
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
