"""``upriver validate``: whether the rules of a change stream held, from what was printed of it."""

from __future__ import annotations

import json
from typing import IO, Final

import click

from ...errors import ConfigError
from ..result_exit_codes import ResultCommand
from ..setting_options import json_option
from ..stream_validation import StreamRules

#: The longest line: a document of 20 MiB in base64, with what is around it.
_LONGEST_LINE: Final = 64 * 1024 * 1024


@click.command(cls=ResultCommand)
@click.argument("file", type=click.File(encoding="utf-8", errors="replace"), default="-")
@click.option(
    "--vbuckets",
    type=click.IntRange(1, 65_536),
    help="How many vbuckets the bucket has: checks that every key is in its own.",
)
@click.option(
    "--show", type=click.IntRange(0, 100_000), default=10, help="Broken rules to print at most."
)
@json_option("One JSON object instead of text.")
@click.pass_context
def validate(
    context: click.Context, file: IO[str], vbuckets: int | None, show: int, as_json: bool
) -> None:
    """Check the rules of a change stream on the lines of a file, or of standard input.

    The lines are those of "upriver tail --json", or rows of a change log as JSON, one object a
    line. Checked of a stream: seqnos rise, a rollback is to a lower seqno and not from below what
    was printed, revisions of a key rise, nothing follows an end, and the number of changes is
    right. Of a change log: no row is there twice, and a branch has no row before its beginning.

    \b
    Examples:
      upriver tail couchbase://localhost/default --json --to now | upriver validate
      upriver validate changes.ndjson --vbuckets 1024 --json

    \b
    The exit status says what was found:
      0  all rules held
      1  a rule was broken
      2  unknown: the lines cannot be read
    """
    rules = StreamRules(vbuckets)
    broken: list[tuple[int, str]] = []
    total = number = 0
    while line := file.readline(_LONGEST_LINE):
        number += 1
        if len(line) == _LONGEST_LINE and not line.endswith("\n"):
            raise ConfigError(f"line {number} is longer than {_LONGEST_LINE} characters")
        for wrong in rules.take(line) if line.strip() else ():
            total += 1
            if len(broken) < show:
                broken.append((number, wrong))
    if not number:
        raise ConfigError("there is no line to check: give what upriver tail --json has printed")
    for wrong in rules.end():
        total += 1
        if len(broken) < show:
            broken.append((number, wrong))
    if as_json:
        found = {
            "lines": number,
            "counts": dict(sorted(rules.counts.items())),
            "broken": total,
            "problems": [{"line": at, "problem": text} for at, text in broken],
        }
        click.echo(json.dumps(found))
    else:
        for at, text in broken:
            click.echo(f"line {at}: {text}")
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(rules.counts.items()))
        verdict = "all rules held" if not total else f"{total} rules were broken"
        click.echo(f"{verdict} in {number} lines: {kinds}")
    context.exit(1 if total else 0)
