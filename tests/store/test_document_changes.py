"""The operations of clients: what each does, and how each is refused."""

from __future__ import annotations

import pytest
from storekit import QUIET, Clock, dump, key, put, value

from upriver.errors import Status, StoreRefusal
from upriver.model import Op, VBucketState
from upriver.store import (
    AddDocument,
    AppendToDocument,
    Bucket,
    BucketSettings,
    ChangeRequest,
    Counter,
    DeleteDocument,
    PrependToDocument,
    RecordKind,
    ReplaceDocument,
    SetDocument,
    Store,
    TouchDocument,
    WithMeta,
)

K = key("k")


def refusal(bucket: Bucket, change: ChangeRequest) -> Status:
    before = [dump(bucket, vbucket) for vbucket in range(4)]
    with pytest.raises(StoreRefusal) as refused:
        bucket.write(change)
    assert [dump(bucket, vbucket) for vbucket in range(4)] == before
    return refused.value.status


def test_every_change_takes_the_next_seqno_and_a_higher_cas(bucket: Bucket) -> None:
    done = [
        bucket.write(change)
        for change in (
            SetDocument(1, K, b"1", flags=7, datatype=1),
            ReplaceDocument(1, K, b"2"),
            AppendToDocument(1, K, b"0"),
            Counter(1, K, 5),
            TouchDocument(1, K, 100),
            DeleteDocument(1, K),
            AddDocument(1, K, b"new"),
        )
    ]
    assert [one.seqno for one in done] == [1, 2, 3, 4, 5, 6, 7]
    assert [one.cas for one in done] == sorted({one.cas for one in done})
    document = bucket.get(1, K)
    assert (document.seqno, document.rev, document.cas) == (7, 7, done[-1].cas)
    assert bucket.vbucket_stats(0).high_seqno == 0


def test_set_keeps_flags_datatype_and_value(bucket: Bucket) -> None:
    done = bucket.write(SetDocument(2, K, b"{}", flags=0xDEADBEEF, datatype=1))
    document = bucket.get(2, K)
    assert document == (
        Op.MUTATION, 2, 1, 1, done.cas, 0xDEADBEEF, 0, 1, 0, b"k", b"{}",
    )  # fmt: skip


def test_conditions_on_existence(bucket: Bucket) -> None:
    assert refusal(bucket, ReplaceDocument(0, K, b"")) is Status.NOT_FOUND
    assert refusal(bucket, DeleteDocument(0, K)) is Status.NOT_FOUND
    assert refusal(bucket, TouchDocument(0, K, 1)) is Status.NOT_FOUND
    assert refusal(bucket, AppendToDocument(0, K, b"x")) is Status.NOT_STORED
    assert refusal(bucket, PrependToDocument(0, K, b"x")) is Status.NOT_STORED
    assert refusal(bucket, Counter(0, K, 1)) is Status.NOT_FOUND
    put(bucket, "k")
    assert refusal(bucket, AddDocument(0, K, b"")) is Status.EXISTS
    bucket.write(DeleteDocument(0, K))
    assert refusal(bucket, DeleteDocument(0, K)) is Status.NOT_FOUND
    with pytest.raises(StoreRefusal) as missing:
        bucket.get(0, K)
    assert missing.value.status is Status.NOT_FOUND


def test_conditions_on_cas(bucket: Bucket) -> None:
    assert refusal(bucket, SetDocument(0, K, b"", cas=1)) is Status.NOT_FOUND
    cas = bucket.write(SetDocument(0, K, b"1")).cas
    for change in (
        SetDocument(0, K, b"", cas=cas + 1),
        ReplaceDocument(0, K, b"", cas=cas + 1),
        AppendToDocument(0, K, b"", cas=cas + 1),
        Counter(0, K, 1, cas=cas + 1),
        DeleteDocument(0, K, cas=cas + 1),
    ):
        assert refusal(bucket, change) is Status.EXISTS
    cas = bucket.write(SetDocument(0, K, b"2", cas=cas)).cas
    cas = bucket.write(Counter(0, K, 1, cas=cas)).cas
    bucket.write(DeleteDocument(0, K, cas=cas))


def test_append_and_prepend_keep_the_rest(bucket: Bucket) -> None:
    bucket.write(SetDocument(0, K, b"b", flags=3, expiry=500, datatype=1))
    bucket.write(AppendToDocument(0, K, b"c"))
    bucket.write(PrependToDocument(0, K, b"a"))
    document = bucket.get(0, K)
    assert (document.value, document.flags, document.datatype) == (b"abc", 3, 0)
    assert document.time == 1_700_000_500


def test_counters(bucket: Bucket) -> None:
    assert bucket.write(Counter(0, K, 5, initial=10)).number == 10
    assert bucket.write(Counter(0, K, 5)).number == 15
    assert bucket.write(Counter(0, K, -20)).number == 0
    assert value(bucket, "k") == "0"
    put(bucket, "k", str(2**64 - 1))
    assert bucket.write(Counter(0, K, 2)).number == 1
    for wrong in ("x", "", "-1", "1.5", str(2**64)):
        put(bucket, "k", wrong)
        assert refusal(bucket, Counter(0, K, 1)) is Status.BAD_DELTA


def test_sizes(store: Store) -> None:
    bucket = store.create_bucket(
        "b", BucketSettings(vbuckets=4, maintenance_interval=0, max_value=10)
    )
    collection = bucket.create_collection(0, "c").id
    put(bucket, "x" * 250)
    bucket.write(SetDocument(0, key("x" * 246, collection), b""))
    assert refusal(bucket, SetDocument(0, key("x" * 251), b"")) is Status.INVALID
    assert refusal(bucket, SetDocument(0, key("x" * 247, collection), b"")) is Status.INVALID
    assert refusal(bucket, SetDocument(0, key(""), b"")) is Status.INVALID
    assert refusal(bucket, SetDocument(0, b"", b"")) is Status.INVALID
    assert refusal(bucket, SetDocument(0, b"\x80\x00k", b"")) is Status.INVALID
    bucket.write(SetDocument(0, K, b"0123456789"))
    assert refusal(bucket, SetDocument(0, K, b"0123456789a")) is Status.TOO_BIG
    assert refusal(bucket, AppendToDocument(0, K, b"a")) is Status.TOO_BIG
    assert refusal(bucket, SetDocument(0, K, b"", flags=2**32)) is Status.INVALID
    assert refusal(bucket, SetDocument(0, K, b"", flags=-1)) is Status.INVALID


def test_a_wrong_vbucket_or_state(bucket: Bucket) -> None:
    assert refusal(bucket, SetDocument(4, K, b"")) is Status.NOT_MY_VBUCKET
    assert refusal(bucket, SetDocument(-1, K, b"")) is Status.NOT_MY_VBUCKET
    for state in (VBucketState.REPLICA, VBucketState.PENDING, VBucketState.DEAD):
        bucket.set_state(1, state)
        assert refusal(bucket, SetDocument(1, K, b"")) is Status.NOT_MY_VBUCKET
        assert refusal(bucket, DeleteDocument(1, K)) is Status.NOT_MY_VBUCKET
        with pytest.raises(StoreRefusal) as refused:
            bucket.get(1, K)
        assert refused.value.status is Status.NOT_MY_VBUCKET


def test_refusals_do_not_hold_up_the_rest_of_a_group(bucket: Bucket) -> None:
    done = bucket.write_many(
        [
            SetDocument(0, K, b"1"),
            AddDocument(0, K, b"2"),
            SetDocument(0, key("j"), b"3"),
            SetDocument(9, K, b""),
            DeleteDocument(0, K),
        ]
    )
    assert [getattr(one, "seqno", None) for one in done] == [1, None, 2, None, 3]
    assert [getattr(one, "status", None) for one in done] == [
        None, Status.EXISTS, None, Status.NOT_MY_VBUCKET, None,
    ]  # fmt: skip
    assert [message.key for message in dump(bucket)] == [b"j", b"k"]


def test_a_group_sees_its_own_changes(bucket: Bucket) -> None:
    bucket.write_many([Counter(0, K, 1, initial=1)] + [Counter(0, K, 1)] * 99)
    assert value(bucket, "k") == "100"
    assert bucket.meta(0, K).rev == 100
    assert len(dump(bucket)) == 1
    assert bucket.stats().items == 1


def test_deleted_documents_leave_tombstones(bucket: Bucket, clock: Clock) -> None:
    put(bucket, "k")
    bucket.write(DeleteDocument(0, K))
    stats = bucket.vbucket_stats(0)
    assert (stats.items, stats.tombstones) == (0, 1)
    meta = bucket.meta(0, K)
    assert (meta.kind, meta.rev, meta.time) == (RecordKind.DELETION, 2, clock.seconds)
    put(bucket, "k")
    stats = bucket.vbucket_stats(0)
    assert (stats.items, stats.tombstones) == (1, 0)
    assert bucket.meta(0, K).rev == 3


def test_with_meta_the_higher_revision_stays(bucket: Bucket) -> None:
    bucket.write(WithMeta(0, K, Op.MUTATION, 5, 1000, b"theirs", flags=2, time=2_000_000_000))
    document = bucket.get(0, K)
    assert (document.rev, document.cas, document.flags, document.time) == (
        5,
        1000,
        2,
        2_000_000_000,
    )
    assert refusal(bucket, WithMeta(0, K, Op.MUTATION, 4, 2000, b"older")) is Status.EXISTS
    assert refusal(bucket, WithMeta(0, K, Op.MUTATION, 5, 999, b"older")) is Status.EXISTS
    bucket.write(WithMeta(0, K, Op.MUTATION, 4, 2000, b"older", force=True))
    assert value(bucket, "k") == "older"
    bucket.write(WithMeta(0, K, Op.DELETION, 9, 3000, time=1_700_000_001))
    assert bucket.meta(0, K).kind == RecordKind.DELETION
    bucket.write(WithMeta(0, K, Op.EXPIRATION, 10, 3001, time=1_700_000_002))
    assert bucket.meta(0, K).kind == RecordKind.EXPIRATION
    assert refusal(bucket, WithMeta(0, K, Op.MUTATION, 11, 0, b"", cas=5)) is Status.NOT_FOUND


def test_everything_is_there_after_opening_again(store: Store) -> None:
    bucket = store.create_bucket("c", QUIET)
    bucket.write_many([SetDocument(n % 4, key(f"k{n}"), b"%d" % n) for n in range(40)])
    bucket.write_many([DeleteDocument(n % 4, key(f"k{n}")) for n in range(0, 40, 3)])
    before = [dump(bucket, vbucket) for vbucket in range(4)]
    stats = [bucket.vbucket_stats(vbucket) for vbucket in range(4)]
    bucket.close()
    bucket = store.bucket("c")
    assert [dump(bucket, vbucket) for vbucket in range(4)] == before
    assert [bucket.vbucket_stats(vbucket) for vbucket in range(4)] == stats
    assert bucket.verify() == []
