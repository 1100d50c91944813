"""``upriver``: the command group, and how errors reach a person."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Final

import click

from .. import __version__
from ..errors import UpriverError

__all__ = ["cli", "main"]

#: What there is, by what a person wants to do. A command has a module of its name.
_SECTIONS: Final = {
    "Read changes": ("tail", "check", "checkpoint", "decode"),
    "Tables in Spark": ("mirror", "changelog", "verify", "compact", "report"),
    "Serve a bucket": ("serve", "load", "users", "cluster", "dashboard"),
}


class _Sections(click.Group):
    """Lists its commands under headings, and loads the one that is run and what that needs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for names in _SECTIONS.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = getattr(import_module(f".{cmd_name}", __package__), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        limit = formatter.width - max(map(len, self.list_commands(ctx))) - 6
        for heading, names in _SECTIONS.items():
            with formatter.section(heading):
                commands = [self.get_command(ctx, name) for name in names]
                formatter.write_dl(
                    [(one.name or "", one.get_short_help_str(limit)) for one in commands if one]
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


def main() -> None:
    """Runs the command line; an error of ours is one line, a traceback only with --debug."""
    try:
        cli()
    except UpriverError as error:
        if "--debug" in sys.argv[1:]:
            raise
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
