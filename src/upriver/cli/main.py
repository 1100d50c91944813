"""``upriver``: the group of all commands, and how errors are printed."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Final

from .._extras import extra
from ..errors import UpriverError

with extra("cli"):
    import click
    from click.shell_completion import CompletionItem

    from .common_options import (
        COMMON_OPTIONS,
        INTERRUPTED,
        interrupted_line,
        with_common_options,
    )
    from .pending_signals import handle_pending_signals
    from .suggestions import SuggestingGroup

#: All commands by purpose, with a line of help that fits 80 columns. A command has a module of its
#: name unless `_PLACES` names another; no module is imported to list or complete its name.
_SECTIONS: Final = {
    "Read changes": {
        "tail": "Print the changes of a bucket as they come.",
        "check": "Say whether a reader would be rolled back, and why.",
        "checkpoint": "Look at the checkpoint file of a reader, compare it, move it.",
        "validate": "Say whether the rules of a stream held, from what tail printed.",
        "decode": "Explain packets of any draft, and what is wrong with them.",
    },
    "Tables in Spark": {
        "mirror": "Keep a Delta table equal to the documents of a bucket.",
        "changelog": "Append every change of a bucket to a table, each exactly once.",
        "history": "Keep every version of documents, with when it began and ended.",
        "copy": "Copy a bucket into another one, and go on with its changes.",
        "verify": "Compare a mirror or history with its bucket, by document.",
        "repair": "Bring the documents of a mirror that differ from its bucket.",
        "dead-letters": "List values that did not fit a schema, and try them again.",
        "compact": "Compact the Delta tables of a pipeline.",
        "report": "Write a page with throughput, lag and batch times.",
    },
    "Look and try": {
        "get": "Print a document.",
        "set": "Write a document.",
        "delete": "Delete a document.",
        "touch": "Give a document another time to expire at.",
        "collections": "List, create and drop scopes and collections.",
        "nodes": "List the nodes of a cluster and their vbuckets.",
    },
    "Serve a bucket": {
        "serve": "Serve a bucket to key-value and DCP clients, on one port.",
        "load": "Write documents into a bucket, generated or from a file.",
        "users": "Manage the users file of `upriver serve --users FILE`.",
        "cluster": "Run several nodes on this machine: replicas, rebalance, failover.",
        "dashboard": "Show how pipelines and a server are doing, on a page.",
    },
}
#: Where a command is, if not in a module and under a name like its own.
_PLACES: Final = {
    "dead-letters": ("dead_letters", "dead_letters"),
    "delete": ("key_value", "delete"),
    "get": ("key_value", "get"),
    "set": ("key_value", "set_document"),
    "touch": ("key_value", "touch"),
}
_SUMMARIES: Final = {
    name: summary for section in _SECTIONS.values() for name, summary in section.items()
}


class _Sections(SuggestingGroup):
    """Lists its commands under headings, and loads the one that is run and what that needs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_SUMMARIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _SUMMARIES:
            return None
        place, name = _PLACES.get(cmd_name, (cmd_name, cmd_name))
        with extra("cli"):
            module = import_module(f".commands.{place}", __package__)
        return with_common_options(getattr(module, name))

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo(interrupted_line(), err=True)
            ctx.exit(INTERRUPTED)

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
        # click's group would import every command here; its command formats only the options
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]


@click.group(cls=_Sections, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="upriver", prog_name="upriver")
def cli() -> None:
    """The change stream of a Couchbase-style database (UPR / DCP) in Python and Spark.

    \b
    A first look, in two terminals:
      upriver serve --data ./bucket
      upriver load couchbase://127.0.0.1/default --docs 1000
      upriver tail couchbase://127.0.0.1/default
    Completion for bash: eval "$(_UPRIVER_COMPLETE=bash_source upriver)"
    """


cli.params += COMMON_OPTIONS


def main() -> None:
    """Runs the command line; an Upriver error is printed as one line, with --debug as traceback."""
    try:
        handle_pending_signals()
        cli()
    except KeyboardInterrupt:  # before the command was loaded
        click.echo("interrupted: nothing was begun", err=True)
        sys.exit(INTERRUPTED)
    except UpriverError as error:
        if "--debug" in sys.argv[1:]:
            raise
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
    except OSError as problem:  # a file or directory that the system refuses
        if "--debug" in sys.argv[1:] or problem.strerror is None:
            raise
        where = f"{problem.filename}: " if problem.filename is not None else ""
        click.echo(f"error: {where}{problem.strerror}", err=True)
        sys.exit(1)
