"""Random histories of a bucket, kept as a table without Spark: crashes, rollbacks, compactions."""

from __future__ import annotations

import itertools
import json
import os
import random
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from tablekit import (
    PATIENCE,
    Crash,
    ModelledBucket,
    documents_of,
    require_history,
    rows_of,
)

from examples import examples
from upriver.errors import ConfigError, UpriverError
from upriver.files.storage import Storage
from upriver.tables import lease as lease_module
from upriver.tables import pipeline_tables
from upriver.tables.executors import ThisProcess
from upriver.tables.format import key_index, row_lookup
from upriver.tables.format.delta_log import LogMovedOn
from upriver.tables.lease import Lease, LeaseLost, held_lease
from upriver.tables.pipeline import Pipeline
from upriver.tables.pipeline_settings import PipelineSettings
from upriver.tables.pipeline_start import place_of, start_pipeline
from upriver.tables.places import TablePlace
from upriver.tables.restore_versions import OlderVersions
from upriver.tables.upkeep import compaction, version_retention
from upriver.tables.upkeep.manual_maintenance import compact
from upriver.testing import TemporaryProducer

VBUCKETS = 4
#: How many random histories, and the seed of the first: more when somebody has the time.
HISTORIES = int(os.environ.get("UPRIVER_SCHEDULES", examples(3, least=1)))
SEED = int(os.environ.get("UPRIVER_CHAOS_SEED", "1"))
STEPS = (
    *("read", "files", "commit", "table", "compaction files", "compaction commit"),
    *("checkpoint", "vacuum"),
)


@pytest.fixture
def bucket() -> Iterator[ModelledBucket]:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        yield ModelledBucket(producer)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens seldom in large tables happens often in these."""
    monkeypatch.setattr(pipeline_tables, "CHECKPOINT_EVERY", 4)
    monkeypatch.setattr(compaction, "_MOST_ALIKE", 3)
    monkeypatch.setattr(version_retention, "_IN_FLIGHT", timedelta(0))


def started(bucket: ModelledBucket, table: Path, on_step: Any = None, **options: Any) -> Pipeline:
    given = {"once": True, "retry_timeout": "1s", **options}
    kind = given.pop("kind", "mirror")
    settings = PipelineSettings.parse(kind, bucket.producer.source, given)
    more = {} if on_step is None else {"on_step": on_step}
    return start_pipeline(ThisProcess(), settings, place_of(table, settings), **more)


def caught_up(bucket: ModelledBucket, table: Path, **options: Any) -> None:
    assert started(bucket, table, **options).wait(PATIENCE)


def changed(
    bucket: ModelledBucket, dice: random.Random, count: int, failovers: float = 0.08
) -> None:
    for _ in range(count):
        vbucket = dice.randrange(VBUCKETS)
        key = b"%d-%d" % (vbucket, dice.randrange(8))
        chance = dice.random()
        if chance < failovers:
            bucket.fail_over(vbucket, max(0, bucket.high(vbucket) - dice.randrange(1, 9)))
        elif chance < failovers + 0.17 and bucket.has(vbucket, key):
            bucket.delete(vbucket, key)
        else:
            bucket.write(vbucket, key, b"%d" % dice.randrange(10**6))


def require_equal(table: Path, bucket: ModelledBucket, kind: str) -> None:
    if kind == "history":
        require_history(table, bucket)
    else:
        assert documents_of(table) == bucket.documents()


@pytest.mark.parametrize("kind", ["mirror", "history"])
@pytest.mark.parametrize("merge_on_read", [True, False], ids=["merge on read", "copy on write"])
@pytest.mark.parametrize("seed", range(SEED, SEED + HISTORIES))
def test_random_histories_and_crashes_end_equal(
    bucket: ModelledBucket,
    tmp_path: Path,
    seed: int,
    merge_on_read: bool,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = tmp_path / "documents"
    dice = random.Random(seed)
    monkeypatch.setattr(row_lookup, "_SMALL", dice.choice([0, 2**20]))
    options = {
        "kind": kind,
        "merge_on_read": merge_on_read,
        "compact_every": dice.choice([1, 3]),
        "keep_versions": dice.choice(["0s", "24h"]),
        "max_offsets_per_trigger": dice.choice([5, 1000]),
    }
    for _ in range(18):
        changed(bucket, dice, dice.randrange(1, 20))
        doomed = dice.choice(STEPS)
        left = dice.randrange(3)

        def die(step: str, doomed: str = doomed) -> None:
            nonlocal left
            if step == doomed:
                left -= 1
                if left < 0:
                    raise Crash(f"died after {step}")

        def roll_back(step: str, point: str = doomed) -> None:
            if step == point:
                changed(bucket, dice, 2, failovers=0.6)

        if dice.random() < 0.3:
            assert started(bucket, table, roll_back, **options).wait(PATIENCE)
        elif dice.random() < 0.5:
            try:
                started(bucket, table, die, **options).wait(PATIENCE)
            except UpriverError as problem:
                assert "died after" in str(problem)
        elif dice.random() < 0.2 and table.exists():
            compact(TablePlace.parse(table), seconds=dice.choice([0, 86_400]))
        else:
            caught_up(bucket, table, **options)
            require_equal(table, bucket, kind)
    caught_up(bucket, table, **options)
    require_equal(table, bucket, kind)
    if not merge_on_read:
        assert not (table / "_dv").exists()
        assert DeltaTable(table).to_pyarrow_table().num_rows == len(rows_of(table))


def test_a_rollback_takes_the_rows_of_an_older_version(
    bucket: ModelledBucket, tmp_path: Path
) -> None:
    """Also when the files of that version were compacted away meanwhile; and the bucket is read
    anew where the version is gone."""
    for kept in ("24h", "0s"):
        table = tmp_path / kept
        options = {"keep_versions": kept, "compact_every": 1}
        for number in range(12):
            bucket.write(0, b"k%d" % number, b"old")
            caught_up(bucket, table, **options)
        point = bucket.high(0)
        for number in range(6):
            bucket.write(0, b"k%d" % number, b"lost")
            caught_up(bucket, table, **options)
        bucket.fail_over(0, point)
        caught_up(bucket, table, **options)
        assert documents_of(table) == bucket.documents()
        bucket.fail_over(0, 3)
        bucket.fail_over(0, 2)
        caught_up(bucket, table, **options)
        assert documents_of(table) == bucket.documents()


@pytest.mark.parametrize("kind", ["mirror", "history"])
@pytest.mark.parametrize("merge_on_read", [True, False], ids=["merge on read", "copy on write"])
def test_a_failover_at_any_step_is_followed(
    bucket: ModelledBucket,
    tmp_path: Path,
    merge_on_read: bool,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the first load on, at every step of a batch and of what follows it; once and twice."""
    monkeypatch.setattr(pipeline_tables, "CHECKPOINT_EVERY", 1)
    monkeypatch.setattr(compaction, "_MOST_ALIKE", 2)
    table = tmp_path / "documents"
    options = {
        "kind": kind,
        "merge_on_read": merge_on_read,
        "compact_every": 1,
        "max_offsets_per_trigger": 40,
    }
    seen = set()
    for number, step in enumerate(("read", *STEPS)):
        for key in range(12):
            bucket.write(key % VBUCKETS, b"k%d" % key, b"%d" % number)
            bucket.write(key % VBUCKETS, b"k%d-%d" % (key, number), b"stays")

        def fail_over(done: str, wanted: str = step, times: int = 1 + number % 2) -> None:
            if done == wanted and (done, times) not in seen:
                seen.add((done, times))
                for lost in range(times):
                    bucket.fail_over(0, max(0, bucket.high(0) - 2 + lost))
                    bucket.write(0, b"k0", b"after")

        assert started(bucket, table, fail_over, **options).wait(PATIENCE)
        caught_up(bucket, table, **options)
        require_equal(table, bucket, kind)
    assert {step for step, _ in seen} == set(STEPS) - {"table"}


@pytest.mark.parametrize("noticed", ["by the plan", "by the task"])
def test_a_vbucket_is_read_anew_where_others_have_vacuumed_its_version(
    bucket: ModelledBucket, tmp_path: Path, noticed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "documents"
    for number in range(5):
        bucket.write(0, b"k%d" % number, b"old")
        bucket.write(1, b"other", b"%d" % number)
        caught_up(bucket, table)
    point = bucket.high(0)
    bucket.write(0, b"k1", b"lost")
    caught_up(bucket, table)
    DeltaTable(table).optimize.compact()
    gone = DeltaTable(table).vacuum(
        retention_hours=0, enforce_retention_duration=False, dry_run=False
    )
    assert gone, "there was nothing to vacuum"
    bucket.fail_over(0, point)
    if noticed == "by the task":  # as if the vacuum came after the plan
        look, looks = OlderVersions.can_restore, []

        def looked(self: OlderVersions, vbucket: int, seqno: int) -> bool:
            looks.append(vbucket)
            return len(looks) == 1 or look(self, vbucket, seqno)

        monkeypatch.setattr(OlderVersions, "can_restore", looked)
    caught_up(bucket, table)
    assert documents_of(table) == bucket.documents()


def test_a_file_of_the_newest_version_that_was_deleted_is_named(
    bucket: ModelledBucket, tmp_path: Path
) -> None:
    table = tmp_path / "documents"
    bucket.write(0, b"a", b"1")
    caught_up(bucket, table)
    (file,) = table.glob("*.parquet")
    file.unlink()
    (index,) = (table / key_index.FOLDER).iterdir()
    index.unlink()
    version = DeltaTable(table).version()
    bucket.write(0, b"a", b"2")
    with pytest.raises(UpriverError, match=rf"{file.name} is gone.*another program"):
        caught_up(bucket, table)
    assert DeltaTable(table).version() == version


def test_a_table_is_continued_from_nothing_else(bucket: ModelledBucket, tmp_path: Path) -> None:
    bucket.write(0, b"a", b"1")
    caught_up(bucket, tmp_path / "here")
    # neither leases, nor indexes, nor progress: only what a reader needs
    for path in (tmp_path / "here").rglob("*"):
        relative = path.relative_to(tmp_path / "here")
        if path.is_file() and relative.parts[0] != "_upriver":
            copy = tmp_path / "there" / relative
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    bucket.write(0, b"a", b"2")
    bucket.write(1, b"b", b"1")
    caught_up(bucket, tmp_path / "there")
    assert documents_of(tmp_path / "there") == {b"a": b"2", b"b": b"1"}


@pytest.mark.parametrize("damage", ["missing", "empty", "flipped", "of another file"])
def test_an_index_is_never_the_truth(bucket: ModelledBucket, tmp_path: Path, damage: str) -> None:
    table = tmp_path / "documents"
    for number in range(20):
        bucket.write(0, b"k%d" % number, b"old")
    caught_up(bucket, table)
    (index,) = (table / key_index.FOLDER).iterdir()
    if damage == "missing":
        index.unlink()
    elif damage == "empty":
        index.write_bytes(b"")
    elif damage == "flipped":
        data = bytearray(index.read_bytes())
        data[len(data) // 2] ^= 1
        index.write_bytes(data)
    else:
        for number in range(20):
            bucket.write(1, b"other%d" % number, b"1")
        caught_up(bucket, table)
        (other,) = (one for one in (table / key_index.FOLDER).iterdir() if one != index)
        index.write_bytes(other.read_bytes())
    for number in range(20):
        bucket.write(0, b"k%d" % number, b"new")
    caught_up(bucket, table)
    assert documents_of(table) == bucket.documents()


def test_indexes_that_are_kept_hold_no_open_files(bucket: ModelledBucket, tmp_path: Path) -> None:
    """A process may have 1,024 of them, and a table has many indexes in its life."""
    for turn in range(5):
        bucket.write(0, b"k", b"%d" % turn)
        caught_up(bucket, tmp_path / "documents", compact_every=0)
    names = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # another thread has closed it
            names.append(os.readlink(f"/proc/self/fd/{number}"))
    assert [name for name in names if ".idx" in name] == []


def test_versions_and_bytes_stay_within_their_window(
    bucket: ModelledBucket, tmp_path: Path
) -> None:
    table = tmp_path / "documents"
    options = {"keep_versions": "0s", "compact_every": 5}
    sizes = []
    for number in range(60):
        for key in range(10):
            bucket.write(key % VBUCKETS, b"k%d" % key, b"%d" % number * 500)
        caught_up(bucket, table, **options)
        if number % 20 == 19:
            files = [path for path in table.rglob("*") if path.is_file()]
            sizes.append((len(files), sum(path.stat().st_size for path in files)))
    assert max(count for count, _ in sizes) < 100
    (*_, newest) = sorted((table / "_delta_log").glob("*.checkpoint.parquet"))
    removals = pq.read_table(newest, columns=["remove"])["remove"]
    assert 0 < len(removals) - removals.null_count < 40
    assert sizes[-1][1] < 2 * sizes[0][1]
    assert documents_of(table) == bucket.documents()


def test_an_append_by_a_stranger_is_refused_and_kept(
    bucket: ModelledBucket, tmp_path: Path
) -> None:
    table = tmp_path / "documents"
    bucket.write(0, b"a", b"1")
    caught_up(bucket, table)
    rows = DeltaTable(table)
    before = rows.version()
    held = rows_of(table)
    write_deltalake(table, _arrow(table), mode="append")
    bucket.write(0, b"a", b"2")
    with pytest.raises(ConfigError, match=r"WRITE by delta-rs.*nothing was changed"):
        caught_up(bucket, table)
    assert len(rows_of(table)) == 2 * len(held)
    DeltaTable(table).restore(before)
    caught_up(bucket, table)
    assert documents_of(table) == bucket.documents()


def _arrow(table: Path) -> Any:
    import pyarrow as pa
    from deltalake import QueryBuilder

    found = QueryBuilder().register("held", DeltaTable(table)).execute("SELECT * FROM held")
    return pa.table(found)


def test_an_append_while_a_batch_is_under_way_is_noticed(
    bucket: ModelledBucket, tmp_path: Path
) -> None:
    table = tmp_path / "documents"
    bucket.write(0, b"a", b"1")
    caught_up(bucket, table)
    bucket.write(0, b"a", b"2")

    def meddle(step: str) -> None:
        if step == "files":
            write_deltalake(table, _arrow(table), mode="append")

    with pytest.raises(ConfigError, match="was written by another program"):
        started(bucket, table, meddle).wait(PATIENCE)


def test_strangers_may_compact_and_vacuum(bucket: ModelledBucket, tmp_path: Path) -> None:
    table = tmp_path / "documents"
    for number in range(6):
        bucket.write(0, b"k%d" % number, b"1")
        bucket.write(0, b"hot", b"%d" % number)
        caught_up(bucket, table)
    DeltaTable(table).optimize.compact()
    DeltaTable(table).vacuum(
        retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True
    )
    bucket.write(0, b"k3", b"2")
    bucket.delete(0, b"k4")
    caught_up(bucket, table)
    assert documents_of(table) == bucket.documents()


def test_whoever_has_lost_the_lease_commits_nothing(
    bucket: ModelledBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "documents"
    bucket.write(0, b"a", b"1")
    caught_up(bucket, table)
    version = DeltaTable(table).version()
    bucket.write(0, b"a", b"2")

    def take_over(step: str) -> None:
        if step == "files":
            monkeypatch.setattr("upriver.tables.lease.is_dead", lambda holder: True)
            with held_lease(Storage.parse(table)):
                pass

    with pytest.raises(LeaseLost, match="nothing was committed"):
        started(bucket, table, take_over).wait(PATIENCE)
    assert DeltaTable(table).version() == version
    caught_up(bucket, table)
    assert documents_of(table) == bucket.documents()


def test_a_writer_that_is_late_after_its_look_at_the_lease_commits_nothing(
    bucket: ModelledBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its successor is alive, and has done no batch yet."""
    table = tmp_path / "documents"
    bucket.write(0, b"a", b"1")
    caught_up(bucket, table)
    bucket.write(0, b"a", b"2")
    check = Lease.check
    versions: list[int] = []

    def die_at_once(step: str) -> None:
        raise Crash("died")

    def late(self: Lease) -> None:
        check(self)
        if not versions:
            versions.append(0)
            monkeypatch.setattr("upriver.tables.lease.is_dead", lambda holder: True)
            with pytest.raises(UpriverError, match="died"):
                started(bucket, table, die_at_once).wait(PATIENCE)
            versions.append(DeltaTable(table).version())

    monkeypatch.setattr(Lease, "check", late)
    with pytest.raises(LeaseLost, match="nothing was committed"):
        caught_up(bucket, table)
    assert DeltaTable(table).version() == versions[1]
    caught_up(bucket, table)
    assert documents_of(table) == bucket.documents()


def test_a_writer_that_is_so_late_that_the_log_was_cleaned_up_commits_nothing(
    bucket: ModelledBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit of the version that it would make is there no more."""
    table = tmp_path / "documents"
    bucket.write(0, b"a", b"1")
    caught_up(bucket, table)
    bucket.write(0, b"a", b"2")
    check = Lease.check
    versions: list[int] = []

    def late(self: Lease) -> None:
        check(self)
        if not versions:
            versions.append(0)
            monkeypatch.setattr("upriver.tables.lease.is_dead", lambda holder: True)
            for number in range(3, 6):
                bucket.write(0, b"a", b"%d" % number)
                caught_up(bucket, table)
            compact(TablePlace.parse(table), seconds=0)
            versions.append(DeltaTable(table).version())

    monkeypatch.setattr(Lease, "check", late)
    with pytest.raises(LogMovedOn, match=r"stood still .*nothing was committed"):
        caught_up(bucket, table)
    log = table / "_delta_log"
    assert not (log / f"{2:020}.json").exists()
    assert DeltaTable(table).version() == versions[1]
    monkeypatch.undo()
    caught_up(bucket, table)
    assert documents_of(table) == bucket.documents()


def test_a_lease_that_has_ended_is_renewed_or_succeeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage.parse(tmp_path)
    monkeypatch.setattr(lease_module, "DURATION", -1.0)
    with held_lease(storage) as first:
        first.check()  # it has ended, and nobody has taken it: it is renewed
        with held_lease(storage) as second:
            assert (second.number, second.took_over) == (first.number + 1, True)
            with pytest.raises(LeaseLost, match=f"with lease {second.number}"):
                first.check()
    monkeypatch.undo()
    with held_lease(storage) as third:
        assert not third.took_over


def leased_elsewhere(until: float) -> dict[str, object]:
    return {"host": "another", "space": "", "pid": 1, "started": "1", "token": "", "until": until}


@pytest.fixture
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "DURATION", 0.2)
    monkeypatch.setattr(lease_module, "_RENEWED_AFTER", 0.05)


def lease_path(number: int) -> str:
    return f"_upriver/lease/{number:020}.json"


@pytest.mark.parametrize(
    "content",
    [
        json.dumps(leased_elsewhere(until=2.0**33)).encode(),
        json.dumps(leased_elsewhere(until=1.0)).encode(),
        b"[1,2]",
        b'{"pid": "1", "until": "x"}',
        b'{"pid": [], "space": 7}',
        b"{",
        b"[" * 100_000,
    ],
    ids=["ahead", "ended", "a list", "texts", "of odd types", "cut short", "deep"],
)
@pytest.mark.usefixtures("short_leases")
def test_a_lease_that_is_not_renewed_is_succeeded_whatever_it_says(
    tmp_path: Path, content: bytes
) -> None:
    storage = Storage.parse(tmp_path)
    storage.put(lease_path(7), content)
    began = time.monotonic()
    with held_lease(storage, wait=False) as lease:
        assert (lease.number, lease.took_over) == (8, True)
    assert time.monotonic() - began >= 0.2


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("ahead", [3600, -3600])
@pytest.mark.usefixtures("short_leases")
def test_a_lease_that_is_renewed_is_not_succeeded_whatever_its_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int, wait: bool
) -> None:
    ends = itertools.count(time.time() + ahead)
    monkeypatch.setattr(lease_module, "newest_lease", lambda _: (7, leased_elsewhere(next(ends))))
    with (
        pytest.raises(ConfigError, match="process 1 of another"),
        held_lease(Storage.parse(tmp_path), wait=wait),
    ):
        pass


def test_a_holder_in_another_pid_namespace_is_not_taken_for_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its host has the same name, and its process number is nobody's here."""
    storage = Storage.parse(tmp_path)
    monkeypatch.setattr(lease_module, "_RENEWED_AFTER", 0.05)
    with held_lease(storage) as held:
        monkeypatch.setattr(lease_module, "_process_space", lambda: "another")
        monkeypatch.setattr(lease_module, "_started", lambda pid: "")
        with (
            pytest.raises(ConfigError, match="another pipeline is running"),
            held_lease(storage, wait=False),
        ):
            pass
        held.check()


def test_a_lease_of_a_number_that_none_has_is_named(tmp_path: Path) -> None:
    storage = Storage.parse(tmp_path)
    storage.put(lease_path(10**20 - 1), b"{}")
    with pytest.raises(ConfigError, match=r"99999\.json is no lease .*: delete it"):
        held_lease(storage).__enter__()


def test_a_lease_is_lost_however_many_came_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage.parse(tmp_path)
    with held_lease(storage) as first:
        monkeypatch.setattr("upriver.tables.lease.is_dead", lambda holder: True)
        for _ in range(4):
            with held_lease(storage):
                pass
        with pytest.raises(LeaseLost, match=f"with lease {first.number + 4}"):
            first.check()


def test_a_change_log_has_every_change_once_after_crashes_and_rollbacks(
    bucket: ModelledBucket, tmp_path: Path
) -> None:
    table = tmp_path / "changes"
    dice = random.Random(SEED)
    options: dict[str, Any] = {
        "kind": "changelog",
        "compact_every": 2,
        "max_offsets_per_trigger": 7,
    }
    for number in range(20):
        changed(bucket, dice, 6)
        step = STEPS[number % len(STEPS)]

        def die(done: str, doomed: str = step) -> None:
            if done == doomed:
                raise Crash(f"died after {done}")

        try:
            started(bucket, table, die, **options).wait(PATIENCE)
        except UpriverError as problem:
            assert "died after" in str(problem)
    assert started(bucket, table, **options).wait(PATIENCE)
    rows = rows_of(table)
    names = [(row["vbucket"], row["branch"], row["seqno"], row["op"]) for row in rows]
    assert len(set(names)) == len(names)
    documents: dict[bytes, bytes] = {}
    for vbucket in range(VBUCKETS):
        mine = [row for row in rows if row["vbucket"] == vbucket]
        # a rollback row of a branch ends what earlier branches have above its seqno
        for row in sorted(mine, key=lambda row: row["seqno"]):
            later = [
                one["seqno"]
                for one in mine
                if one["op"] == "rollback" and one["branch"] > row["branch"]
            ]
            if row["op"] == "rollback" or row["seqno"] > min(later, default=row["seqno"]):
                continue
            documents.pop(row["key"], None)
            if row["op"] == "mutation":
                documents[row["key"]] = row["value"]
    assert documents == bucket.documents()


def test_what_a_successor_has_done_for_the_tables_of_collections_is_not_done_twice(
    bucket: ModelledBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "documents"
    options = {"table_per_collection": True}
    bucket.write(0, b"a", b"1")
    bucket.write(1, b"b", b"1")
    caught_up(bucket, table, **options)
    bucket.write(0, b"a", b"2")
    succeeded: list[str] = []

    def take_over(step: str) -> None:
        if step == "commit" and not succeeded:
            succeeded.append(step)
            monkeypatch.setattr("upriver.tables.lease.is_dead", lambda holder: True)
            bucket.write(0, b"a", b"3")
            caught_up(bucket, table, **options)

    assert started(bucket, table, take_over, **options).wait(PATIENCE)
    assert documents_of(table / "_default._default") == bucket.documents()
    bucket.write(0, b"a", b"4")
    caught_up(bucket, table, **options)
    assert documents_of(table / "_default._default") == bucket.documents()


def test_tables_of_collections_go_back_to_before_a_lease_was_taken_over(
    bucket: ModelledBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "documents"
    options = {"table_per_collection": True}
    bucket.write(0, b"a", b"1")
    caught_up(bucket, table, **options)
    bucket.write(0, b"b", b"1")
    point = bucket.high(0)

    def die(step: str) -> None:
        if step == "commit":
            raise Crash("died after commit")

    with monkeypatch.context() as patch:  # as a process that was killed
        patch.setattr(Lease, "release", lambda self: None)
        with pytest.raises(UpriverError, match="died after commit"):
            started(bucket, table, die, **options).wait(PATIENCE)
    monkeypatch.setattr(lease_module, "is_dead", lambda holder: True)
    bucket.write(0, b"c", b"lost")
    caught_up(bucket, table, **options)
    bucket.fail_over(0, point)
    caught_up(bucket, table, **options)
    assert (
        documents_of(table / "_default._default") == bucket.documents() == {b"a": b"1", b"b": b"1"}
    )


@pytest.mark.parametrize("step", ["read", "files"])
def test_what_the_first_batch_of_a_table_left_is_removed(
    bucket: ModelledBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """It fails before its tables have a log, or before a commit names them.

    The table of dead letters, which a batch fills as well, is one of them.
    """
    table = tmp_path / "documents"
    bucket.write(0, b"a", b'{"n":1}')
    bucket.write(0, b"bad", b"no JSON")
    strangers = table / "notes" / "part-00000.parquet"

    def die(done: str) -> None:
        if done == step:
            raise Crash(f"died after {done}")

    options = {"table_per_collection": True, "value_schema": "infer"}
    with pytest.raises(UpriverError, match=f"died after {step}"):
        started(bucket, table, die, **options).wait(PATIENCE)
    strangers.parent.mkdir()
    strangers.write_bytes(b"")
    other = DeltaTable.create(table / "other", pa.schema([("n", pa.int64())]))
    write_deltalake(other, pa.table({"n": [1]}), mode="append")

    def left() -> set[str]:
        return {
            path.parent.relative_to(table).as_posix()
            for path in table.rglob("*")
            if path.suffix in (".parquet", ".idx") and path.parent.name != "_delta_log"
        }

    made = {"_default._default", "_default._default/_upriver/index", "_upriver/dead_letters"}
    assert left() == {*made, "notes", "other"}
    monkeypatch.setattr(version_retention, "_IN_FLIGHT", timedelta(hours=1))
    compact(TablePlace(Storage.parse(table)), seconds=0.0)
    assert left() == {*made, "notes", "other"}  # a batch may be about to commit them
    monkeypatch.setattr(version_retention, "_IN_FLIGHT", timedelta(0))
    cared = compact(TablePlace(Storage.parse(table)), seconds=0.0)
    assert left() == {"notes", "other"}
    removed = {Path(one.path).name: one.vacuumed for one in cared}
    assert removed["_default._default"]
    assert removed["dead_letters"]
    caught_up(bucket, table, **options)
    assert [row["n"] for row in rows_of(table / "_default._default")] == [1, None]
    assert len(rows_of(table / "_upriver" / "dead_letters")) == 1


def test_a_second_writer_is_refused_by_name(tmp_path: Path) -> None:
    storage = Storage.parse(tmp_path)
    with (
        held_lease(storage) as lease,
        pytest.raises(ConfigError, match=f"process {os.getpid()} of .*, lease {lease.number}"),
        held_lease(storage),
    ):
        pass
    with held_lease(storage) as next_one:
        assert next_one.number == lease.number + 1
