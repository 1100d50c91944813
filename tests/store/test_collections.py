"""Scopes and collections: their manifest, their events in every vbucket, and their end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from storekit import QUIET, Clock, dump, key, put, value

from upriver.errors import Status, StoreRefusal
from upriver.model import VBucketState
from upriver.store import (
    BeginSnapshot,
    Bucket,
    Collection,
    Manifest,
    Replicate,
    Scope,
    SetDocument,
    Store,
)
from upriver.wire import messages as m


def refusal(action: object) -> Status:
    with pytest.raises(StoreRefusal) as refused:
        action()  # type: ignore[operator]
    return refused.value.status


def test_the_manifest_grows_by_steps(bucket: Bucket, store: Store) -> None:
    assert bucket.manifest == Manifest()
    scope = bucket.create_scope("s")
    first = bucket.create_collection(scope.id, "c")
    second = bucket.create_collection(0, "c", max_ttl=60)
    assert (scope, first, second) == (
        Scope(8, "s"), Collection(9, "c", 8), Collection(10, "c", 0, 60),
    )  # fmt: skip
    assert bucket.manifest.uid == 3
    bucket.drop_collection(first.id)
    assert bucket.create_collection(scope.id, "c").id == 11
    manifest = bucket.manifest
    bucket.close()
    assert store.bucket("b").manifest == manifest


def test_what_cannot_be(bucket: Bucket) -> None:
    bucket.create_scope("s")
    collection = bucket.create_collection(8, "c")
    before = bucket.manifest
    assert refusal(lambda: bucket.create_scope("s")) is Status.EXISTS
    assert refusal(lambda: bucket.create_collection(8, "c")) is Status.EXISTS
    assert refusal(lambda: bucket.create_collection(99, "c")) is Status.UNKNOWN_SCOPE
    assert refusal(lambda: bucket.drop_scope(99)) is Status.UNKNOWN_SCOPE
    assert refusal(lambda: bucket.drop_scope(0)) is Status.INVALID
    assert refusal(lambda: bucket.drop_collection(99)) is Status.UNKNOWN_COLLECTION
    assert refusal(lambda: bucket.create_collection(8, "d", max_ttl=-1)) is Status.INVALID
    for name in ("", "_x", "%x", "a b", "x" * 252, "é"):
        assert refusal(lambda name=name: bucket.create_scope(name)) is Status.INVALID
    assert bucket.manifest == before
    assert refusal(lambda: bucket.set_manifest(before)) is Status.RANGE
    del collection


def test_every_vbucket_has_the_events_in_order(bucket: Bucket) -> None:
    put(bucket, "a", vbucket=2)
    scope = bucket.create_scope("s")
    collection = bucket.create_collection(scope.id, "c", max_ttl=5)
    for vbucket in (0, 2):
        first = 1 if vbucket == 2 else 0
        assert dump(bucket, vbucket)[first:] == [
            m.ScopeCreated(vbucket=vbucket, seqno=first + 1, name="s", manifest_uid=1, scope=8),
            m.CollectionCreated(
                vbucket=vbucket,
                seqno=first + 2,
                name="c",
                manifest_uid=2,
                scope=8,
                collection=9,
                max_ttl=5,
            ),
        ]
    bucket.write(SetDocument(2, key("x", collection.id), b""))
    bucket.drop_scope(scope.id)
    bucket.compact()
    assert dump(bucket, 0) == [
        m.CollectionDropped(vbucket=0, seqno=3, manifest_uid=2, scope=8, collection=9),
        m.ScopeDropped(vbucket=0, seqno=4, manifest_uid=3, scope=8),
    ]
    assert [message.seqno for message in dump(bucket, 2)] == [1, 5, 6]
    assert bucket.stats().items == 1


def test_documents_belong_to_their_collection(bucket: Bucket) -> None:
    one = bucket.create_collection(0, "one").id
    two = bucket.create_collection(0, "two").id
    put(bucket, "k", "default")
    bucket.write(SetDocument(0, key("k", one), b"1"))
    bucket.write(SetDocument(0, key("k", two), b"2"))
    assert value(bucket, "k") == "default"
    assert [bucket.get(0, key("k", which)).value for which in (one, two)] == [b"1", b"2"]
    assert bucket.get(0, key("k", two)).collection == two


def test_unknown_and_dropped_collections_are_refused_at_once(bucket: Bucket) -> None:
    one = bucket.create_collection(0, "one").id
    bucket.write(SetDocument(0, key("k", one), b"1"))
    bucket.drop_collection(one)
    for collection in (one, 1, 7, 99, 2**32 - 1):
        change = SetDocument(0, key("k", collection), b"")
        assert refusal(lambda change=change: bucket.write(change)) is Status.UNKNOWN_COLLECTION
        where = key("k", collection)
        assert refusal(lambda where=where: bucket.get(0, where)) is Status.UNKNOWN_COLLECTION


def test_dropped_collections_are_erased(bucket: Bucket, store: Store) -> None:
    one = bucket.create_collection(0, "one").id
    two = bucket.create_collection(0, "two").id
    for which in (one, two):
        bucket.write_many([SetDocument(n % 4, key(f"k{n}", which), b"x") for n in range(6000)])
    bucket.drop_collection(one)
    assert bucket.stats().items == 12_000
    bucket.close()
    bucket = store.bucket("b")
    bucket.compact()
    assert bucket.stats().items == 6000
    assert bucket.verify() == []
    assert bucket.get(0, key("k0", two)).value == b"x"
    assert bucket.rollback(0, 3000) == 0


def test_the_default_collection_can_be_dropped(bucket: Bucket) -> None:
    put(bucket, "k")
    bucket.drop_collection(0)
    assert refusal(lambda: put(bucket, "k")) is Status.UNKNOWN_COLLECTION
    bucket.compact()
    assert bucket.stats().items == 0


def test_the_longest_life_of_documents(bucket: Bucket, clock: Clock) -> None:
    short = bucket.create_collection(0, "short", max_ttl=60).id
    now = clock.seconds
    for asked, stored in ((0, now + 60), (10, now + 10), (100, now + 60), (now + 9999, now + 60)):
        bucket.write(SetDocument(0, key("k", short), b"", expiry=asked))
        assert bucket.meta(0, key("k", short)).time == stored


def test_rolling_back_behind_a_drop_brings_the_documents_back(bucket: Bucket) -> None:
    """On a replica: its manifest follows the stream, not the bucket."""
    one = bucket.create_collection(0, "one").id
    bucket.write(SetDocument(0, key("k", one), b"1"))
    bucket.drop_collection(one)
    bucket.set_state(0, VBucketState.REPLICA)
    assert bucket.rollback(0, 2) == 2
    assert [message.seqno for message in dump(bucket)] == [1, 2]
    bucket.compact()
    assert [message.seqno for message in dump(bucket)] == [1, 2]
    assert bucket.verify() == []
    bucket.set_state(0, VBucketState.ACTIVE)
    assert isinstance(dump(bucket)[-1], m.CollectionDropped)
    bucket.compact()
    assert [message.seqno for message in dump(bucket)] == [3]


def test_an_active_vbucket_that_is_rolled_back_catches_up_with_the_manifest(
    bucket: Bucket,
) -> None:
    put(bucket, "a")
    one = bucket.create_collection(0, "one").id
    assert bucket.rollback(0, 1) == 1
    created = dump(bucket)[-1]
    assert isinstance(created, m.CollectionCreated)
    assert (created.seqno, created.collection) == (2, one)
    bucket.write(SetDocument(0, key("k", one), b""))
    assert bucket.rollback(0, 0) == 0
    assert [type(message) for message in dump(bucket)] == [m.CollectionCreated]


def test_a_promoted_replica_catches_up_with_the_manifest(bucket: Bucket) -> None:
    bucket.set_state(0, VBucketState.REPLICA)
    scope = bucket.create_scope("s").id
    one = bucket.create_collection(scope, "one").id
    two = bucket.create_collection(scope, "two").id
    assert dump(bucket) == []
    with bucket.open_reader(1) as reader:
        frames = reader.read(1), reader.read(1)
    moved = [frame.frames[:6] + b"\0\0" + frame.frames[8:] for frame in frames if frame]
    bucket.write(BeginSnapshot(0, 1, 2))
    bucket.write_many([Replicate(0, frame) for frame in moved])
    bucket.drop_collection(two)
    bucket.set_state(0, VBucketState.ACTIVE)
    known = [(type(message), message.seqno) for message in dump(bucket)]
    assert known == [(m.ScopeCreated, 1), (m.CollectionCreated, 2)]
    bucket.write(SetDocument(0, key("k", one), b""))


def test_a_manifest_from_elsewhere(bucket: Bucket) -> None:
    theirs = Manifest(
        uid=7,
        scopes=(Scope(0, "_default"), Scope(20, "s")),
        collections=(Collection(0, "_default", 0), Collection(21, "c", 20)),
        next_id=22,
    )
    bucket.set_manifest(theirs)
    assert bucket.manifest == theirs
    assert [type(message) for message in dump(bucket)] == [m.ScopeCreated, m.CollectionCreated]
    assert bucket.create_collection(20, "d").id == 22


def test_an_id_that_comes_back_brings_no_documents_back(bucket: Bucket) -> None:
    one = bucket.create_collection(0, "one")
    with_one = bucket.manifest
    bucket.write(SetDocument(0, key("k", one.id), b""))
    bucket.drop_collection(one.id)
    bucket.set_manifest(replace(with_one, uid=9, next_id=1))
    assert refusal(lambda: bucket.get(0, key("k", one.id))) is Status.NOT_FOUND
    assert bucket.manifest.next_id == with_one.next_id
    bucket.write(SetDocument(0, key("k", one.id), b"new"))
    bucket.compact()
    assert bucket.get(0, key("k", one.id)).value == b"new"


def test_dropped_documents_do_not_expire(bucket: Bucket, clock: Clock) -> None:
    one = bucket.create_collection(0, "one").id
    bucket.write(SetDocument(0, key("k", one), b"", expiry=1))
    bucket.drop_collection(one)
    clock.advance(5)
    bucket.expire()
    assert bucket.vbucket_stats(0).high_seqno == 3
    assert bucket.verify() == []


def test_flushing_a_bucket(bucket: Bucket, store: Store) -> None:
    one = bucket.create_collection(0, "one").id
    bucket.set_state(1, VBucketState.REPLICA)
    bucket.write_many([SetDocument(0, key(f"k{n}", one), b"x", expiry=50) for n in range(100)])
    cas = bucket.meta(0, key("k99", one)).cas
    logs = [bucket.failover_log(vbucket) for vbucket in range(4)]
    bucket.flush()
    assert bucket.stats().items == 0
    assert [bucket.vbucket_stats(vbucket).high_seqno for vbucket in range(4)] == [1, 0, 1, 1]
    for vbucket in range(4):
        log = bucket.failover_log(vbucket)
        assert [entry.seqno for entry in log] == [0]
        assert log.newest.vbuuid != logs[vbucket].newest.vbuuid
    assert bucket.verify() == []
    bucket.close()
    bucket = store.bucket("b", QUIET)
    assert [type(message) for message in dump(bucket)] == [m.CollectionCreated]
    assert bucket.write(SetDocument(0, key("k", one), b"")).cas > cas
