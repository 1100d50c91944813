"""Replicas and branches: what a copy takes, and when a vbucket's history forks."""

from __future__ import annotations

from pathlib import Path

import pytest
from storekit import QUIET, Clock, dump, key, put

from upriver.errors import Status, StoreRefusal
from upriver.model import (
    MAX_FAILOVER_ENTRIES,
    FailoverLog,
    Snapshot,
    StreamOffset,
    VBucketState,
    rollback_point,
)
from upriver.store import (
    BeginSnapshot,
    Bucket,
    BucketSettings,
    ChangeRequest,
    DeleteDocument,
    Replicate,
    SetDocument,
    Store,
    SyncMode,
)
from upriver.wire import canonical


def frame(seqno: int, name: str = "k", value: bytes = b"v", *, vbucket: int = 0) -> bytes:
    return canonical.mutation(vbucket, seqno, seqno, seqno + 1000, 0, 0, 0, key(name), value)


@pytest.fixture
def replica(bucket: Bucket) -> Bucket:
    bucket.set_state(0, VBucketState.REPLICA)
    bucket.set_failover_log(0, FailoverLog.of((0xB, 5), (0xA, 0)))
    return bucket


def refusal(bucket: Bucket, change: ChangeRequest) -> Status:
    with pytest.raises(StoreRefusal) as refused:
        bucket.write(change)
    return refused.value.status


def fork_seqno(bucket: Bucket) -> int:
    return bucket.failover_log(0).newest.seqno


def test_a_new_vbucket_has_one_branch_from_0(bucket: Bucket) -> None:
    logs = [bucket.failover_log(vbucket) for vbucket in range(4)]
    assert [len(log) for log in logs] == [1] * 4
    assert {log.newest.seqno for log in logs} == {0}
    names = {log.newest.vbuuid for log in logs}
    assert len(names) == 4
    assert all(0 < name < 2**48 for name in names)


def test_replication_is_exact(replica: Bucket, store: Store) -> None:
    source = store.create_bucket("source", QUIET)
    for number in range(20):
        put(source, f"k{number % 7}", str(number))
    source.write(DeleteDocument(0, key("k3")))
    collection = source.create_collection(0, "c").id
    source.write(SetDocument(0, key("x", collection), b"", expiry=100, flags=9))
    with source.open_reader(0) as reader:
        replica.write(BeginSnapshot(0, reader.snapshot.start, reader.snapshot.end))
        while (chunk := reader.read(1)) is not None:
            replica.write(Replicate(0, chunk.frames))
    assert dump(replica) == dump(source)
    theirs, ours = source.vbucket_stats(0), replica.vbucket_stats(0)
    assert (ours.items, ours.tombstones) == (theirs.items, theirs.tombstones)
    assert ours.high_seqno == theirs.high_seqno
    assert replica.get(0, key("k1"), replica=True) == source.get(0, key("k1"))


def test_replicas_take_nothing_else(replica: Bucket) -> None:
    assert refusal(replica, SetDocument(0, key("k"), b"")) is Status.NOT_MY_VBUCKET
    assert refusal(replica, Replicate(1, frame(1, vbucket=1))) is Status.NOT_MY_VBUCKET
    assert refusal(replica, BeginSnapshot(1, 0, 1)) is Status.NOT_MY_VBUCKET


def test_order_and_range(replica: Bucket) -> None:
    assert refusal(replica, Replicate(0, frame(1))) is Status.RANGE
    assert refusal(replica, BeginSnapshot(0, 5, 4)) is Status.INVALID
    replica.write(BeginSnapshot(0, 1, 10))
    replica.write(Replicate(0, frame(4)))
    assert refusal(replica, Replicate(0, frame(4))) is Status.RANGE
    assert refusal(replica, Replicate(0, frame(3))) is Status.RANGE
    assert refusal(replica, Replicate(0, frame(11))) is Status.RANGE
    assert refusal(replica, BeginSnapshot(0, 1, 4)) is Status.RANGE
    replica.write(Replicate(0, frame(10)))
    assert replica.vbucket_stats(0).high_seqno == 10
    assert replica.vbucket_stats(0).items == 1


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"short",
        frame(1, vbucket=1),
        frame(1)[:-1],
        frame(1) + b"x",
        b"\x81" + frame(1)[1:],
        b"\x80\x62" + frame(1)[2:],
        frame(1)[:12] + b"\0\0\0\1" + frame(1)[16:],
        b"\x80\x5f" + frame(1)[2:],
    ],
)
def test_frames_that_are_not_canonical(replica: Bucket, wrong: bytes) -> None:
    replica.write(BeginSnapshot(0, 1, 10))
    assert refusal(replica, Replicate(0, wrong)) is Status.INVALID
    assert dump(replica) == []


def test_the_failover_log_of_a_replica_is_replaced(replica: Bucket, store: Store) -> None:
    log = FailoverLog.of((0xC, 9), (0xB, 5), (0xA, 0))
    replica.set_failover_log(0, log)
    assert replica.failover_log(0) == log
    replica.set_failover_log(0, FailoverLog.of((0xC, 9), (0, 7), (0xB, 12), (0xA, 0)))
    assert replica.failover_log(0) == FailoverLog.of((0xC, 9), (0xA, 0))
    with pytest.raises(StoreRefusal) as empty:
        replica.set_failover_log(0, FailoverLog(()))
    assert empty.value.status is Status.INVALID
    with pytest.raises(StoreRefusal) as active:
        replica.set_failover_log(1, log)
    assert active.value.status is Status.NOT_MY_VBUCKET
    replica.close()
    assert store.bucket("b").failover_log(0) == FailoverLog.of((0xC, 9), (0xA, 0))


def test_promotion_branches_at_the_end_of_the_last_whole_snapshot(replica: Bucket) -> None:
    replica.write(BeginSnapshot(0, 1, 6))
    replica.write_many([Replicate(0, frame(n, f"k{n}")) for n in range(1, 7)])
    replica.write(BeginSnapshot(0, 7, 12))
    replica.write_many([Replicate(0, frame(n, f"k{n}")) for n in range(7, 10)])
    assert replica.replica_snapshot(0) == Snapshot(7, 12)
    replica.set_state(0, VBucketState.ACTIVE)
    log = replica.failover_log(0)
    assert [entry.seqno for entry in log] == [6, 5, 0]
    assert [entry.vbuuid for entry in log][1:] == [0xB, 0xA]
    assert replica.vbucket_stats(0).high_seqno == 9
    assert put(replica, "new") == 10
    ahead = StreamOffset(0xB, 9, Snapshot(7, 12))
    assert rollback_point(log, ahead, high_seqno=10) == 6
    whole = StreamOffset(0xB, 6, Snapshot(6, 6))
    assert rollback_point(log, whole, high_seqno=10) is None


def test_promotion_after_a_whole_snapshot_branches_at_its_end(replica: Bucket) -> None:
    replica.write(BeginSnapshot(0, 1, 6))
    replica.write_many([Replicate(0, frame(n, f"k{n}")) for n in range(1, 7)])
    replica.set_state(0, VBucketState.ACTIVE)
    assert fork_seqno(replica) == 6


def test_a_takeover_keeps_the_branch(replica: Bucket) -> None:
    replica.write(BeginSnapshot(0, 1, 6))
    replica.write_many([Replicate(0, frame(n, f"k{n}")) for n in range(1, 7)])
    replica.set_state(0, VBucketState.PENDING)
    replica.set_state(0, VBucketState.ACTIVE, transfer=True)
    assert replica.failover_log(0) == FailoverLog.of((0xB, 5), (0xA, 0))


def test_other_changes_of_state_keep_the_branch(bucket: Bucket) -> None:
    put(bucket, "k")
    log = bucket.failover_log(0)
    bucket.set_state(0, VBucketState.ACTIVE)
    bucket.set_state(0, VBucketState.DEAD)
    bucket.set_state(0, VBucketState.REPLICA)
    assert bucket.failover_log(0) == log
    assert bucket.replica_snapshot(0) == Snapshot(1, 1)
    bucket.set_state(0, VBucketState.ACTIVE)
    assert [entry.seqno for entry in bucket.failover_log(0)] == [1, 0]


def test_the_log_has_a_limit(bucket: Bucket) -> None:
    for number in range(MAX_FAILOVER_ENTRIES + 5):
        put(bucket, f"k{number}")
        bucket.set_state(0, VBucketState.REPLICA)
        bucket.set_state(0, VBucketState.ACTIVE)
    assert len(bucket.failover_log(0)) == MAX_FAILOVER_ENTRIES
    assert fork_seqno(bucket) == MAX_FAILOVER_ENTRIES + 5


def test_states_are_kept(store: Store) -> None:
    settings = BucketSettings(
        vbuckets=4, maintenance_interval=0, initial_state=VBucketState.REPLICA
    )
    bucket = store.create_bucket("r", settings)
    bucket.set_state(1, VBucketState.ACTIVE)
    bucket.set_state(2, VBucketState.PENDING)
    bucket.set_state(3, VBucketState.DEAD)
    bucket.close()
    bucket = store.bucket("r")
    assert [bucket.state(vbucket) for vbucket in range(4)] == [
        VBucketState.REPLICA,
        VBucketState.ACTIVE,
        VBucketState.PENDING,
        VBucketState.DEAD,
    ]


def abandon(store: Store, bucket: Bucket) -> None:
    """Ends without the mark of a clean stop, as a crash would."""
    bucket._core._mark_session = lambda **_: None  # type: ignore[method-assign]
    store.close()


@pytest.mark.parametrize(
    ("durability", "clean", "branches"),
    [
        (SyncMode.DURABLE, True, 1),
        (SyncMode.DURABLE, False, 1),
        (SyncMode.RELAXED, True, 1),
        (SyncMode.RELAXED, False, 2),
    ],
)
def test_an_unclean_stop_branches_only_if_something_could_be_lost(
    tmp_path: Path, clock: Clock, durability: SyncMode, clean: bool, branches: int
) -> None:
    settings = BucketSettings(vbuckets=2, maintenance_interval=0, durability=durability)
    store = Store(tmp_path, wall=clock)
    bucket = store.create_bucket("b", settings)
    bucket.set_state(1, VBucketState.REPLICA)
    for number in range(3):
        put(bucket, f"k{number}")
    if clean:
        store.close()
    else:
        abandon(store, bucket)
    with Store(tmp_path, wall=clock) as store:
        bucket = store.bucket("b")
        assert len(bucket.failover_log(0)) == branches
        assert fork_seqno(bucket) == (3 if branches == 2 else 0)
        assert len(bucket.failover_log(1)) == 1
        assert bucket.verify() == []
