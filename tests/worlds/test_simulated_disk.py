"""The simulated twin of RocksDB: what survives, what is lost, and that it answers like RocksDB."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from upriver.errors import StoreClosed, StoreDamaged, StoreFull
from upriver.store.rocksdb import Batch, Database
from worlds.disk import SimulatedDisk

PATH = Path("/simulated")


def batch(**entries: bytes | None) -> Batch:
    made = Batch()
    made.meta.update({name.encode(): value for name, value in entries.items()})
    return made


def opened(disk: SimulatedDisk) -> Database:
    return disk.database(PATH, create=not disk.is_formatted)


def test_a_killed_process_loses_nothing_that_was_written() -> None:
    disk = SimulatedDisk(random.Random(1))
    database = opened(disk)
    database.write(batch(a=b"1"), sync=True)
    database.write(batch(b=b"2"), sync=False)
    disk.detach()
    with pytest.raises(StoreClosed):
        database.write(batch(c=b"3"), sync=True)
    again = opened(disk)
    assert list(again.meta.scan((b"a", b"z"))) == [(b"a", b"1"), (b"b", b"2")]


def test_a_power_failure_loses_the_newest_of_what_was_not_synced() -> None:
    kept = set()
    for seed in range(20):
        disk = SimulatedDisk(random.Random(seed))
        database = opened(disk)
        database.write(batch(a=b"1"), sync=True)
        database.write(batch(b=b"2"), sync=False)
        database.write(batch(c=b"3"), sync=False)
        disk.lose_power()
        kept.add(tuple(key for key, _ in opened(disk).meta.scan((b"a", b"z"))))
    assert kept == {(b"a",), (b"a", b"b"), (b"a", b"b", b"c")}


def test_a_full_disk_may_keep_what_it_refused() -> None:
    found = set()
    for seed in range(20):
        disk = SimulatedDisk(random.Random(seed))
        database = opened(disk)
        disk.full = True
        with pytest.raises(StoreFull):
            database.write(batch(a=b"1"), sync=True)
        with pytest.raises(StoreFull):
            database.require_room()
        assert database.meta.get(b"a") is None
        disk.full = False
        database.reopen()
        found.add(database.meta.get(b"a"))
    assert found == {None, b"1"}


def test_an_empty_disk_has_no_bucket() -> None:
    disk = SimulatedDisk(random.Random(1))
    opened(disk).write(batch(a=b"1"), sync=True)
    disk.replace()
    assert not disk.is_formatted
    with pytest.raises(StoreDamaged):
        disk.database(PATH, create=False)


def test_it_answers_like_rocksdb(tmp_path: Path) -> None:
    """The same random batches on both give the same entries, ranges and frozen views."""
    chance = random.Random(5)
    real = Database(
        tmp_path / "data", create=True, write_memory=1 << 20, read_memory=1 << 20, lenient=False
    )
    twin = opened(SimulatedDisk(random.Random(1)))
    names = [b"%02d" % number for number in range(30)]
    frozen = []
    for number in range(60):
        entries = {
            chance.choice(names): None if chance.random() < 0.3 else b"%d" % number
            for _ in range(chance.randint(1, 6))
        }
        bounds = tuple(sorted(chance.sample(names, 2)))
        ranged = chance.random() < 0.2
        for database in (real, twin):
            made = Batch()
            made.seqnos.update(entries)
            if ranged:
                made.delete_range(database.seqnos, (bounds[0], bounds[1]))
            database.write(made, sync=chance.random() < 0.5)
        span = (names[0], b"99")
        assert list(real.seqnos.scan(span)) == list(twin.seqnos.scan(span))
        assert list(real.seqnos.scan_back(span)) == list(twin.seqnos.scan_back(span))
        assert real.seqnos.last(span) == twin.seqnos.last(span)
        assert real.seqnos.get_many(names) == twin.seqnos.get_many(names)
        if number % 10 == 0:
            frozen.append((real.freeze(span), twin.freeze(span)))
    for one, other in frozen:
        assert (list(one.values), one.last) == (list(other.values), other.last)
    del frozen, one, other
    real.close()
