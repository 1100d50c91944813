"""``upriver verify``: whether a mirror or a history is equal to its bucket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from ..common_options import interruptible
from ..result_exit_codes import ResultCommand
from ..setting_options import (
    config_option,
    json_option,
    settings_given,
    source_argument,
    source_settings,
    spark_options,
)
from ..spark_process import spark_when_needed

if TYPE_CHECKING:
    from ...spark.verify_table import Comparison, Verdict

_STATUS: Final[dict[Verdict, int]] = {
    "equal": 0,
    "different": 1,
    "unknown": 2,
    "doubled": 3,
    "nothing compared": 4,
}


@click.command(cls=ResultCommand)
@source_argument
@click.argument("table")
@click.option(
    "--show", type=click.IntRange(0, 100_000), default=10, help="Differences to print at most."
)
@json_option("One JSON object instead of text.")
@source_settings
@spark_options
@config_option
@click.pass_context
def verify(
    context: click.Context, /, source: str, table: str, show: int, as_json: bool, **options: Any
) -> None:
    """Compare a mirror with its bucket, document by document, at the mirror's positions.

    Documents that have changed since are not judged. A mirror of chosen collections is compared
    with the same --collections or --scope. Of a history the current versions are compared, and the
    versions of each document must follow each other without gap or overlap.

    \b
    Examples:
      upriver verify couchbase://localhost/default ./documents
      upriver verify couchbase://localhost/default ./documents --show 100 --json

    \b
    The exit status says what was found:
      0  equal: every document that could be compared
      1  different: documents are missing, extra or not the same, or versions do not fit
      2  unknown: it cannot be found out, after an error or a failover
      3  doubled: the table has several rows of one document
      4  nothing compared: there was no document to compare
    """
    from ...spark import verify as compare

    given = settings_given(options)
    with (
        spark_when_needed("upriver verify", options) as spark,
        interruptible(lambda: "the comparison was not finished; nothing was changed"),
    ):
        found = compare(spark, source=source, table=table, show=show, **given)
    if as_json:
        click.echo(json.dumps(_as_object(found)))
    else:
        for line in _lines(found):
            click.echo(line)
    context.exit(_STATUS[found.verdict])


def difference_lines(found: Comparison) -> Iterator[str]:
    """A line for each difference that is to be shown."""
    for one in found.differences:
        where = f"{one.scope}.{one.collection}"
        yield (
            f"{one.kind}: {_key(one.key)} in {where}, vbucket {one.vbucket}, seqno in the bucket "
            f"{_seqno(one.bucket_seqno)}, in the mirror {_seqno(one.mirror_seqno)}"
        )


def _lines(found: Comparison) -> Iterator[str]:
    yield from difference_lines(found)
    if found.incomparable:
        yield (
            f"{len(found.incomparable)} vbuckets have had a failover since, the first is "
            f"{found.incomparable[0]}: let the pipeline catch up, and compare again"
        )
    if found.doubled:
        yield (
            f"{found.doubled} documents have several rows in the table: something beside the "
            "pipeline wrote to it; run upriver repair, or make the table anew"
        )
    if found.broken:
        yield (
            f"{found.broken} documents have versions that overlap or leave a gap: something beside "
            "the pipeline wrote to the table; restore an older version of it, or make it anew"
        )
    if found.verdict == "nothing compared":
        yield (
            "no document could be compared: the bucket or this selection of it is empty, or all "
            "of it has changed since the mirror's last batch"
        )
    yield (
        f"{found.verdict}: {found.equal} documents are equal, {found.missing} missing, "
        f"{found.extra} extra, {found.different} different, {found.doubled} doubled; "
        f"{found.changed_later} changed later"
    )


def _as_object(found: Comparison) -> dict[str, Any]:
    return {
        "verdict": found.verdict,
        "equal": found.equal,
        "missing": found.missing,
        "extra": found.extra,
        "different": found.different,
        "doubled": found.doubled,
        "broken": found.broken,
        "changed_later": found.changed_later,
        "incomparable_vbuckets": list(found.incomparable),
        "differences": [
            {
                "kind": one.kind,
                "key": _key(one.key),
                "scope": one.scope,
                "collection": one.collection,
                "vbucket": one.vbucket,
                "bucket_seqno": one.bucket_seqno,
                "mirror_seqno": one.mirror_seqno,
            }
            for one in found.differences
        ],
    }


def _key(key: bytes) -> str:
    return key.decode(errors="backslashreplace")


def _seqno(seqno: int | None) -> str:
    return "none" if seqno is None else str(seqno)
