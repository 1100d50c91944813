"""``upriver dead-letters``: values that did not fit the schema of a mirror."""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from ..._extras import extra
from ..setting_options import json_option
from ..suggestions import SuggestingGroup

if TYPE_CHECKING:
    from ...tables.dead_letters import Letter


@click.group("dead-letters", cls=SuggestingGroup)
def dead_letters() -> None:
    """List values that did not fit the schema of a mirror, and try them again.

    \b
    Examples:
      upriver dead-letters list ./people
      upriver dead-letters show ./people person::7
      upriver dead-letters replay ./people
    """


@dead_letters.command("list")
@click.argument("table")
@click.option(
    "--most", type=click.IntRange(1, 1_000_000), default=100, help="Letters to print at most."
)
@json_option("A JSON object for each letter, in a line of its own.")
def list_letters(table: str, most: int, as_json: bool) -> None:
    """List the dead letters of the mirror TABLE: where they are from, and why they do not fit."""
    with extra("spark"):
        from ...tables.dead_letters import letters
    from ...tables.places import TablePlace

    found = letters(TablePlace.parse(table))
    shown = 0
    for letter in islice(found, most):
        shown += 1
        click.echo(json.dumps(_as_object(letter)) if as_json else _line(letter))
    if next(found, None) is not None:
        click.echo(f"there are more than {most}; --most shows more", err=True)
    elif not shown:
        click.echo("there are no dead letters", err=True)


@dead_letters.command()
@click.argument("table")
@click.argument("key")
@json_option("A JSON object for each letter, in a line of its own.")
def show(table: str, key: str, as_json: bool) -> None:
    """Print the values that did not fit of the document KEY."""
    with extra("spark"):
        from ...tables.dead_letters import letters
    from ...tables.places import TablePlace

    found = list(letters(TablePlace.parse(table), key.encode()))
    if not found:
        raise click.ClickException(f"no dead letter is of {key}")
    for letter in found:
        if as_json:
            click.echo(json.dumps(_as_object(letter) | {"value": _text(letter.value or b"")}))
        else:
            click.echo(_line(letter))
            click.echo(_text(letter.value or b""))


@dead_letters.command()
@click.argument("table")
@json_option()
def replay(table: str, as_json: bool) -> None:
    """Try the dead letters again with the schema that the mirror TABLE has now.

    Letters that fit now, or whose documents have changed since, are removed; the others stay. First
    mend the schema: start the mirror with the new --schema and --allow-change. No pipeline of the
    table may run meanwhile.
    """
    with extra("spark"):
        from ...tables.dead_letters import replay as tried_again
    from ...tables.places import TablePlace

    done = tried_again(TablePlace.parse(table))
    if as_json:
        result = {"fitting": done.fitting, "replaced": done.replaced, "left": done.left}
        click.echo(json.dumps(result))
        return
    click.echo(
        f"{done.fitting} fit now, {done.replaced} were replaced since, {done.left} still do not fit"
    )


def _line(letter: Letter) -> str:
    where = f"{letter.scope}.{letter.collection}"
    size = len(letter.value or b"")
    return (
        f"{_text(letter.key)} in {where}, vbucket {letter.vbucket}, seqno {letter.seqno}, "
        f"{size} bytes; {letter.reason}{_batch(letter)}"
    )


def _batch(letter: Letter) -> str:
    return f" (batch {letter.batch})" if letter.batch is not None else ""


def _as_object(letter: Letter) -> dict[str, Any]:
    return {
        "key": _text(letter.key),
        "scope": letter.scope,
        "collection": letter.collection,
        "vbucket": letter.vbucket,
        "seqno": letter.seqno,
        "reason": letter.reason,
        "batch": letter.batch,
        "bytes": len(letter.value or b""),
    }


def _text(data: bytes) -> str:
    return data.decode(errors="backslashreplace")
