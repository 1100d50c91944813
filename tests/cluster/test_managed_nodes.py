"""A node that waits for its manager, the map that it is given, and points it can go back to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusterkit import VB, manager_talk, member_settings, renew
from serverkit import SECRET, users_file
from storekit import QUIET
from talk import Talk

from upriver.errors import Status, StoreRefusal
from upriver.model import NO_END, Op, VBucketState
from upriver.producer.bootstrap.cluster_config import ClusterConfig, NodeAddress, bucket_json
from upriver.producer.bootstrap.users import Role
from upriver.producer.keyvalue.durability_requirements import CopyNames, copy_names
from upriver.producer.server_settings import ServerSettings
from upriver.store import (
    BeginSnapshot,
    Bucket,
    ChangeRequest,
    EndSnapshot,
    Replicate,
    SetDocument,
    Store,
)
from upriver.testing import TemporaryProducer
from upriver.wire import canonical
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.protocol_enums import OpenFlag

pytestmark = pytest.mark.story

ACTIVE, REPLICA = VBucketState.ACTIVE, VBucketState.REPLICA


@pytest.fixture
def node(tmp_path: Path) -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=4, settings=member_settings(tmp_path)) as node:
        yield node


def given_map(rev: int = 1, config: bytes = b'{"rev":1}') -> kv.SetClusterConfig:
    return kv.SetClusterConfig(bucket="default", epoch=1, revision=rev, config=config)


def talk_to(node: TemporaryProducer, tmp_path: Path) -> Talk:
    """A connection of the node's manager, under whose lease the node is."""
    talk = manager_talk(node, tmp_path)
    renew(talk, renew(talk, 0))
    return talk


# ---- waiting for a manager ---------------------------------------------------------------


def test_documents_and_streams_wait_for_the_first_map(
    node: TemporaryProducer, tmp_path: Path
) -> None:
    node.bucket.write(SetDocument(VB, b"\0k", b"v"))
    with talk_to(node, tmp_path) as talk:
        for request in (
            kv.Get(vbucket=VB, key=b"k"),
            kv.Set(vbucket=VB, key=b"k", value=b"w"),
        ):
            assert talk.ask(request).status is Status.TEMPORARY_FAILURE
        assert talk.ask(kv.GetClusterConfig()).status is Status.NOT_FOUND
        assert talk.ask(kv.GetVBucket(vbucket=VB)).state is ACTIVE
        assert talk.ask(given_map()).status is Status.SUCCESS
        assert talk.ask(kv.GetClusterConfig()).value == b'{"rev":1}'
        assert talk.ask(kv.Get(vbucket=VB, key=b"k")).value == b"v"
        assert talk.ask(kv.Set(vbucket=VB, key=b"k", value=b"w")).status is Status.SUCCESS


def test_a_stream_waits_too(node: TemporaryProducer, tmp_path: Path) -> None:
    with talk_to(node, tmp_path) as talk:
        talk.open()
        request = m.StreamRequest(vbucket=VB, start=0, end=NO_END)
        assert talk.ask(request).status is Status.TEMPORARY_FAILURE
        talk.ask(given_map())
        assert talk.ask(request).status is Status.SUCCESS


def test_only_newer_maps_that_are_maps_are_taken(node: TemporaryProducer, tmp_path: Path) -> None:
    with talk_to(node, tmp_path) as talk:
        assert talk.ask(given_map(config=b"[1]")).status is Status.INVALID
        assert talk.ask(given_map(config=b"{")).status is Status.INVALID
        assert talk.ask(given_map(5, b'{"rev":5}')).status is Status.SUCCESS
        assert talk.ask(given_map(4)).status is Status.RANGE
        assert talk.ask(kv.GetClusterConfig(epoch=1, revision=4)).value == b'{"rev":5}'
        assert talk.ask(kv.GetClusterConfig(epoch=1, revision=5)).value == b""


def test_not_my_vbucket_comes_with_the_map_that_was_given(
    node: TemporaryProducer, tmp_path: Path
) -> None:
    node.bucket.set_state(VB, REPLICA)
    with talk_to(node, tmp_path) as talk:
        talk.ask(given_map(3, b'{"rev":3}'))
        answer = talk.ask(kv.Get(vbucket=VB, key=b"k"))
        assert (answer.status, answer.value) == (Status.NOT_MY_VBUCKET, b'{"rev":3}')


def test_only_who_may_administer_gives_maps_or_makes_a_consumer(tmp_path: Path) -> None:
    users = users_file(tmp_path, {"writer": (Role.WRITE_DATA, Role.READ_STREAM)})
    settings = ServerSettings(users=users, plain_without_tls=True)
    with TemporaryProducer(vbuckets=4, settings=settings) as node, Talk(node) as talk:
        who = kv.SaslAuth(mechanism="PLAIN", payload=b"\0writer\0" + SECRET.encode())
        assert talk.ask(who).status is Status.SUCCESS
        assert talk.ask(kv.SelectBucket(bucket="default")).status is Status.SUCCESS
        assert talk.ask(given_map()).status is Status.NO_ACCESS
        # nor has it write to replicas what nobody wrote
        assert talk.ask(m.AddStream(vbucket=VB)).status is Status.NO_ACCESS
        assert talk.open("c", OpenFlag.CONSUMER).status is Status.NO_ACCESS
        assert talk.open("p", OpenFlag.PRODUCER).status is Status.SUCCESS


# ---- copies by name ----------------------------------------------------------------------


def test_the_copies_of_a_vbucket_are_read_from_the_map() -> None:
    nodes = tuple(NodeAddress("h", port, uuid=f"n{port}") for port in (1, 2, 3))
    rows = ((0, 1, 2), (1, 0, -1), (2, -1, -1))
    told = ClusterConfig(rev=1, nodes=nodes, this_node=1, rows=rows, replicas=2)
    assert copy_names(bucket_json(told, "default")) == (
        CopyNames(frozenset({"n1", "n3"}), 1),
        CopyNames(frozenset({"n1"}), 1),
        CopyNames(frozenset({"n3"}), 1),
    )


@pytest.mark.parametrize("config", [b"", b"[]", b"{}", b'{"nodesExt":[{}]}', b"[" * 100_000])
def test_a_map_that_names_no_nodes_has_no_copies(config: bytes) -> None:
    assert copy_names(config) == ()


def test_a_map_of_nodes_without_names_says_nothing_of_copies() -> None:
    told = ClusterConfig(rev=1, nodes=(NodeAddress("h", 1),), rows=((0,),))
    assert "nodeUUID" not in json.dumps(json.loads(bucket_json(told, "default")))
    assert copy_names(bucket_json(told, "default")) == ()


# ---- where a copy is consistent ----------------------------------------------------------


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    store = Store(tmp_path / "store")
    bucket = store.create_bucket("default", QUIET)
    bucket.set_state(VB, REPLICA)
    yield bucket
    store.close()


def receive(bucket: Bucket, start: int, end: int, *seqnos: int) -> None:
    changes: list[ChangeRequest] = [BeginSnapshot(VB, start, end)]
    for seqno in seqnos:
        key = b"\0k%d" % seqno
        frame = canonical.mutation(VB, seqno, 1, seqno, 0, 0, 0, key, b"v")
        changes.append(Replicate(VB, frame))
    assert not [x for x in bucket.write_many(changes) if isinstance(x, StoreRefusal)]


def points(bucket: Bucket, last: int) -> list[int]:
    return [bucket.consistent_until(VB, seqno) for seqno in range(last + 1)]


def test_a_replica_is_consistent_at_the_ends_of_its_snapshots(bucket: Bucket) -> None:
    receive(bucket, 0, 2, 1, 2)
    receive(bucket, 3, 5, 4, 5)
    receive(bucket, 6, 9, 7)  # of which the end has not come
    assert points(bucket, 8) == [0, 0, 2, 2, 2, 5, 5, 5, 5]


def test_an_active_copy_was_consistent_all_the_time_it_was_active(bucket: Bucket) -> None:
    receive(bucket, 0, 2, 1, 2)
    receive(bucket, 3, 9, 4)
    bucket.set_state(VB, ACTIVE)  # in the middle of a snapshot
    assert bucket.failover_log(VB).newest.seqno == 2
    for _ in range(3):
        bucket.write(SetDocument(VB, b"\0x", b"v"))
    assert points(bucket, 8) == [0, 0, 2, 2, 4, 5, 6, 7, 7]
    bucket.set_state(VB, REPLICA)
    receive(bucket, 8, 9, 8, 9)
    assert points(bucket, 9) == [0, 0, 2, 2, 4, 5, 6, 7, 7, 9]
    assert bucket.rollback(VB, bucket.consistent_until(VB, 6)) == 6
    assert points(bucket, 9) == [0, 0, 2, 2, 4, 5, 6, 6, 6, 6]


def test_a_snapshot_without_an_end_is_whole_when_that_is_said(bucket: Bucket) -> None:
    receive(bucket, 0, NO_END, 1, 2)
    assert bucket.consistent_until(VB, 2) == 0
    bucket.write_many([EndSnapshot(VB)])
    assert bucket.consistent_until(VB, 2) == 2


def test_points_survive_a_restart_and_stay_few(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    bucket = store.create_bucket("default", QUIET)
    bucket.set_state(VB, REPLICA)
    for seqno in range(1, 200):
        receive(bucket, seqno, seqno, seqno)
    before = points(bucket, 199)
    store.close()
    store = Store(tmp_path / "store")
    bucket = store.bucket("default")
    assert points(bucket, 199) == before
    assert before[185:] == list(range(185, 200))  # the newest are all there
    assert all(0 <= point <= seqno for seqno, point in enumerate(before))
    assert len(set(before)) < 40
    store.close()


def test_writers_of_a_vbucket_can_be_held(bucket: Bucket) -> None:
    bucket.set_state(VB, ACTIVE)
    bucket.hold_writes(VB, held=True)
    with pytest.raises(StoreRefusal) as refused:
        bucket.write(SetDocument(VB, b"\0k", b"v"))
    assert refused.value.status is Status.TEMPORARY_FAILURE
    bucket.write(SetDocument(0, b"\0k", b"v"))
    bucket.hold_writes(VB, held=False)
    assert bucket.write(SetDocument(VB, b"\0k", b"v")).seqno == 1
    assert bucket.get(VB, b"\0k").op is Op.MUTATION
