"""``upriver``: the command group, and how errors reach a person."""

from __future__ import annotations

import sys
from typing import Final

import click

from .. import __version__
from ..errors import UpriverError
from .changelog import changelog
from .check import check
from .checkpoint import checkpoint
from .cluster import cluster
from .compact import compact
from .dashboard import dashboard
from .decode import decode
from .load import load
from .mirror import mirror
from .report import report
from .serve import serve
from .tail import tail
from .users import users
from .verify import verify

__all__ = ["cli", "main"]

#: What there is, by what a person wants to do.
_SECTIONS: Final = {
    "Read changes": (tail, check, checkpoint, decode),
    "Tables in Spark": (mirror, changelog, verify, compact, report),
    "Serve a bucket": (serve, load, users, cluster, dashboard),
}


class _Sections(click.Group):
    """A group whose help lists its commands under headings."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max(map(len, self.commands))
        limit = formatter.width - widest - 6
        for heading, commands in _SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl(
                    [(one.name or "", one.get_short_help_str(limit)) for one in commands]
                )


@click.group(cls=_Sections, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="upriver")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def cli(context: click.Context, debug: bool) -> None:
    """The change stream of a Couchbase-style database (UPR / DCP) in Python and Spark.

    \b
    A first look, in two terminals:
      upriver serve --data ./bucket
      upriver load couchbase://127.0.0.1/default --docs 1000
      upriver tail couchbase://127.0.0.1/default
    Completion for bash: eval "$(_UPRIVER_COMPLETE=bash_source upriver)"
    """
    context.obj = {"debug": debug}


for _commands in _SECTIONS.values():
    for _command in _commands:
        cli.add_command(_command)


def main() -> None:
    """Runs the command line; an error of ours is one line, a traceback only with --debug."""
    try:
        cli()
    except UpriverError as error:
        if "--debug" in sys.argv[1:]:
            raise
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
