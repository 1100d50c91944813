"""``upriver checkpoint``: looking at checkpoints, comparing them, moving readers back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from upriver.cli.commands.checkpoint import checkpoint
from upriver.consumer.checkpoints.checkpoint import Checkpoint
from upriver.consumer.checkpoints.checkpoint_file import FileCheckpoint
from upriver.errors import ConfigError
from upriver.model import NO_END, FailoverLog, Snapshot, StreamOffset
from upriver.session.stream_position import Position
from upriver.settings.vbucket_list import parse_vbuckets

pytestmark = pytest.mark.story


def at(seqno: int, *boundaries: int, end: int = 0, vbuuid: int = 7) -> Position:
    return Position(
        offset=StreamOffset(vbuuid, seqno, Snapshot(1, end or seqno)),
        log=FailoverLog.of((vbuuid, 0)),
        boundaries=boundaries,
    )


#: One vbucket at the end of a snapshot, two within one, and the last at the beginning.
KNOWN = {0: at(100, 40, 100), 1: at(250, 30, 200, end=300), 2: at(9, end=NO_END)}


def saved(file: Path, positions: dict[int, Position] | None = None, vbuckets: int = 4) -> Path:
    known = Checkpoint(
        bucket="shop",
        bucket_uuid="u1",
        vbuckets=vbuckets,
        positions=KNOWN if positions is None else positions,
    )
    with FileCheckpoint(file) as store:
        store.save(known)
    return file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return saved(tmp_path / "c")


def run(*arguments: str | Path, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(checkpoint, [str(argument) for argument in arguments], input=stdin)


def output(*arguments: str | Path, stdin: str | bytes | None = None) -> str:
    """What a run that succeeds prints."""
    result = run(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.exception or result.output
    return result.output


def refused(*arguments: str | Path, stdin: str | bytes | None = None) -> str:
    """What a run says that is refused by us."""
    result = run(*arguments, stdin=stdin)
    assert isinstance(result.exception, ConfigError), result.output
    return str(result.exception)


def seqnos(file: Path) -> list[int]:
    known = FileCheckpoint(file).load()
    assert known is not None
    return [known.position(vbucket).seqno for vbucket in range(known.vbuckets)]


# ---- show --------------------------------------------------------------------------------


def test_show_prints_a_row_for_each_vbucket_that_was_read(file: Path) -> None:
    table, summary = output("show", file).split("\n\n")
    rows = [" ".join(line.split()) for line in table.splitlines()]
    assert rows == [
        "vbucket vbuuid seqno snapshot complete branches boundaries last boundary",
        "0 7 100 1..100 yes 1 2 100",
        "1 7 250 1..300 no 1 2 200",
        "2 7 9 1..open no 1 0 0",
    ]
    assert summary == (
        "shop (u1): 4 vbuckets, 1 at the end of a snapshot, 2 within one, 1 at the beginning\n"
    )


def test_show_of_a_reader_that_has_nothing_yet_is_one_line(tmp_path: Path) -> None:
    file = saved(tmp_path / "c", {3: Position(manifest_uid=2)})
    assert output("show", file).startswith("shop (u1): 4 vbuckets, 0 at the end")
    assert output("show", file).endswith("4 at the beginning\n")


def test_show_as_json_tells_the_same(file: Path) -> None:
    shown = json.loads(output("show", file, "--json"))
    assert (shown["bucket"], shown["vbuckets"], shown["read"], shown["complete"]) == (
        "shop",
        4,
        3,
        1,
    )
    assert [row["vbucket"] for row in shown["positions"]] == [0, 1, 2]
    assert [row["last_boundary"] for row in shown["positions"]] == [100, 200, 0]
    assert shown["positions"][2]["snapshot"] == [1, NO_END]


@pytest.mark.parametrize("command", ["show", "export"])
def test_a_checkpoint_that_is_missing_or_damaged_is_named(tmp_path: Path, command: str) -> None:
    assert refused(command, tmp_path / "no") == f"there is no checkpoint {tmp_path / 'no'}"
    (tmp_path / "c").write_text("{")
    assert "c cannot be used: it is not JSON" in refused(command, tmp_path / "c")


# ---- diff --------------------------------------------------------------------------------


def test_diff_of_the_same_succeeds(file: Path, tmp_path: Path) -> None:
    same = saved(tmp_path / "d")
    assert output("diff", file, same) == (
        "0 moved ahead, 0 went back, 0 changed branch, 4 of 4 are the same\n"
    )


def test_diff_tells_what_moved_and_how(file: Path, tmp_path: Path) -> None:
    other = {
        0: at(120, 40, 100, 120),
        1: at(200, 30, 200, vbuuid=8),
        2: at(9, 9),
        3: at(5),
    }
    result = run("diff", file, saved(tmp_path / "d", other))
    assert result.exit_code == 1
    assert result.output.splitlines() == [
        "vbucket 0: from 100 ahead to 120",
        "vbucket 1: from 250 back to 200, from branch 7 to 8",
        "vbucket 2: still at 9, but with another history",
        "vbucket 3: from 0 ahead to 5",
        "2 moved ahead, 1 went back, 1 changed branch, 0 of 4 are the same",
    ]
    back = run("diff", tmp_path / "d", file)
    assert "vbucket 3: from 5 back to the beginning" in back.output


def test_what_cannot_be_compared_is_no_difference(file: Path, tmp_path: Path) -> None:
    larger = run("diff", file, saved(tmp_path / "d", vbuckets=8))
    missing = run("diff", file, tmp_path / "no")
    assert (larger.exit_code, missing.exit_code) == (2, 2)
    assert "with 4 vbuckets; now it has 8" in larger.output
    assert "there is no checkpoint" in missing.output


# ---- rewind ------------------------------------------------------------------------------


def test_rewind_lands_on_boundaries_and_keeps_the_old_file(file: Path) -> None:
    before = file.read_bytes()
    assert output("rewind", file, "--to-seqno", "99").splitlines() == [
        "vbucket 0: from 100 back to 40",
        "vbucket 1: from 250 back to 30",
        "2 went back, 2 were not above 99",
        f"the old checkpoint is kept in {file}.bak",
    ]
    assert seqnos(file) == [40, 30, 9, 0]
    assert Path(f"{file}.bak").read_bytes() == before


def test_rewind_of_some_vbuckets_leaves_the_others(file: Path) -> None:
    output("rewind", file, "--vbuckets", "1,3", "--to-seqno", "8")
    assert seqnos(file) == [100, 0, 9, 0]
    output("rewind", file, "--vbucket", "0", "--to-seqno", "50")
    assert seqnos(file) == [40, 0, 9, 0]


def test_rewind_to_the_beginning_reads_everything_again(file: Path) -> None:
    assert "vbucket 2: from 9 back to the beginning" in output("rewind", file, "--beginning")
    assert seqnos(file) == [0, 0, 0, 0]


def test_a_dry_run_says_the_same_and_writes_nothing(file: Path) -> None:
    before = file.read_bytes()
    with FileCheckpoint(file):  # even beside a reader
        said = output("rewind", file, "--to-seqno", "99", "--dry-run")
    assert "vbucket 0: from 100 back to 40" in said
    assert file.read_bytes() == before
    assert not Path(f"{file}.bak").exists()


def test_a_rewind_that_moves_nothing_writes_nothing(file: Path) -> None:
    before = os.stat(file)
    assert output("rewind", file, "--to-seqno", "250") == "0 went back, 4 were not above 250\n"
    assert os.stat(file).st_ino == before.st_ino
    assert not Path(f"{file}.bak").exists()


def test_a_reader_that_runs_is_not_rewound(file: Path) -> None:
    with FileCheckpoint(file):
        said = refused("rewind", file, "--beginning")
    assert f"is written by process {os.getpid()}" in said
    assert seqnos(file) == [100, 250, 9, 0]


def test_a_rewind_of_nothing_makes_no_file(tmp_path: Path) -> None:
    assert "there is no checkpoint" in refused("rewind", tmp_path / "no", "--beginning")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ((), "give either --to-seqno or --beginning"),
        (("--beginning", "--to-seqno", "0"), "give either --to-seqno or --beginning"),
        (("--to-seqno", "-1"), "-1 is not in the range"),
        (("--beginning", "--vbuckets", "3-1"), "the range 3-1 is descending; write 1-3"),
    ],
)
def test_options_that_make_no_sense_are_explained(
    file: Path, options: tuple[str, ...], problem: str
) -> None:
    result = run("rewind", file, *options)
    assert result.exit_code == 2
    assert problem in result.output
    assert seqnos(file) == [100, 250, 9, 0]


def test_a_vbucket_that_the_bucket_does_not_have_is_named(file: Path) -> None:
    assert "vbucket 4: the bucket has only 4" in refused(
        "rewind", file, "--beginning", "--vbuckets", "3-4"
    )
    assert seqnos(file) == [100, 250, 9, 0]


# ---- export and import -------------------------------------------------------------------


def test_what_is_exported_can_be_imported(file: Path, tmp_path: Path) -> None:
    lines = output("export", file)
    assert [json.loads(line)["seqno"] for line in lines.splitlines()] == [100, 250, 9, 0]
    said = output("import", tmp_path / "d", stdin=lines)
    assert said == f"{tmp_path / 'd'}: 3 of 4 vbuckets have a position\n"
    assert (tmp_path / "d").read_bytes() == file.read_bytes()


def test_some_lines_in_any_order_leave_the_rest_at_the_beginning(
    file: Path, tmp_path: Path
) -> None:
    lines = output("export", file).splitlines()
    output("import", tmp_path / "d", stdin=f"\n{lines[2]}\n\n{lines[0]}")
    assert seqnos(tmp_path / "d") == [100, 0, 9, 0]


@pytest.mark.parametrize("compact", [False, True])
def test_a_whole_checkpoint_can_be_imported_from_a_named_file(
    file: Path, tmp_path: Path, compact: bool
) -> None:
    if compact:
        (tmp_path / "one-line").write_text(json.dumps(json.loads(file.read_text())))
    output("import", tmp_path / "d", tmp_path / "one-line" if compact else file)
    assert (tmp_path / "d").read_bytes() == file.read_bytes()


def test_import_replaces_a_file_only_if_it_must(file: Path, tmp_path: Path) -> None:
    target = tmp_path / "d"
    target.write_text("damaged, or something else entirely")
    assert refused("import", target, file) == f"{target} exists; --force replaces it"
    assert target.read_text() == "damaged, or something else entirely"
    assert f"is kept in {target}.bak" in output("import", target, file, "--force")
    assert seqnos(target) == [100, 250, 9, 0]
    assert Path(f"{target}.bak").read_text() == "damaged, or something else entirely"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "it is empty"),
        (b"\xff\xff", "is not UTF-8 text"),
        (b"nonsense", "it is not JSON"),
        (b"[[1], 2]", "it is no checkpoint"),
        (b"7", "it is no checkpoint"),
        (b'{"vbucket": 1}', "text was expected"),
        (b'{"vbucket": 1}\n{', "line 2: it is not JSON"),
    ],
)
def test_what_cannot_be_imported_leaves_no_file(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    assert problem in refused("import", tmp_path / "d", stdin=content)
    assert list(tmp_path.iterdir()) == []


def test_the_command_works_as_a_process_in_a_pipe(file: Path, tmp_path: Path) -> None:
    program = [
        sys.executable,
        "-c",
        "from upriver.cli.commands.checkpoint import checkpoint; checkpoint()",
    ]
    exported = subprocess.run([*program, "export", file], capture_output=True, check=True)
    subprocess.run([*program, "import", tmp_path / "d"], input=exported.stdout, check=True)
    compared = subprocess.run([*program, "diff", file, tmp_path / "d"], check=False)
    assert compared.returncode == 0
    subprocess.run([*program, "rewind", tmp_path / "d", "--beginning"], check=True)
    compared = subprocess.run([*program, "diff", file, tmp_path / "d"], check=False)
    assert compared.returncode == 1


# ---- lists of vbuckets -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "vbuckets"),
    [
        ("0", (0,)),
        ("0-3,7", (0, 1, 2, 3, 7)),
        (" 9 , 2-3,1-1 ", (1, 2, 3, 9)),
        ("65535", (65535,)),
        ("0-65535", tuple(range(65536))),
    ],
)
def test_lists_of_vbuckets(text: str, vbuckets: tuple[int, ...]) -> None:
    assert parse_vbuckets(text) == vbuckets


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "'' is neither a vbucket nor a range; write vbuckets like 0-15,17"),
        ("1,,2", "'' is neither a vbucket"),
        ("1-", "'1-' is neither a vbucket"),
        ("-1", "'-1' is neither a vbucket"),
        ("1-2-3", "'1-2-3' is neither a vbucket"),
        ("\u0661", "is neither a vbucket"),
        ("x" * 999, "'" + "x" * 40 + "' is neither a vbucket"),
        ("65536", "there is no vbucket 65536; the last one is 65535"),
        ("5-3", "the range 5-3 is descending; write 3-5"),
        ("0-9,5", "5 repeats a vbucket"),
        ("0," * 999_999, "at most"),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_what_is_no_list_of_vbuckets_is_explained(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_vbuckets(text)
    assert problem in str(caught.value)
