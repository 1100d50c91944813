"""What is prepared is stored, and neither read nor scanned before it commits."""

from __future__ import annotations

import pytest
from storekit import key, put, value

from upriver.errors import Status, StoreRefusal
from upriver.model import VBucketState
from upriver.store import (
    AbortPrepared,
    Bucket,
    BucketSettings,
    CommitPrepared,
    Completion,
    CompletionKind,
    DeleteDocument,
    KeyRange,
    PrepareWrite,
    SetDocument,
    Store,
)


@pytest.fixture
def bucket(store: Store) -> Bucket:
    return store.create_bucket("b", BucketSettings(vbuckets=2, maintenance_interval=0))


def prepare(bucket: Bucket, name: str, content: str = "new") -> int:
    write = SetDocument(0, key(name), content.encode())
    return bucket.write(PrepareWrite(0, write, 1)).seqno


def scanned(bucket: Bucket) -> list[bytes]:
    return [found.key for found in bucket.open_scan(0, 0, KeyRange()).read(100)[0]]


def test_a_prepare_is_neither_read_nor_scanned(bucket: Bucket) -> None:
    put(bucket, "a", "old")
    first, second = prepare(bucket, "a"), prepare(bucket, "b")
    assert value(bucket, "a") == "old"
    assert scanned(bucket) == [b"a"]
    bucket.write(CommitPrepared(0, key("a"), first))
    bucket.write(AbortPrepared(0, key("b"), second))
    assert value(bucket, "a") == "new"
    assert scanned(bucket) == [b"a"]
    assert bucket.stats().items == 1


def test_only_what_is_prepared_is_completed(bucket: Bucket) -> None:
    seqno = prepare(bucket, "a")
    for change in (
        CommitPrepared(0, key("a"), seqno + 1),
        AbortPrepared(0, key("b"), seqno),
        CommitPrepared(1, key("a"), seqno),
    ):
        with pytest.raises(StoreRefusal):
            bucket.write(change)
    bucket.write(CommitPrepared(0, key("a"), seqno))
    with pytest.raises(StoreRefusal):
        bucket.write(CommitPrepared(0, key("a"), seqno))


def test_what_cannot_be_written_is_not_prepared(bucket: Bucket) -> None:
    with pytest.raises(StoreRefusal) as refused:
        bucket.write(PrepareWrite(0, DeleteDocument(0, key("a")), 1))
    assert refused.value.status is Status.NOT_FOUND
    assert bucket.vbucket_stats(0).high_seqno == 0


def test_what_became_of_a_prepare(bucket: Bucket) -> None:
    first, second, third = (prepare(bucket, name) for name in "abc")
    bucket.write(CommitPrepared(0, key("a"), first))
    bucket.write(AbortPrepared(0, key("b"), second))
    assert bucket.completion(0, key("a"), first) == Completion(CompletionKind.COMMITTED, 4)
    assert bucket.completion(0, key("b"), second) == Completion(CompletionKind.ABORTED, 5)
    assert bucket.completion(0, key("c"), third).kind is CompletionKind.PENDING
    put(bucket, "a", "over it")
    assert bucket.completion(0, key("a"), first).kind is CompletionKind.UNKNOWN


def test_the_seqnos_of_durable_writes(bucket: Bucket) -> None:
    put(bucket, "a")
    seqno = prepare(bucket, "b")
    stats = bucket.vbucket_stats(0)
    assert (stats.high_seqno, stats.visible_seqno) == (2, 1)
    assert (stats.high_prepared_seqno, stats.high_completed_seqno) == (2, 0)
    bucket.write(CommitPrepared(0, key("b"), seqno))
    stats = bucket.vbucket_stats(0)
    assert (stats.high_seqno, stats.visible_seqno) == (3, 3)
    assert (stats.high_prepared_seqno, stats.high_completed_seqno) == (2, 2)


def test_a_new_active_copy_does_not_show_what_may_have_been_committed(bucket: Bucket) -> None:
    put(bucket, "a", "old")
    prepare(bucket, "a")
    bucket.set_state(0, VBucketState.REPLICA)
    assert bucket.get(0, key("a"), replica=True).value == b"old"
    bucket.set_state(0, VBucketState.ACTIVE)
    with pytest.raises(StoreRefusal) as refused:
        value(bucket, "a")
    assert refused.value.status is Status.SYNC_WRITE_RECOMMIT_IN_PROGRESS
