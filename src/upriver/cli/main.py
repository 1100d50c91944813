"""``upriver``: the command group, and how errors reach a person."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Final

import click
from click.shell_completion import CompletionItem

from ..errors import UpriverError

__all__ = ["cli", "main"]

#: What there is, by what a person wants to do, each in words that fit a line of 80. A command has
#: a module of its name, which is not needed to list it or to complete its name.
_SECTIONS: Final = {
    "Read changes": {
        "tail": "Print the changes of a bucket as they come.",
        "check": "Say whether a reader would be rolled back, and why.",
        "checkpoint": "Look at the checkpoint file of a reader, compare it, move it.",
        "decode": "Explain packets of any draft, and what is wrong with them.",
    },
    "Tables in Spark": {
        "mirror": "Keep a Delta table equal to the documents of a bucket.",
        "changelog": "Append every change of a bucket to a table, each exactly once.",
        "verify": "Compare a mirror with its bucket, document by document.",
        "compact": "Compact the Delta tables of a change log or mirror.",
        "report": "Write a page with throughput, lag and batch times.",
    },
    "Serve a bucket": {
        "serve": "Serve a bucket to key-value and DCP clients, on one port.",
        "load": "Write documents into a bucket, generated or from a file.",
        "users": "Manage the users file of `upriver serve --users FILE`.",
        "cluster": "Run several nodes on this machine: replicas, rebalance, failover.",
        "dashboard": "Show how pipelines and a server are doing, on a page.",
    },
}
_SUMMARIES: Final = {
    name: summary for section in _SECTIONS.values() for name, summary in section.items()
}


class _Sections(click.Group):
    """Lists its commands under headings, and loads the one that is run and what that needs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_SUMMARIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _SUMMARIES:
            return None
        command: click.Command = getattr(import_module(f".{cmd_name}", __package__), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, summaries in _SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl(list(summaries.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        commands = [
            CompletionItem(name, help=summary)
            for name, summary in _SUMMARIES.items()
            if name.startswith(incomplete)
        ]
        # a group would load every command here, a command knows the options alone
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]


@click.group(cls=_Sections, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="upriver", prog_name="upriver")
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
