"""The high seqno of each collection: what moves it, and what it survives."""

from __future__ import annotations

import pytest
from storekit import QUIET, Clock, dump, key, put

from upriver.model import VBucketState
from upriver.store import (
    Applied,
    BeginSnapshot,
    Bucket,
    DeleteDocument,
    Replicate,
    SetDocument,
    Store,
)
from upriver.store.writes.change_requests import ChangeRequest
from upriver.store.writes.operations import apply_all
from upriver.wire import canonical

DAY = 24 * 3600


def put_in(bucket: Bucket, collection: int, name: str) -> int:
    return bucket.write(SetDocument(0, key(name, collection), b"value")).seqno


def test_changes_and_events_move_their_own_collection(bucket: Bucket) -> None:
    assert bucket.collection_seqnos(0) == {}
    put(bucket, "a")
    new = bucket.create_collection(0, "new").id
    assert bucket.collection_seqnos(0) == {0: 1, new: 2}
    put_in(bucket, new, "b")
    bucket.write(DeleteDocument(0, key("b", new)))
    put(bucket, "c")
    assert bucket.collection_seqnos(0) == {0: 5, new: 4}
    assert bucket.collection_seqnos(1) == {new: 1}
    bucket.drop_collection(new)
    assert bucket.collection_seqnos(0) == {0: 5, new: 6}


def test_a_scope_is_no_collection(bucket: Bucket) -> None:
    put(bucket, "a")
    bucket.create_scope("s")
    assert bucket.vbucket_stats(0).high_seqno == 2
    assert bucket.collection_seqnos(0) == {0: 1}
    put(bucket, "b")
    assert bucket.collection_seqnos(0) == {0: 3}


def test_one_group_moves_many(bucket: Bucket) -> None:
    new = bucket.create_collection(0, "new").id
    changes = [SetDocument(0, key(f"{n}", new if n % 3 else 0), b"") for n in range(40)]
    assert all(isinstance(one, Applied) for one in bucket.write_many(changes))
    assert bucket.collection_seqnos(0) == {0: 41, new: 40}


def collection_with_a_purged_change(bucket: Bucket, clock: Clock) -> int:
    """Its newest change, a deletion, is gone; the default collection has one after it."""
    new = bucket.create_collection(0, "new").id
    put_in(bucket, new, "a")
    bucket.write(DeleteDocument(0, key("a", new)))
    put(bucket, "b")
    clock.advance(4 * DAY)
    bucket.compact()
    return new


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_keeps_what_purging_took(
    bucket: Bucket, clock: Clock, store: Store, *, clean: bool
) -> None:
    new = collection_with_a_purged_change(bucket, clock)
    assert [one.seqno for one in dump(bucket)] == [1, 4]
    assert bucket.collection_seqnos(0) == {0: 4, new: 3}
    if not clean:
        bucket._core._mark_session = lambda **_: None  # type: ignore[method-assign]
    bucket.close()
    assert store.bucket("b").collection_seqnos(0) == {0: 4, new: 3}


def test_going_back_lowers_only_what_is_above(bucket: Bucket) -> None:
    new, other = (bucket.create_collection(0, name).id for name in ("new", "other"))
    put_in(bucket, other, "o")
    put_in(bucket, new, "a")
    put(bucket, "b")
    put_in(bucket, new, "a")
    put(bucket, "b")
    assert bucket.collection_seqnos(0) == {0: 7, new: 6, other: 3}
    assert bucket.rollback(0, 6) == 6
    assert bucket.collection_seqnos(0) == {0: 5, new: 6, other: 3}
    assert bucket.rollback(0, 5) == 5  # brings the first version of "a" back
    assert bucket.collection_seqnos(0) == {0: 5, new: 4, other: 3}
    assert bucket.rollback(0, 4) == 4  # before the first change of the default collection
    assert bucket.collection_seqnos(0) == {new: 4, other: 3}
    put(bucket, "c")
    assert bucket.collection_seqnos(0) == {0: 5, new: 4, other: 3}


def test_going_back_knows_of_purged_changes(bucket: Bucket, clock: Clock, store: Store) -> None:
    new = collection_with_a_purged_change(bucket, clock)
    bucket.close()
    bucket = store.bucket("b")
    put_in(bucket, new, "c")
    assert bucket.collection_seqnos(0) == {0: 4, new: 5}
    assert bucket.rollback(0, 4) == 4
    assert bucket.collection_seqnos(0) == {0: 4, new: 3}
    assert bucket.verify() == []


def test_an_empty_vbucket_begins_anew(bucket: Bucket, clock: Clock) -> None:
    new = bucket.create_collection(0, "new").id
    put(bucket, "a")
    bucket.write(DeleteDocument(0, key("a")))
    put_in(bucket, new, "b")
    clock.advance(4 * DAY)
    bucket.compact()
    assert bucket.rollback(0, 0) == 0
    assert bucket.collection_seqnos(0) == {new: 1}
    put(bucket, "c")
    bucket.flush()
    assert bucket.collection_seqnos(0) == {new: 1}


def test_a_dropped_collection_is_erased_and_the_others_stay(bucket: Bucket) -> None:
    new = bucket.create_collection(0, "new").id
    put_in(bucket, new, "a")
    put(bucket, "b")
    bucket.drop_collection(new)
    bucket.compact()
    assert bucket.collection_seqnos(0) == {0: 3, new: 4}
    bucket.drop_collection(0)
    bucket.compact()
    assert bucket.collection_seqnos(0) == {0: 5, new: 4}


def test_a_replica_counts_what_it_receives(store: Store) -> None:
    active = store.create_bucket("active", QUIET)
    replica = store.create_bucket("replica", QUIET)
    replica.set_state(0, VBucketState.REPLICA)
    new = active.create_collection(0, "new").id
    frames = [
        canonical.mutation(0, 3, 1, 10, 0, 0, 0, key("a"), b"1"),
        canonical.mutation(0, 5, 1, 11, 0, 0, 0, key("b", new), b"2"),
        canonical.deletion(0, 9, 2, 12, 1, 0, key("a")),
    ]
    with active.open_reader(0) as reader:
        (created,) = reader
    begun = BeginSnapshot(0, 1, 9)
    changes: list[ChangeRequest] = [
        begun,
        *(Replicate(0, frame) for frame in (created.frames, *frames)),
    ]
    assert all(isinstance(one, Applied) for one in replica.write_many(changes))
    assert replica.collection_seqnos(0) == {0: 9, new: 5}
    assert replica.rollback(0, 6) == 6
    assert replica.collection_seqnos(0) == {0: 3, new: 5}
    assert replica.verify() == []


def test_a_group_that_fails_moves_nothing(bucket: Bucket) -> None:
    new = bucket.create_collection(0, "new").id
    put_in(bucket, new, "a")
    meanwhile = {}

    def fail() -> None:
        with bucket._core.change() as group:
            apply_all(group, [SetDocument(0, key("b"), b""), SetDocument(0, key("c", new), b"")])
            meanwhile.update(bucket.collection_seqnos(0))
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        fail()
    assert meanwhile == bucket.collection_seqnos(0) == {new: 2}
    put(bucket, "b")
    assert bucket.collection_seqnos(0) == {0: 3, new: 2}
