"""``upriver check``: whether the server would accept a checkpoint, or roll the reader back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ...errors import ConfigError
from ..result_exit_codes import ResultCommand
from ..setting_options import (
    access_options,
    collection_options,
    dialect_option,
    json_option,
    source_argument,
)
from ..wait_messages import waiting_for

if TYPE_CHECKING:
    from ...consumer.checkpoints.position_check import PositionVerdict
    from ...consumer.transport.access import Access
    from ...wire.protocol_enums import DialectName

_COLUMNS: Final = ("vbucket", "at", "would go on", "because", "behind")


@click.command(cls=ResultCommand)
@source_argument
@click.option(
    "--checkpoint",
    "file",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The checkpoint file of the reader; it is not changed.",
)
@collection_options
@dialect_option
@click.option("--all", "show_all", is_flag=True, help="Print those that are accepted too.")
@json_option("One JSON object instead of a table.")
@access_options
@click.pass_context
def check(
    context: click.Context,
    source: str,
    file: Path,
    collections: tuple[str, ...],
    scope: str,
    dialect: DialectName,
    show_all: bool,
    as_json: bool,
    access: Access,
    timeout: float,
) -> None:
    """Say whether a reader would be rolled back, where to and why, and how far behind it is.

    Stream requests are made as the reader would make them, but no changes are read. For a reader
    of selected collections give the same --collections or --scope.

    \b
    Examples:
      upriver check couchbase://localhost/default --checkpoint shop.checkpoint
      upriver check couchbase://localhost/default --checkpoint shop.checkpoint --json

    The exit status is 0 if every position would be accepted, 1 if any would be rolled back, and
    2 if that cannot be found out.
    """
    # Imported here: help and completion need none of it.
    from ...consumer.checkpoints.checkpoint_file import FileCheckpoint
    from ...consumer.checkpoints.position_check import probe_and_wait
    from ...consumer.consumer_settings import ConsumerSettings
    from ...consumer.transport.connection_string import Source

    checkpoint = FileCheckpoint(file).load()
    if checkpoint is None:
        raise ConfigError(f"there is no checkpoint {file}")
    settings = ConsumerSettings(
        collections=collections, scope=scope, dialect=dialect, connect_timeout=timeout
    )
    with waiting_for(f"{source} to answer"):
        verdicts = probe_and_wait(Source.parse(source), access, settings, checkpoint)
    if as_json:
        click.echo(json.dumps(_as_object(checkpoint.bucket, verdicts)))
    else:
        for line in _table(verdicts, show_all=show_all):
            click.echo(line)
    context.exit(0 if all(verdict.accepted for verdict in verdicts.values()) else 1)


def _table(verdicts: Mapping[int, PositionVerdict], *, show_all: bool) -> Iterator[str]:
    chosen = [
        _row(vbucket, verdict)
        for vbucket, verdict in verdicts.items()
        if show_all or not verdict.accepted
    ]
    if chosen:
        rows = [_COLUMNS, *chosen]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            yield "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        yield ""
    back = sum(not verdict.accepted for verdict in verdicts.values())
    unread = sum(not verdict.position.seqno for verdict in verdicts.values())
    behind = _behind(verdicts)
    yield (
        f"{len(verdicts)} vbuckets: {len(verdicts) - back} would go on where they are, "
        f"{unread} of them at the beginning; {back} would be rolled back; "
        + ("how far behind is not known" if behind is None else f"{behind} changes behind")
    )


def _row(vbucket: int, verdict: PositionVerdict) -> tuple[str, ...]:
    onward = verdict.goes_on.seqno
    return (
        str(vbucket),
        str(verdict.position.seqno or "the beginning"),
        "there" if verdict.accepted else f"at {onward or 'the beginning'}",
        ", ".join(reason.value for reason in verdict.reasons) or "accepted",
        "?" if verdict.behind is None else str(verdict.behind),
    )


def _behind(verdicts: Mapping[int, PositionVerdict]) -> int | None:
    """The sum over all vbuckets; None if one is not known."""
    known = [verdict.behind for verdict in verdicts.values() if verdict.behind is not None]
    return sum(known) if len(known) == len(verdicts) else None


def _as_object(bucket: str, verdicts: Mapping[int, PositionVerdict]) -> dict[str, object]:
    return {
        "bucket": bucket,
        "accepted": sum(verdict.accepted for verdict in verdicts.values()),
        "rolled_back": sum(not verdict.accepted for verdict in verdicts.values()),
        "behind": _behind(verdicts),
        "vbuckets": [
            {
                "vbucket": vbucket,
                "accepted": verdict.accepted,
                "seqno": verdict.position.seqno,
                "to_seqno": verdict.goes_on.seqno,
                "reasons": [reason.value for reason in verdict.reasons],
                "high_seqno": verdict.high_seqno,
                "behind": verdict.behind,
            }
            for vbucket, verdict in verdicts.items()
        ],
    }
