"""CAS values: near the time, never twice, never going back."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from storekit import QUIET, Clock, key

from upriver.model import Op
from upriver.store import SetDocument, Store, WithMeta
from upriver.store.writes.cas_clock import HybridClock


@given(st.lists(st.integers(-(10**6), 10**6), min_size=1, max_size=50))
def test_it_only_rises_however_the_wall_clock_jumps(steps: list[int]) -> None:
    wall = Clock()
    clock = HybridClock(wall)
    given = []
    for step in steps:
        wall.nanoseconds += step
        given.append(clock.next())
    assert given == sorted(set(given))


def test_it_follows_the_wall_clock_in_its_upper_bits() -> None:
    wall = Clock()
    clock = HybridClock(wall)
    assert clock.next() == wall.nanoseconds & ~0xFFFF
    assert clock.next() == (wall.nanoseconds & ~0xFFFF) + 1
    wall.advance(1)
    assert clock.next() == wall.nanoseconds & ~0xFFFF


def test_the_bound_is_asked_for_only_when_it_must_be_stored() -> None:
    wall = Clock()
    clock = HybridClock(wall)
    first = clock.next()
    bound = clock.new_bound()
    assert bound is not None
    assert bound > first
    clock.next()
    assert clock.new_bound() is None
    wall.advance(60)
    assert clock.next() > bound
    assert clock.new_bound() is not None


def test_it_does_not_go_back_over_restarts(tmp_path: Path) -> None:
    clock = Clock()
    last = 0
    for _ in range(4):
        with Store(tmp_path, wall=clock) as store:
            bucket = store.bucket("b") if store.buckets() else store.create_bucket("b", QUIET)
            cas = bucket.write(SetDocument(0, key("k"), b"")).cas
        assert cas > last
        last = cas
        clock.advance(-3600)


def test_it_follows_what_other_servers_gave_out(tmp_path: Path) -> None:
    clock = Clock()
    future = (clock.seconds + 10**6) * 10**9
    with Store(tmp_path, wall=clock) as store:
        bucket = store.create_bucket("b", QUIET)
        bucket.write(WithMeta(0, key("k"), Op.MUTATION, 1, future))
        assert bucket.write(SetDocument(0, key("j"), b"")).cas > future
    with Store(tmp_path, wall=clock) as store:
        assert store.bucket("b").write(SetDocument(0, key("j"), b"")).cas > future


def test_a_cas_that_is_no_time_does_not_take_the_clock_with_it(tmp_path: Path) -> None:
    clock = Clock()
    with Store(tmp_path, wall=clock) as store:
        bucket = store.create_bucket("b", QUIET)
        bucket.write(WithMeta(0, key("far"), Op.MUTATION, 1, 2**64 - 1, b"v"))
        assert bucket.get(0, key("far")).cas == 2**64 - 1
        done = bucket.write(SetDocument(0, key("near"), b"v"))
        assert done.cas & ~0xFFFF == clock.nanoseconds & ~0xFFFF
