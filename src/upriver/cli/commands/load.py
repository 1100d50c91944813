"""``upriver load``: writes documents into a bucket, generated or from a file."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ...errors import UpriverError
from ...wire.limits import MAX_VALUE
from ..common_options import interruptible, is_quiet
from ..load.document_sources import BadLine, from_csv, from_ndjson, generated, raise_bad
from ..setting_options import access_options, json_option, source_argument
from ..wait_messages import waiting_for

if TYPE_CHECKING:
    from ...consumer.transport.access import Access
    from ...consumer.writing.writer import Writer

_DEFAULT_SIZE: Final = 200
#: A longer prefix would leave no room for a number within the limit of a key.
_MAX_PREFIX: Final = 200


class _Stopped(UpriverError):
    """Loading failed; the message has the cause and the number of documents written."""

    def __init__(self, written: int, cause: UpriverError) -> None:
        super().__init__(f"{cause} (documents written before: {written})")
        self.written = written


@dataclass(slots=True)
class _Skipped:
    """Counts bad lines and skips them."""

    lines: int = 0

    def __call__(self, bad: BadLine) -> None:
        self.lines += 1


@click.command()
@source_argument
@click.option("--docs", type=click.IntRange(1), help="How many; of a file, how many at the most.")
@click.option(
    "--size",
    type=click.IntRange(1, MAX_VALUE),
    help=f"About the bytes of each generated document.  [default: {_DEFAULT_SIZE}]",
)
@click.option("--prefix", default="doc", show_default=True, help="Keys are this and a number.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Documents a second at most.")
@click.option(
    "-f",
    "--file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help="NDJSON (an object on each line), or CSV (.csv) with a header. - is NDJSON from stdin.",
)
@click.option("--key", metavar="FIELD", help="The member of a file's objects that is the key.")
@click.option("--skip-bad", is_flag=True, help="Count a file's bad lines instead of stopping.")
@click.option("--collection", metavar="SCOPE.NAME", default="", help="Another collection.")
@access_options
@json_option()
def load(
    source: str,
    docs: int | None,
    size: int | None,
    prefix: str,
    rate: float | None,
    file: Path | None,
    key: str | None,
    skip_bad: bool,
    collection: str,
    access: Access,
    timeout: float,
    as_json: bool,
) -> None:
    """Write documents into a bucket of any server: generated ones, or those of a file.

    SOURCE is couchbase://HOST[:PORT]/BUCKET, or couchbases:// for TLS. Documents that are there
    already are overwritten. A generated document depends on nothing but its number and --size.

    \b
    Examples:
      upriver load couchbase://localhost/default --docs 100000
      upriver load couchbase://localhost/default --docs 1000 --size 2000 --prefix order: --rate 50
      upriver load couchbase://localhost/default --file people.ndjson --key email
      upriver load couchbases://db.example.com/shop --ca ca.pem --user writer --file stock.csv

    Exits with 1 if not every document was written, and says why.
    """
    if file is None and docs is None:
        raise click.UsageError("give the number of documents with --docs, or a file with --file")
    if file is None and (key is not None or skip_bad):
        raise click.UsageError("--key and --skip-bad need a --file")
    if file is not None and size is not None:
        raise click.UsageError("--size is for generated documents, not for a --file")
    if len(prefix.encode()) > _MAX_PREFIX:
        raise click.UsageError(f"--prefix has more than {_MAX_PREFIX} bytes")
    # Imported late: help and completion do not need them.
    from ...consumer.transport.connection_string import Source
    from ...consumer.writing.writer import Writer
    from ..load.load_run import SETTINGS, Pace
    from ..load.load_run import load as load_documents

    skipped = _Skipped()
    with ExitStack() as stack:
        if file is None:
            documents = generated(docs or 0, size=size or _DEFAULT_SIZE, prefix=prefix)
        else:
            read = from_csv if file.suffix.lower() == ".csv" else from_ndjson
            opened = stack.enter_context(click.open_file(str(file), "rb"))
            on_bad = skipped if skip_bad else raise_bad
            documents = read(opened, prefix=prefix, key=key, on_bad=on_bad)
        answered = stack.enter_context(waiting_for(f"{source} to answer"))
        advance = stack.enter_context(_progress(docs, answered))
        settings = replace(SETTINGS, connect_timeout=timeout)
        writer = stack.enter_context(
            Writer(Source.parse(source), access, settings, on_settled=advance)
        )
        stack.enter_context(
            interruptible(lambda: f"the server has accepted {_accepted(writer)} documents")
        )
        began = time.monotonic()
        pace = Pace(rate) if rate is not None else None
        try:
            load_documents(islice(documents, docs), writer, pace, collection=collection)
        except UpriverError as error:
            raise _Stopped(_accepted(writer), error) from error
        seconds = time.monotonic() - began
    _show(_accepted(writer), skipped.lines, seconds, as_json=as_json)


def _accepted(writer: Writer) -> int:
    """The number of documents that the server has accepted; the same key twice counts twice."""
    return writer.counts.written + writer.counts.superseded


@contextmanager
def _progress(total: int | None, answered: Callable[[], None]) -> Iterator[Callable[[int], None]]:
    """Shows a progress bar on a terminal; yields the function that advances it."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn("loading"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("documents"),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=is_quiet() or not console.is_terminal
    ) as progress:
        task = progress.add_task("", total=total)

        def advance(count: int) -> None:
            answered()
            progress.advance(task, count)

        yield advance


def _show(written: int, skipped: int, seconds: float, *, as_json: bool) -> None:
    rate = written / seconds if seconds else 0.0
    if as_json:
        result = {
            "documents": written,
            "skipped": skipped,
            "seconds": round(seconds, 3),
            "documents_per_second": round(rate),
        }
        click.echo(json.dumps(result))
        return
    bad = f"; bad lines skipped: {skipped}" if skipped else ""
    click.echo(f"{written} documents in {seconds:.2f} s, {rate:.0f} a second{bad}")
