"""``upriver verify``: whether a mirror is equal to its bucket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from .pipeline_options import (
    config_option,
    source_given,
    source_options,
    spark_options,
    spark_session,
)
from .trouble import Question

if TYPE_CHECKING:
    from ..spark.tables.verify import Comparison

__all__ = ["verify"]


@click.command(cls=Question)
@click.argument("source")
@click.argument("table")
@click.option(
    "--show", type=click.IntRange(0, 100_000), default=10, help="Differences to print at most."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
@source_options
@spark_options
@config_option
@click.pass_context
def verify(
    context: click.Context, /, source: str, table: str, show: int, as_json: bool, **options: Any
) -> None:
    """Compare a mirror with its bucket, document by document, at the mirror's positions.

    Documents that have changed since are not judged. A mirror of chosen collections is compared
    with the same --collections or --scope.

    \b
    Examples:
      upriver verify couchbase://localhost/default ./documents
      upriver verify couchbase://localhost/default ./documents --show 100 --json

    The exit status is 0 if they are equal, 1 if they differ, and 2 if that cannot be found out.
    """
    from ..spark.tables.verify import verify as compare

    given = source_given(options)
    with spark_session("upriver verify", options) as spark:
        found = compare(spark, source=source, table=table, show=show, **given)
    if as_json:
        click.echo(json.dumps(_as_object(found)))
    else:
        for line in _lines(found):
            click.echo(line)
    context.exit(1 if found.differing else 2 if found.incomparable else 0)


def _verdict(found: Comparison) -> str:
    if found.differing:
        return "different"
    return "unknown" if found.incomparable else "equal"


def _lines(found: Comparison) -> Iterator[str]:
    for one in found.differences:
        where = f"{one.scope}.{one.collection}"
        yield (
            f"{one.kind}: {_key(one.key)} in {where}, vbucket {one.vbucket}, seqno in the bucket "
            f"{_seqno(one.bucket_seqno)}, in the mirror {_seqno(one.mirror_seqno)}"
        )
    if found.incomparable:
        yield (
            f"{len(found.incomparable)} vbuckets have had a failover since, the first is "
            f"{found.incomparable[0]}: let the pipeline catch up, and compare again"
        )
    yield (
        f"{_verdict(found)}: {found.equal} documents are equal, {found.missing} missing, "
        f"{found.extra} extra, {found.different} different; {found.changed_later} changed later"
    )


def _as_object(found: Comparison) -> dict[str, Any]:
    return {
        "verdict": _verdict(found),
        "equal": found.equal,
        "missing": found.missing,
        "extra": found.extra,
        "different": found.different,
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
