"""Checkpoints: exact as JSON, whole on disk whatever happens, written by one process at a time."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from upriver.consumer.checkpoints.checkpoint import (
    MAX_CHECKPOINT_SIZE,
    Checkpoint,
    CheckpointStore,
    MemoryCheckpoint,
)
from upriver.consumer.checkpoints.checkpoint_file import FileCheckpoint
from upriver.consumer.checkpoints.position_json import dump_position, load_position
from upriver.errors import ConfigError
from upriver.model import MAX_FAILOVER_ENTRIES, NO_END, FailoverLog, Snapshot, StreamOffset
from upriver.session.stream_position import Position

pytestmark = pytest.mark.story

U64 = st.integers(0, 2**64 - 1)


@st.composite
def positions(draw: st.DrawFn) -> Position:
    start, seqno, end = sorted(draw(st.tuples(U64, U64, U64)))
    log = draw(st.lists(st.tuples(U64, U64), max_size=MAX_FAILOVER_ENTRIES))
    boundaries = draw(st.sets(st.integers(1, seqno), max_size=48)) if seqno else ()
    return Position(
        offset=StreamOffset(draw(U64), seqno, Snapshot(start, end)),
        log=FailoverLog.of(*log),
        boundaries=tuple(sorted(boundaries)),
        manifest_uid=draw(U64),
        purge_seqno=draw(U64),
    )


def position(seqno: int, *boundaries: int, end: int = 0, vbuuid: int = 7) -> Position:
    return Position(
        offset=StreamOffset(vbuuid, seqno, Snapshot(min(seqno, 1), end or seqno)),
        log=FailoverLog.of((vbuuid, 0)),
        boundaries=boundaries,
    )


def checkpoint(of: dict[int, Position] | None = None, vbuckets: int = 4) -> Checkpoint:
    if of is None:
        of = {0: position(10, 4, 10), 2: position(2**63, 5, 9, end=NO_END)}
    return Checkpoint(bucket="shop", bucket_uuid="u1", vbuckets=vbuckets, positions=of)


# ---- the value ---------------------------------------------------------------------------


def test_a_checkpoint_cannot_be_changed_from_outside() -> None:
    mine = {3: position(5)}
    known = checkpoint(mine)
    mine[2] = position(6)
    assert dict(known.positions) == {3: position(5)}
    with pytest.raises(TypeError):
        known.positions[1] = position(1)  # type: ignore[index]


def test_left_out_and_at_the_beginning_are_the_same() -> None:
    assert checkpoint({1: Position(), 2: position(5)}) == checkpoint({2: position(5)})
    assert checkpoint({}).position(3) == Position()


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (lambda: checkpoint({4: position(1)}), "vbucket 4: the bucket has only 4, 0 to 3"),
        (lambda: checkpoint({-1: position(1)}), "vbucket -1"),
        (lambda: checkpoint({}, vbuckets=0), "vbuckets: a bucket has 1 to 65536"),
        (lambda: checkpoint({}, vbuckets=65537), "vbuckets: a bucket has 1 to 65536"),
        (lambda: checkpoint({1: position(9, end=8)}), "vbucket 1, snapshot: seqno 9 is not within"),
        (lambda: checkpoint({1: position(9, 3, 3)}), "vbucket 1, boundaries: they must rise"),
        (lambda: checkpoint({1: position(9, 10)}), r"vbucket 1, boundaries: .* within 1\.\.seqno"),
        (lambda: checkpoint({1: position(9, 0)}), r"vbucket 1, boundaries: .* within 1\.\.seqno"),
        (lambda: checkpoint({1: position(9999, *range(1, 999))}), "boundaries: 998 of them"),
        (lambda: checkpoint({1: position(9, vbuuid=2**64)}), "vbucket 1, vbuuid"),
        (lambda: Checkpoint(bucket="", vbuckets=1, positions={}), "bucket: a name has"),
        (lambda: Checkpoint(bucket="a\x1b[2J", vbuckets=1, positions={}), "bucket: a name has"),
        (
            lambda: Checkpoint(bucket="b", bucket_uuid="u" * 999, vbuckets=1, positions={}),
            "bucket_uuid: it has at most",
        ),
        (lambda: checkpoint().position(9), "vbucket 9"),
        (lambda: checkpoint().rewound({0: -1}), "there is no seqno -1"),
        (lambda: checkpoint().rewound({9: 1}), "vbucket 9"),
    ],
)
def test_what_breaks_a_rule_is_refused_with_its_place(
    made: Callable[[], object], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        made()


def test_a_checkpoint_fits_its_own_bucket_only() -> None:
    known = checkpoint()
    known.require_same_bucket(bucket="shop", bucket_uuid="u1", vbuckets=4)
    known.require_same_bucket(bucket="shop", bucket_uuid="", vbuckets=4)
    with pytest.raises(ConfigError, match="of the bucket 'shop', not of 'other'"):
        known.require_same_bucket(bucket="other", bucket_uuid="u1", vbuckets=4)
    with pytest.raises(ConfigError, match="its uuid was u1, now it is u2"):
        known.require_same_bucket(bucket="shop", bucket_uuid="u2", vbuckets=4)
    with pytest.raises(ConfigError, match="with 4 vbuckets; now it has 8"):
        known.require_same_bucket(bucket="shop", bucket_uuid="u1", vbuckets=8)


def test_rewinding_moves_what_is_above_to_its_newest_boundary() -> None:
    known = checkpoint({0: position(10, 4, 10), 1: position(50, 20, 40, end=60), 3: position(6)})
    back = known.rewound(20)
    assert [back.position(v).seqno for v in range(4)] == [10, 20, 0, 6]
    assert back.position(0) == known.position(0)
    assert back.position(3) == known.position(3)


def test_rewinding_some_vbuckets_leaves_the_others() -> None:
    known = checkpoint({0: position(10, 4, 10), 1: position(50, 20, 40, end=60)})
    back = known.rewound({0: 9, 2: 0})
    assert [back.position(v).seqno for v in range(4)] == [4, 50, 0, 0]
    assert known.rewound(0) == checkpoint({})


def test_a_position_within_a_snapshot_that_is_not_above_stays() -> None:
    known = checkpoint({1: position(50, 20, 40, end=60)})
    assert known.rewound(50) == known
    assert known.rewound(49).position(1).seqno == 40


# ---- JSON --------------------------------------------------------------------------------


@given(positions())
@settings(deadline=None)
def test_any_position_survives_json(before: Position) -> None:
    text = json.dumps(dump_position(before))
    assert load_position(json.loads(text), "here") == before


@given(st.dictionaries(st.integers(0, 65535), positions(), max_size=5), st.text(max_size=20))
@settings(deadline=None)
def test_any_checkpoint_survives_json_and_lines(of: dict[int, Position], uuid: str) -> None:
    uuid = "".join(character for character in uuid if character.isprintable())
    # as many as there must be, so that the lines are few
    vbuckets = max(of, default=0) + 1 if max(of, default=0) < 100 else 65536
    before = Checkpoint(bucket="größe", bucket_uuid=uuid, vbuckets=vbuckets, positions=of)
    text = before.to_json()
    assert text.isascii()
    assert Checkpoint.from_json(text) == Checkpoint.from_json(text.encode()) == before
    assert Checkpoint.from_json(text).to_json() == text
    if vbuckets <= 100:
        assert Checkpoint.from_lines(before.to_lines()) == before


def test_the_text_has_a_line_for_each_vbucket_in_order() -> None:
    known = checkpoint({2: position(2**63, 5, end=NO_END), 0: position(10)})
    assert known.to_json() == (
        '{"version": 1, "bucket": "shop", "bucket_uuid": "u1", "vbuckets": 4, "positions": [\n'
        '{"vbucket": 0, "vbuuid": 7, "seqno": 10, "snapshot": [1, 10], "manifest_uid": 0, '
        '"purge_seqno": 0, "log": [[7, 0]], "boundaries": []},\n'
        '{"vbucket": 2, "vbuuid": 7, "seqno": 9223372036854775808, '
        '"snapshot": [1, 18446744073709551615], "manifest_uid": 0, '
        '"purge_seqno": 0, "log": [[7, 0]], "boundaries": [5]}\n'
        "]}\n"
    )


def stored(**changed: Any) -> str:
    """A checkpoint's JSON with other members at its top."""
    return json.dumps(json.loads(checkpoint().to_json()) | changed)


def with_position(**changed: Any) -> str:
    """A checkpoint's JSON with other members in the position of vbucket 2."""
    known = json.loads(checkpoint().to_json())
    known["positions"][1] |= changed
    return json.dumps(known)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it is empty"),
        (" \n", "it is empty"),
        ("null", "it is no checkpoint"),
        ("[1]", "it is no checkpoint"),
        ("{}", "a checkpoint has a version"),
        (b"\xff\xfe", "not JSON that can be read"),
        ("[" * 200_000, "not JSON that can be read"),
        ('{"version": ' + "9" * 10_000 + "}", "not JSON that can be read"),
        ('{"version": 1, "version": 1}', "'version' is given twice"),
        (checkpoint().to_json()[:-30], "not JSON that can be read"),
        (stored(version=2), "a later release wrote it: version 2, this one knows 1"),
        (stored(version=0), "there is no version 0"),
        (stored(version=True), "a checkpoint has a version"),
        (stored(more=1), "the checkpoint: 'more' is not known here"),
        (stored(bucket=1), "bucket: text was expected"),
        (stored(vbuckets="4"), "vbuckets: a number was expected"),
        (stored(vbuckets=10**9), "vbuckets: a bucket has 1 to 65536"),
        (stored(vbuckets=2), "vbucket 2: the bucket has only 2"),
        (stored(positions={}), "positions: a list was expected"),
        (stored(positions=[3]), "position 1 of the list has no number of a vbucket"),
        (stored(positions=[{"vbucket": 1.0}]), "position 1 of the list has no number"),
        (stored(positions=[{"vbucket": 1}]), "vbucket 1: boundaries, log, .* missing"),
        (with_position(vbucket=0), "vbucket 0: there are two positions"),
        (with_position(seqno="5"), "vbucket 2, seqno: a whole number was expected, not '5'"),
        (with_position(seqno=5.0), "vbucket 2, seqno: a whole number was expected, not 5.0"),
        (with_position(vbuuid=-1), "vbucket 2, vbuuid: -1 is not within"),
        (with_position(vbuuid=2**64), "vbucket 2, vbuuid: 18446744073709551616 is not within"),
        (with_position(snapshot=[1]), r"vbucket 2, snapshot: two numbers were expected, not \[1\]"),
        (with_position(snapshot=[1, 4]), "vbucket 2, snapshot: seqno .* is not within 1..4"),
        (with_position(snapshot=5), "vbucket 2, snapshot: a list was expected, not 5"),
        (with_position(log=[5]), "vbucket 2, log: a list was expected, not 5"),
        (with_position(log=[[1, 2]] * 1025), "vbucket 2, log: 1025 branches; at most 1024"),
        (with_position(boundaries=[9, 5]), "vbucket 2, boundaries: they must rise"),
        (with_position(boundaries=list(range(1, 999))), "vbucket 2, boundaries: 998 of them"),
        (with_position(purge_seqno=None), "vbucket 2, purge_seqno: a whole number was expected"),
        (with_position(extra=1), "vbucket 2: 'extra' is not known here"),
        (with_position(**{"x" * 999: 1}), r"vbucket 2: 'x+\.\.\. is not known here"),
        (" " * (MAX_CHECKPOINT_SIZE + 1), "are no checkpoint; at most"),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_what_is_wrong_in_a_text_is_named(text: str | bytes, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        Checkpoint.from_json(text)
    assert len(str(caught.value)) < 300


@given(st.integers(0, 400), st.integers(0, 255))
@settings(deadline=None)
def test_a_damaged_byte_is_refused_or_gives_another_whole_checkpoint(at: int, byte: int) -> None:
    text = bytearray(checkpoint().to_json().encode())
    text[at % len(text)] = byte
    try:
        found = Checkpoint.from_json(bytes(text))
    except ConfigError:
        return
    assert Checkpoint.from_json(found.to_json()) == found


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([], "not a single position"),
        (["{"], "line 1: it is not JSON"),
        (["5"], "line 1: an object was expected"),
        ([checkpoint().to_lines()[0], "{}"], "line 2 is of another bucket than line 1"),
        (checkpoint().to_lines()[:1] * 2, "vbucket 0: there are two positions"),
        (['{"vbucket": 1}'], "text was expected"),
    ],
)
def test_what_is_wrong_in_lines_is_named(lines: list[str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Checkpoint.from_lines(lines)


# ---- stores ------------------------------------------------------------------------------


def generation(number: int, vbuckets: int = 64) -> Checkpoint:
    """A checkpoint in which every vbucket says the same number."""
    return checkpoint(dict.fromkeys(range(vbuckets), position(number, number)), vbuckets)


def test_a_store_gives_back_what_was_saved_last(tmp_path: Path) -> None:
    stores: list[CheckpointStore] = [MemoryCheckpoint(), FileCheckpoint(tmp_path / "c")]
    for store in stores:
        assert store.load() is None
        for number in (1, 2):
            store.save(generation(number))
            assert store.load() == generation(number)
    assert MemoryCheckpoint(generation(5)).load() == generation(5)


def test_a_file_can_be_read_while_it_is_written(tmp_path: Path) -> None:
    with FileCheckpoint(tmp_path / "c") as writer:
        writer.save(generation(1))
        assert FileCheckpoint(tmp_path / "c").load() == generation(1)


@pytest.mark.parametrize("how", [FileCheckpoint.open, lambda store: store.save(generation(2))])
def test_a_second_writer_is_told_who_the_first_is(
    tmp_path: Path, how: Callable[[FileCheckpoint], object]
) -> None:
    first, second = FileCheckpoint(tmp_path / "c"), FileCheckpoint(tmp_path / "c")
    first.save(generation(1))
    with pytest.raises(ConfigError, match=f"is written by process {os.getpid()} on .*stop it"):
        how(second)
    first.save(generation(3))
    assert second.load() == generation(3)
    first.close()
    first.close()
    second.save(generation(4))
    second.close()
    assert first.load() == generation(4)


def test_links_to_a_file_share_its_lock_and_stay_links(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "c")
    with FileCheckpoint(tmp_path / "link") as writer:
        writer.save(generation(1))
        with pytest.raises(ConfigError, match="is written by process"):
            FileCheckpoint(tmp_path / "c").open()
    assert (tmp_path / "link").is_symlink()
    assert FileCheckpoint(tmp_path / "c").load() == generation(1)


def test_a_damaged_file_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "c"
    damaged = generation(1).to_json()[:-100]
    file.write_text(damaged)
    with pytest.raises(ConfigError, match=f"the checkpoint {file} cannot be used: it is not JSON"):
        FileCheckpoint(file).load()
    assert file.read_text() == damaged


def test_a_file_that_is_too_large_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    file = tmp_path / "c"
    with open(file, "wb") as out:
        out.truncate(MAX_CHECKPOINT_SIZE * 1000)  # all of it holes
    with pytest.raises(ConfigError, match="are no checkpoint; at most"):
        FileCheckpoint(file).load()


def test_what_cannot_be_read_or_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        FileCheckpoint(tmp_path).load()
    with pytest.raises(ConfigError, match="cannot be locked: No such file or directory"):
        FileCheckpoint(tmp_path / "missing" / "c").save(generation(1))
    (tmp_path / "c").mkdir()
    with (
        FileCheckpoint(tmp_path / "c") as store,
        pytest.raises(ConfigError, match="cannot be written: Is a directory"),
    ):
        store.save(generation(1))
    assert not (tmp_path / "c.new").exists()


FILLS_UP = """
import resource, sys
from upriver.consumer.checkpoints.checkpoint import Checkpoint
from upriver.consumer.checkpoints.checkpoint_file import FileCheckpoint
from upriver.errors import ConfigError
store = FileCheckpoint(sys.argv[1]).open()
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    store.save(store.load())
except ConfigError as problem:
    print(problem)
"""


def test_a_save_that_fails_half_way_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "c"
    with FileCheckpoint(file) as store:
        store.save(generation(1))
    done = subprocess.run(
        [sys.executable, "-c", FILLS_UP, str(file)], capture_output=True, text=True, check=True
    )
    assert "cannot be written: File too large" in done.stdout
    assert FileCheckpoint(file).load() == generation(1)
    assert not (tmp_path / "c.new").exists()


def test_threads_may_share_a_store(tmp_path: Path) -> None:
    store = FileCheckpoint(tmp_path / "c")
    wrong: list[Checkpoint | None] = []
    allowed = [generation(number) for number in range(1, 9)]

    def work(mine: Checkpoint) -> None:
        for _ in range(10):
            store.save(mine)
            found = store.load()
            if found not in allowed:
                wrong.append(found)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in allowed]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    store.close()


def test_a_backup_has_the_same_bytes(tmp_path: Path) -> None:
    file = tmp_path / "c"
    file.write_bytes(b"damaged\xff")
    with FileCheckpoint(file) as store:
        assert store.back_up() == tmp_path / "c.bak"
    assert (tmp_path / "c.bak").read_bytes() == file.read_bytes() == b"damaged\xff"


# ---- kill -9 -----------------------------------------------------------------------------

SAVES_UNTIL_KILLED = """
import itertools, sys
from dataclasses import replace
from upriver.consumer.checkpoints.checkpoint_file import FileCheckpoint
from upriver.model import Snapshot, StreamOffset
from upriver.session.stream_position import Position
store = FileCheckpoint(sys.argv[1])
last = store.load()
for number in itertools.count(last.position(0).seqno + 1):
    place = Position(offset=StreamOffset(7, number, Snapshot(number, number)))
    store.save(replace(last, positions=dict.fromkeys(range(last.vbuckets), place)))
    print(number, flush=True)
"""


def save_until_killed(file: Path, lines: int) -> list[int]:
    """Kills a writer in the middle of a save, as far as one can see; what it said was saved."""
    with subprocess.Popen(
        [sys.executable, "-c", SAVES_UNTIL_KILLED, str(file)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        told = [process.stdout.readline() for _ in range(lines)]
        while not file.with_name("c.new").exists() and process.poll() is None:
            pass
        process.kill()
        told += process.stdout.readlines()
    assert process.returncode == -signal.SIGKILL
    return [int(line) for line in told if line.endswith("\n")]


def test_a_killed_writer_leaves_a_whole_checkpoint_old_or_new(tmp_path: Path) -> None:
    file = tmp_path / "c"
    with FileCheckpoint(file) as store:
        store.save(generation(1, vbuckets=1024))
    draw = random.Random(7)
    rounds = interrupted = 0
    while rounds < 8 or interrupted < 3:
        rounds += 1
        told = save_until_killed(file, draw.randint(1, 5))
        interrupted += (tmp_path / "c.new").exists()
        found = FileCheckpoint(file).load()
        assert found is not None
        seqnos = {found.position(vbucket).seqno for vbucket in range(1024)}
        assert len(seqnos) == 1, "half of one checkpoint and half of another"
        assert seqnos <= {told[-1], told[-1] + 1}
        assert rounds < 100, "no kill hit a save"
    with FileCheckpoint(file) as store:  # the lock went with the last writer
        store.save(generation(1, vbuckets=1024))
    assert not (tmp_path / "c.new").exists()
