"""``upriver tail``: the changes of a bucket on the standard output, as they come."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import click

from ..consumer.access import Access
from ..consumer.checkpoint_files import FileCheckpoint
from ..consumer.client import Consumer
from ..consumer.settings import (
    DIALECTS,
    ConsumerSettings,
    DialectName,
    RollbackPolicy,
    Start,
)
from ..consumer.source import Source
from ..errors import ConfigError, RemoteProtocolError
from .access_options import access_options, collection_options
from .tail_run import Reader, Run, Saver, stopping
from .tail_status import StatusLine
from .tail_text import JsonLines, Lines, PlainLines
from .vbucket_list import vbuckets_option

__all__ = ["tail"]


@click.command()
@click.argument("source")
@click.option("--json", "as_json", is_flag=True, help="A JSON object on each line.")
@click.option(
    "--from",
    "start",
    metavar="beginning|now|FILE",
    default="beginning",
    show_default=True,
    help="Everything there is, only what comes from now on, or what comes after a checkpoint.",
)
@click.option(
    "--to",
    "end",
    type=click.Choice(["now", "never"]),
    default="never",
    show_default=True,
    help="Stop at what is there now, or go on until somebody stops it.",
)
@click.option(
    "--vbuckets", metavar="LIST", callback=vbuckets_option, help="Only these, such as 0-15,17."
)
@collection_options
@click.option("--keys-only", is_flag=True, help="Ask for no values.")
@click.option("--xattrs", is_flag=True, help="Ask for extended attributes; --json shows them.")
@click.option("--limit", type=click.IntRange(1), help="Stop after so many changes.")
@click.option(
    "--checkpoint",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Go on where this file says, if it exists, and keep it up to date.",
)
@click.option(
    "--on-rollback",
    type=click.Choice(["rewind", "fail", "ignore"]),
    default="rewind",
    show_default=True,
    help="After a failover: go back and show it, stop with an error, or go back silently.",
)
@click.option(
    "--dialect", type=click.Choice(["auto", *DIALECTS]), default="auto", help="The draft to speak."
)
@access_options
@click.pass_context
def tail(
    context: click.Context,
    source: str,
    as_json: bool,
    start: str,
    end: str,
    vbuckets: tuple[int, ...] | None,
    collections: tuple[str, ...],
    scope: str,
    keys_only: bool,
    xattrs: bool,
    limit: int | None,
    file: Path | None,
    on_rollback: str,
    dialect: DialectName,
    access: Access,
) -> None:
    """Print the changes of a bucket as they come: everything there is, and then what is written.

    SOURCE is couchbase://HOST[:PORT]/BUCKET, or couchbases:// for TLS. A line has the time, what
    happened, vbucket:seqno, the size, the key, and the beginning of the value. With --json each
    line is an object: "type" is mutation, deletion or expiration; "key" and "value" are what
    "key_format" and "value_format" say (json, text, base64); rollbacks and ends are objects of
    their own type.

    With --checkpoint the file holds what was written so far, saved every second and at the end;
    --from then only counts for the first time. After a crash some changes may come again, and
    none is left out.

    \b
    Examples:
      upriver tail couchbase://localhost/default
      upriver tail couchbase://localhost/default --from now --json | jq .key
      upriver tail couchbase://localhost/default --json --checkpoint shop.checkpoint >> shop.ndjson
      upriver tail couchbase://localhost/default --collections shop.orders --to now

    Ends with 0 at the end, at the limit, and when nobody reads its output any more; with 130
    after SIGINT and 143 after SIGTERM; and with 1 after an error.
    """
    settings = ConsumerSettings(
        start=_start(start),
        end="now" if end == "now" else "never",
        vbuckets=None if vbuckets is None else frozenset(vbuckets),
        collections=collections,
        scope=scope,
        values=not keys_only,
        xattrs=xattrs,
        dialect=dialect,
        rollback=RollbackPolicy(on_rollback),
    )
    live = sys.stderr.isatty()
    # warnings of the consumer, over the line of the status if there is one
    logging.basicConfig(format="\r\x1b[K%(message)s" if live else "%(message)s", stream=sys.stderr)
    with stopping() as stop:
        try:
            with ExitStack() as stack:
                saver = None
                if file is not None:
                    saver = Saver(stack.enter_context(FileCheckpoint(file)))
                    settings = replace(settings, start=saver.saved or settings.start)
                consumer = Reader(Source.parse(source), access=access, settings=settings)
                stack.enter_context(consumer)
                name_of = _names(consumer)
                lines: Lines = PlainLines(name_of, width=_width())
                if as_json:
                    lines = JsonLines(name_of, values=not keys_only, xattrs=xattrs)
                status = stack.enter_context(StatusLine(consumer, live=live))
                stop.gentle = True
                context.exit(Run(consumer, lines, status, saver, stop, limit).run())
        except KeyboardInterrupt:
            context.exit(stop.status)


def _start(text: str) -> Start:
    if text == "beginning":
        return "beginning"
    if text == "now":
        return "now"
    found = FileCheckpoint(text).load()
    if found is None:
        raise ConfigError(f"--from is beginning, now, or a checkpoint; there is no file {text!r}")
    return found


def _names(consumer: Consumer) -> Callable[[int], str]:
    def name_of(collection: int) -> str:
        try:
            return ".".join(consumer.collections.names(collection))
        except RemoteProtocolError:
            return f"{collection:#x}"

    return name_of


def _width() -> int | None:
    """That of the screen, where there is one and it says so."""
    if not sys.stdout.isatty():
        return None
    return os.get_terminal_size(sys.stdout.fileno()).columns or None
