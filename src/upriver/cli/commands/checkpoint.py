"""``upriver checkpoint``: show, compare, rewind, export and import checkpoint files.

Nothing is written while a reader has the file open, and a replaced file is kept as FILE.bak.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

import click

from ...consumer.checkpoints.checkpoint import MAX_CHECKPOINT_SIZE, Checkpoint
from ...consumer.checkpoints.checkpoint_file import FileCheckpoint
from ...consumer.checkpoints.position_json import dump_position
from ...errors import ConfigError
from ...model import NO_END
from ...session.stream_position import Position
from ..setting_options import json_option, vbuckets_option
from ..suggestions import SuggestingGroup

_FILE = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
_COLUMNS: Final = (
    "vbucket",
    "vbuuid",
    "seqno",
    "snapshot",
    "complete",
    "branches",
    "boundaries",
    "last boundary",
)


class _Trouble(click.ClickException):
    """A failed comparison, whose exit status differs from that of a difference."""

    exit_code = 2


@click.group(cls=SuggestingGroup)
def checkpoint() -> None:
    """Look at the checkpoint file of a reader, compare it, move it.

    \b
    Examples:
      upriver checkpoint show shop.checkpoint
      upriver checkpoint rewind shop.checkpoint --vbuckets 0-15,17 --to-seqno 1000
      upriver checkpoint export shop.checkpoint | jq -c 'select(.seqno > 0)'
    """


# ---- reading -----------------------------------------------------------------------------


@checkpoint.command()
@_FILE
@json_option("One JSON object instead of a table.")
def show(file: Path, as_json: bool) -> None:
    """Print where each vbucket is. Those at the beginning are only counted."""
    known = _load(file)
    read = [position for position in known.positions.values() if position.seqno]
    complete = sum(position.is_consistent for position in read)
    if as_json:
        click.echo(json.dumps(_as_object(known, len(read), complete)))
        return
    if read:
        for row in _aligned([_COLUMNS, *_rows(known)]):
            click.echo(row)
        click.echo()
    name = known.bucket + (f" ({known.bucket_uuid})" if known.bucket_uuid else "")
    click.echo(
        f"{name}: {known.vbuckets} vbuckets, {complete} at the end of a snapshot, "
        f"{len(read) - complete} within one, {known.vbuckets - len(read)} at the beginning"
    )


@checkpoint.command()
@click.argument("old", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("new", type=click.Path(dir_okay=False, path_type=Path))
@click.pass_context
def diff(context: click.Context, old: Path, new: Path) -> None:
    """Print what moved from the checkpoint OLD to NEW.

    The exit status is 0 if nothing did, 1 if anything did, and 2 if they cannot be compared.
    """
    try:
        before, after = _load(old), _load(new)
        before.require_same_bucket(
            bucket=after.bucket, bucket_uuid=after.bucket_uuid, vbuckets=after.vbuckets
        )
    except ConfigError as problem:
        raise _Trouble(str(problem)) from None
    ahead = back = branched = different = 0
    for vbucket in range(before.vbuckets):
        was, now = before.position(vbucket), after.position(vbucket)
        if was == now:
            continue
        different += 1
        ahead += now.seqno > was.seqno
        back += now.seqno < was.seqno
        branched += _changed_branch(was, now)
        click.echo(f"vbucket {vbucket}: {', '.join(_changes(was, now))}")
    click.echo(
        f"{ahead} moved ahead, {back} went back, {branched} changed branch, "
        f"{before.vbuckets - different} of {before.vbuckets} are the same"
    )
    context.exit(1 if different else 0)


@checkpoint.command()
@_FILE
def export(file: Path) -> None:
    """Print a JSON object for each vbucket on a line of its own, for scripts."""
    for line in _load(file).to_lines():
        click.echo(line)


# ---- writing -----------------------------------------------------------------------------


@checkpoint.command()
@_FILE
@click.option("--to-seqno", type=click.IntRange(0, NO_END), help="Go back to this or before it.")
@click.option("--beginning", is_flag=True, help="Go back to the very beginning.")
@vbuckets_option("--vbucket")
@click.option("--dry-run", is_flag=True, help="Say where it would land, and write nothing.")
def rewind(
    file: Path,
    to_seqno: int | None,
    beginning: bool,
    vbuckets: tuple[int, ...] | None,
    dry_run: bool,
) -> None:
    """Move vbuckets back, so that they are read again from there.

    A reader can only go back to where a snapshot ended, and it remembers fewer of these places
    the further back they are: each vbucket lands at the newest one that is not above the seqno.
    The old checkpoint is kept as FILE.bak.
    """
    if beginning is (to_seqno is not None):
        raise click.UsageError("give either --to-seqno or --beginning")
    if not file.exists():  # before a lock file is made for it
        raise _missing(file)
    if dry_run:
        _rewound(_load(file), to_seqno or 0, vbuckets)
        return
    with FileCheckpoint(file) as store:
        old = _load(file)
        new = _rewound(old, to_seqno or 0, vbuckets)
        if new != old:
            kept = store.back_up()
            store.save(new)
            click.echo(f"the old checkpoint is kept in {kept}")


@checkpoint.command("import")
@_FILE
@click.argument("source", type=click.File("rb"), default="-")
@click.option("--force", is_flag=True, help="Replace FILE if there is one; it is kept as FILE.bak.")
def import_(file: Path, source: IO[bytes], force: bool) -> None:
    """Write FILE from what `export` printed, or from a whole checkpoint.

    It is read from SOURCE, or from the standard input. A vbucket that is not in it is at the
    beginning.
    """
    content = source.read(MAX_CHECKPOINT_SIZE + 1)
    new = _from_lines_or_whole(content)
    with FileCheckpoint(file) as store:
        if file.exists():
            if not force:
                raise ConfigError(f"{file} exists; --force replaces it")
            click.echo(f"the old checkpoint is kept in {store.back_up()}")
        store.save(new)
    click.echo(f"{file}: {len(new.positions)} of {new.vbuckets} vbuckets have a position")


def _rewound(old: Checkpoint, seqno: int, vbuckets: tuple[int, ...] | None) -> Checkpoint:
    """The rewound checkpoint; prints the new position of each vbucket."""
    new = old.rewound(seqno if vbuckets is None else dict.fromkeys(vbuckets, seqno))
    moved = [vbucket for vbucket in old.positions if old.position(vbucket) != new.position(vbucket)]
    for vbucket in moved:
        was, now = old.position(vbucket), new.position(vbucket)
        where = now.seqno or "the beginning"
        click.echo(f"vbucket {vbucket}: from {was.seqno} back to {where}")
    chosen = old.vbuckets if vbuckets is None else len(vbuckets)
    click.echo(f"{len(moved)} went back, {chosen - len(moved)} were not above {seqno}")
    return new


def _load(file: Path) -> Checkpoint:
    found = FileCheckpoint(file).load()
    if found is None:
        raise _missing(file)
    return found


def _missing(file: Path) -> ConfigError:
    return ConfigError(f"there is no checkpoint {file}")


def _from_lines_or_whole(content: bytes) -> Checkpoint:
    """Parses exported lines, which have a vbucket each, or a whole checkpoint, which has none."""
    if len(content) > MAX_CHECKPOINT_SIZE:
        raise ConfigError(f"a checkpoint has at most {MAX_CHECKPOINT_SIZE} bytes")
    try:
        lines = [line for line in content.decode().splitlines() if line.strip()]
    except UnicodeDecodeError as problem:
        raise ConfigError(f"the checkpoint to import is not UTF-8 text: {problem}") from None
    try:
        is_export = bool(lines) and "vbucket" in json.loads(lines[0])
    except (ValueError, TypeError, RecursionError):
        is_export = False
    try:
        return Checkpoint.from_lines(lines) if is_export else Checkpoint.from_json(content)
    except ConfigError as problem:
        raise ConfigError(f"the checkpoint to import is invalid: {problem}") from None


# ---- output ------------------------------------------------------------------------------


def _rows(known: Checkpoint) -> Iterator[tuple[str, ...]]:
    for vbucket, position in known.positions.items():
        if not position.seqno:
            continue
        offset = position.offset
        end = "open" if offset.snapshot.end == NO_END else offset.snapshot.end
        yield (
            str(vbucket),
            str(offset.vbuuid),
            str(offset.seqno),
            f"{offset.snapshot.start}..{end}",
            "yes" if position.is_consistent else "no",
            str(len(position.log)),
            str(len(position.boundaries)),
            str(position.last_boundary),
        )


def _aligned(rows: list[tuple[str, ...]]) -> Iterator[str]:
    """Rows as aligned lines, independent of the screen's width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))


def _as_object(known: Checkpoint, read: int, complete: int) -> dict[str, object]:
    return {
        "bucket": known.bucket,
        "bucket_uuid": known.bucket_uuid,
        "vbuckets": known.vbuckets,
        "read": read,
        "complete": complete,
        "positions": [
            {
                "vbucket": vbucket,
                **dump_position(position),
                "complete": position.is_consistent,
                "last_boundary": position.last_boundary,
            }
            for vbucket, position in known.positions.items()
        ],
    }


def _changed_branch(was: Position, now: Position) -> bool:
    """Whether both have a position, on different branches."""
    return bool(was.seqno and now.seqno) and was.offset.vbuuid != now.offset.vbuuid


def _changes(was: Position, now: Position) -> list[str]:
    changes = []
    if now.seqno > was.seqno:
        changes.append(f"from {was.seqno} ahead to {now.seqno}")
    elif now.seqno < was.seqno:
        changes.append(f"from {was.seqno} back to {now.seqno or 'the beginning'}")
    if _changed_branch(was, now):
        changes.append(f"from branch {was.offset.vbuuid} to {now.offset.vbuuid}")
    return changes or [f"still at {now.seqno}, but with another history"]
