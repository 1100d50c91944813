"""A vbucket from a seqno on: in order, each key once, under one snapshot."""

from __future__ import annotations

import gc

import pytest
from storekit import dump, key, messages, put, split

from upriver.errors import Status, StoreClosed, StoreRefusal
from upriver.model import Snapshot
from upriver.store import Bucket, DeleteDocument, SetDocument
from upriver.wire import canonical
from upriver.wire import messages as m


def test_each_key_once_in_order(bucket: Bucket) -> None:
    for name in ("a", "b", "a", "c", "b", "d"):
        put(bucket, name)
    bucket.write(DeleteDocument(0, key("c")))
    read = dump(bucket)
    assert [(message.seqno, message.key) for message in read] == [
        (3, b"a"), (5, b"b"), (6, b"d"), (7, b"c"),
    ]  # fmt: skip
    kinds: list[type[m.Message]] = [m.Mutation, m.Mutation, m.Mutation, m.Deletion]
    assert [type(message) for message in read] == kinds


def test_from_a_seqno_on(bucket: Bucket) -> None:
    for number in range(10):
        put(bucket, f"k{number}")
        put(bucket, f"k{number}", vbucket=1)
    reader = bucket.open_reader(0, 7)
    assert reader.snapshot == Snapshot(8, 10)
    assert reader.from_disk
    assert [message.seqno for message in messages(reader)] == [8, 9, 10]
    empty = bucket.open_reader(0, 10)
    assert empty.snapshot == Snapshot(10, 10)
    assert empty.read() is None
    beyond = bucket.open_reader(0, 99)
    assert beyond.snapshot == Snapshot(99, 99)
    assert beyond.read() is None


def test_the_snapshot_holds_however_long_it_takes(bucket: Bucket) -> None:
    for number in range(100):
        put(bucket, f"k{number}", "old")
    reader = bucket.open_reader(0)
    first = reader.read(1)
    assert first is not None
    assert first.count == 1
    for number in range(100):
        put(bucket, f"k{number}", "new")
    bucket.write(DeleteDocument(0, key("k1")))
    bucket.compact()
    assert reader.snapshot == Snapshot(1, 100)
    rest = messages(reader)
    assert [message.seqno for message in rest] == list(range(2, 101))
    assert {message.value for message in rest} == {b"old"}
    assert [message.seqno for message in dump(bucket)][-1] == 201


def test_chunks_are_whole_frames_of_about_the_size_asked_for(bucket: Bucket) -> None:
    bucket.write_many([SetDocument(0, key(f"k{n:03}"), b"x" * 100) for n in range(100)])
    size = len(canonical.mutation(0, 1, 1, 1, 0, 0, 0, key("k000"), b"x" * 100))
    with bucket.open_reader(0) as reader:
        chunk = reader.read(size * 3 - 1)
        assert chunk is not None
        assert (chunk.count, chunk.last_seqno, len(chunk.frames)) == (3, 3, 3 * size)
        assert reader.position == 3
        one = reader.read(1)
        assert one is not None
        assert (one.count, one.last_seqno) == (1, 4)
        rest = reader.read(10**6)
        assert rest is not None
        assert (rest.count, rest.last_seqno) == (96, 100)
        assert reader.read() is None
        assert reader.read() is None
    assert len(split(rest.frames)) == 96


def test_stored_frames_have_no_opaque(bucket: Bucket) -> None:
    put(bucket, "k")
    with bucket.open_reader(0) as reader:
        chunk = reader.read()
    assert chunk is not None
    assert chunk.frames[canonical.OPAQUE_AT : canonical.OPAQUE_AT + 4] == bytes(4)


def test_a_closed_reader_says_so(bucket: Bucket) -> None:
    put(bucket, "k")
    reader = bucket.open_reader(0)
    reader.close()
    reader.close()
    with pytest.raises(StoreClosed):
        reader.read()


def test_a_reader_that_is_dropped_lets_go(bucket: Bucket) -> None:
    readers = [bucket.open_reader(0) for _ in range(5)]
    assert bucket.stats().readers == 5
    del readers
    gc.collect()
    assert bucket.stats().readers == 0


def test_an_unknown_vbucket(bucket: Bucket) -> None:
    with pytest.raises(StoreRefusal) as refused:
        bucket.open_reader(4)
    assert refused.value.status is Status.NOT_MY_VBUCKET
