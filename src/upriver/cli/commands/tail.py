"""``upriver tail``: prints the changes of a bucket as they arrive."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ...errors import ConfigError, RemoteProtocolError
from ..common_options import is_quiet, log_before
from ..setting_options import (
    access_options,
    collection_options,
    dialect_option,
    json_option,
    source_argument,
    vbuckets_option,
)
from ..wait_messages import waiting_for

if TYPE_CHECKING:
    from ...consumer.changes import Change
    from ...consumer.client import Consumer
    from ...consumer.consumer_settings import Start
    from ...consumer.transport.access import Access
    from ...wire.protocol_enums import DialectName
    from ..tail.change_text import Lines

#: As the rules of groups have it, which are not imported to show help.
_LEASES: Final = (0.5, 3600.0)


@click.command()
@source_argument
@json_option("A JSON object on each line.")
@click.option(
    "--from",
    "start",
    metavar="beginning|now|FILE",
    default="beginning",
    show_default=True,
    help="From the first change, from now on, or from a checkpoint.",
)
@click.option(
    "--to",
    "end",
    type=click.Choice(["now", "never"]),
    default="never",
    show_default=True,
    help="Stop at the current end, or go on until interrupted.",
)
@vbuckets_option()
@collection_options
@click.option("--keys-only", is_flag=True, help="Ask for no values.")
@click.option("--xattrs", is_flag=True, help="Ask for extended attributes; --json shows them.")
@click.option("--key-prefix", metavar="TEXT", help="Print only documents whose key begins so.")
@click.option("--key-regex", metavar="REGEX", help="Print only documents whose key matches.")
@click.option(
    "--where",
    metavar="JMESPATH",
    help="Print only JSON documents of which this is true, such as 'total > `10`'.",
)
@click.option(
    "--since", metavar="TIME", help="Print only changes since then: ISO 8601, or 10m, 2h."
)
@click.option("--last", type=click.IntRange(1, 100_000), help="Begin with the newest so many.")
@click.option("--format", "text", metavar="FORMAT", help=r"Print fields, such as '%p:%o %k\n'.")
@click.option("--limit", type=click.IntRange(1), help="Stop after so many changes.")
@click.option(
    "--checkpoint",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Resume from this file, if it exists, and keep it up to date.",
)
@click.option("--group", metavar="NAME", help="Share the bucket with others of this group.")
@click.option(
    "--members",
    metavar="STORE",
    help="Where the group meets: a directory, s3://..., or a bucket.  [default: SOURCE]",
)
@click.option(
    "--lease",
    type=click.FloatRange(*_LEASES),
    default=10.0,
    show_default=True,
    help="Seconds after which a silent member of the group is replaced.",
)
@click.option(
    "--on-rollback",
    type=click.Choice(["rewind", "fail", "ignore"]),
    default="rewind",
    show_default=True,
    help="After a failover: go back and show it, stop with an error, or go back silently.",
)
@dialect_option
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
    key_prefix: str | None,
    key_regex: str | None,
    where: str | None,
    since: str | None,
    last: int | None,
    text: str | None,
    limit: int | None,
    file: Path | None,
    group: str | None,
    members: str | None,
    lease: float,
    on_rollback: str,
    dialect: DialectName,
    access: Access,
    timeout: float,
) -> None:
    """Print the changes of a bucket as they come: everything there is, and then what is written.

    SOURCE is couchbase://HOST[:PORT]/BUCKET, or couchbases:// for TLS. A line has the time, what
    happened, vbucket:seqno, the size, the key, and the beginning of the value. With --json each
    line is an object: "type" is mutation, deletion or expiration; "key" and "value" are what
    "key_format" and "value_format" say (json, text, base64); rollbacks and ends are objects of
    their own type.

    What --collections and --vbuckets leave out is not sent at all; the other filters are applied
    here, after the server has sent a change. --since and --last read the bucket from its
    beginning, because no server keeps changes by time. --where is a JMESPath expression over the
    document. --format has kcat's letters: %k key, %s value, %K and %S their lengths, %p vbucket,
    %o seqno, %t scope.collection, %T milliseconds since 1970, %x what happened, %c CAS, %r
    revision, %f flags, %e expiry, %d datatype, %%; and \\n, \\t, \\r, \\0.

    With --checkpoint the file holds what was written so far, saved every second and at the end;
    --from then only counts for the first time. After a crash some changes may come again, and
    none is left out.

    With --group, each change is printed by one of the processes that have the same group, and by
    another one again if the first one died before it had saved. The group keeps the positions.

    \b
    Examples:
      upriver tail couchbase://localhost/default
      upriver tail couchbase://localhost/default --from now --json | jq .key
      upriver tail couchbase://localhost/default --json --checkpoint shop.checkpoint >> shop.ndjson
      upriver tail couchbase://localhost/default --collections shop.orders --to now
      upriver tail couchbase://localhost/default --key-prefix order:: --where "status == 'open'"
      upriver tail couchbase://localhost/default --last 10 --format '%T %x %k\\n'
      upriver tail couchbase://localhost/default --group orders --members ./groups

    Ends with 0 at the end, at the limit, and when nobody reads its output any more; with 130
    after SIGINT and 143 after SIGTERM; and with 1 after an error.
    """
    # Imported late: help and completion do not need them.
    from ...consumer.checkpoints.checkpoint_file import FileCheckpoint
    from ...consumer.consumer_settings import ConsumerSettings, RollbackPolicy
    from ...consumer.transport.connection_string import Source
    from ...settings.moments import parse_moment
    from ..tail.change_text import JsonLines, PlainLines
    from ..tail.filters import change_filter, last_changes
    from ..tail.line_format import FormattedLines
    from ..tail.run import GroupSaver, InterruptibleConsumer, Run, Saver, stopping
    from ..tail.status_line import StatusLine

    if text is not None and as_json:
        raise click.UsageError("--format and --json are two ways to print; give one")
    if last is not None and (file is not None or start != "beginning"):
        raise click.UsageError("--last begins by itself; leave --from and --checkpoint out")
    if group is not None and (last is not None or file is not None):
        raise click.UsageError("a --group keeps its positions; leave --last and --checkpoint out")
    if members is not None and group is None:
        raise click.UsageError("--members is for a --group; give its name")
    wanted = change_filter(
        prefix=key_prefix,
        regex=key_regex,
        where=where,
    )
    settings = ConsumerSettings(
        start=_start(start),
        end="now" if end == "now" else "never",
        since=parse_moment(since, "--since") if since is not None else None,
        vbuckets=None if vbuckets is None else frozenset(vbuckets),
        collections=collections,
        scope=scope,
        values=not keys_only,
        xattrs=xattrs,
        dialect=dialect,
        rollback=RollbackPolicy(on_rollback),
        connect_timeout=timeout,
    )
    live = sys.stderr.isatty() and not is_quiet()
    if live:
        log_before("\r\x1b[K")  # the status line stays below what is logged
    with stopping() as stop:
        try:
            with ExitStack() as stack:
                saver = None
                if file is not None:
                    saver = Saver(stack.enter_context(FileCheckpoint(file)))
                    settings = replace(settings, start=saver.saved or settings.start)
                newest: list[Change] = []
                if last is not None:
                    so_far = replace(settings, end="now")
                    with InterruptibleConsumer(
                        Source.parse(source), access=access, settings=so_far
                    ) as reader:
                        newest = last_changes(reader, last, wanted)
                        settings = replace(settings, start=reader.position())
                consumer = InterruptibleConsumer(
                    Source.parse(source),
                    access=access,
                    settings=settings,
                    group=group,
                    members=members,
                    lease=lease,
                    on_revoked=None if group is None else lambda _: consumer.save(),
                )
                with waiting_for(f"{source} to answer"):
                    stack.enter_context(consumer)
                name_of = _names(consumer)
                colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
                lines: Lines = PlainLines(name_of, width=_width(), colour=colour)
                if text is not None:
                    lines = FormattedLines(text, name_of)
                if as_json:
                    lines = JsonLines(name_of, values=not keys_only, xattrs=xattrs)
                status = stack.enter_context(StatusLine(consumer, live=live))
                stop.gentle = True
                keeper = saver if group is None else GroupSaver(consumer)
                run = Run(consumer, lines, status, keeper, stop, limit, wanted)
                run.print_first(newest)
                context.exit(run.run())
        except KeyboardInterrupt:
            click.echo("interrupted: nothing was printed", err=True)
            context.exit(stop.status)


def _start(text: str) -> Start:
    if text == "beginning":
        return "beginning"
    if text == "now":
        return "now"
    from ...consumer.checkpoints.checkpoint_file import FileCheckpoint

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
    """The width of the terminal; None if there is none or it is unknown."""
    if not sys.stdout.isatty():
        return None
    return os.get_terminal_size(sys.stdout.fileno()).columns or None
