"""A node of a cluster: whose orders it obeys, and until when it answers writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from clusterkit import (
    CLUSTER,
    NODE,
    VB,
    high,
    manager_talk,
    member_settings,
    renew,
    scram,
    sign_in,
    token,
)
from talk import Talk
from waiting import until

from upriver.consumer.transport.access import Access
from upriver.errors import ConfigError, Status
from upriver.model import NO_END, VBucketState
from upriver.producer.bootstrap.cluster_config import ClusterConfig, NodeAddress, bucket_json
from upriver.producer.write_lease import MANAGER, NodeIdentity, NodeLease
from upriver.store import Bucket, SetDocument
from upriver.testing import TemporaryProducer
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp
from upriver.wire.frameinfo import Durability
from upriver.wire.protocol_enums import DurabilityLevel, Feature, OpenFlag, StreamFlag

ACTIVE, DEAD = VBucketState.ACTIVE, VBucketState.DEAD
SECOND = 1_000_000_000


@pytest.fixture
def node(tmp_path: Path) -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=4, settings=member_settings(tmp_path)) as node:
        yield node


def stranger(node: TemporaryProducer) -> Talk:
    """Anybody; the cluster has no users, so they may do everything but what is the manager's."""
    talk = Talk(node)
    talk.hello(Feature.SELECT_BUCKET, Feature.ALT_REQUEST)
    talk.ask(kv.SelectBucket(bucket="default"))
    return talk


def has_more(bucket: Bucket, seqno: int) -> bool:
    return high(bucket) > seqno


def is_waited_for(node: TemporaryProducer) -> bool:
    return any(one._waiting.busy for one in node.producer.server.connections)


def give_map(talk: Talk, epoch: int = 1) -> Any:
    nodes = tuple(NodeAddress("127.0.0.1", port, uuid=f"n{port}") for port in (1, 2))
    told = ClusterConfig(rev=1, nodes=nodes, rows=((0, 1),) * 4, replicas=1)
    config = bucket_json(told, "default")
    return talk.ask(kv.SetClusterConfig(bucket="default", epoch=epoch, revision=1, config=config))


# ---- the wire ----------------------------------------------------------------------------


def test_the_token_is_laid_out_as_on_real_servers() -> None:
    packet = Dcp().encode(kv.SetCtrlToken(token=0x0102030405060708, opaque=0xDEADBEEF))
    assert packet == bytes.fromhex(
        "80f40000 08000000 00000008 deadbeef 0000000000000000 0102030405060708"
    )
    assert Dcp().decode(packet) == kv.SetCtrlToken(token=0x0102030405060708, opaque=0xDEADBEEF)


# ---- orders ------------------------------------------------------------------------------

ORDERS = [
    kv.SetVBucket(vbucket=VB, state=DEAD),
    kv.DeleteVBucket(vbucket=VB),
    kv.SetClusterConfig(bucket="default", epoch=9, revision=9, config=b"{}"),
    m.AddStream(vbucket=VB),
    m.Open(name="c", flags=OpenFlag.CONSUMER),
    token(0),
]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: type(order).__name__)
def test_only_the_manager_gives_orders(node: TemporaryProducer, order: m.Request) -> None:
    with stranger(node) as talk:
        assert talk.ask(order).status is Status.NO_ACCESS
    assert node.bucket.state(VB) is ACTIVE


def test_only_the_manager_takes_a_vbucket_over(node: TemporaryProducer, tmp_path: Path) -> None:
    with manager_talk(node, tmp_path) as manager:
        give_map(manager)
    with stranger(node) as talk:
        talk.open()
        request = m.StreamRequest(vbucket=VB, start=0, end=NO_END, flags=StreamFlag.TAKEOVER)
        assert talk.ask(request).status is Status.NO_ACCESS


@pytest.mark.parametrize("password", ["password", "guessed"])
def test_nobody_is_the_manager_without_the_password(node: TemporaryProducer, password: str) -> None:
    """The first one is what an open server accepts from everybody else."""
    with Talk(node) as talk:
        _, final = scram(talk, MANAGER, password)
        assert final.status is Status.AUTH_ERROR
    with Talk(node) as talk:  # others are let in as ever
        sign_in(talk, Access(user="anybody", password="password"))
        assert talk.ask(kv.SelectBucket(bucket="default")).status is Status.SUCCESS


def test_another_node_or_cluster_is_refused(node: TemporaryProducer, tmp_path: Path) -> None:
    with manager_talk(node, tmp_path) as talk:
        for meant in (token(0, node="n2"), token(0, cluster="another")):
            answer = talk.ask(meant)
            assert answer.status is Status.NO_ACCESS
            assert f"node {NODE} of the cluster {CLUSTER}".encode() in answer.value
        moved = {"cluster": CLUSTER, "node": NODE, "ticket": 0, "lock": "another"}
        answer = talk.ask(kv.SetCtrlToken(token=9, value=json.dumps(moved).encode()))
        assert answer.status is Status.NO_ACCESS
        for broken in (b"", b"[]", b'{"cluster":1}', b"[" * 10_000):
            assert talk.ask(kv.SetCtrlToken(token=1, value=broken)).status is Status.INVALID


def test_a_server_of_its_own_has_no_manager() -> None:
    with TemporaryProducer(vbuckets=4) as server, stranger(server) as talk:
        assert talk.ask(token(0)).status is Status.NOT_SUPPORTED
        assert talk.ask(kv.SetVBucket(vbucket=VB, state=DEAD)).status is Status.SUCCESS


# ---- epochs ------------------------------------------------------------------------------


def test_a_newer_epoch_ends_the_connections_of_the_older(
    node: TemporaryProducer, tmp_path: Path
) -> None:
    with manager_talk(node, tmp_path, epoch=3) as older:
        assert older.ask(kv.SetVBucket(vbucket=VB, state=ACTIVE)).status is Status.SUCCESS
        with manager_talk(node, tmp_path, epoch=4) as newer:
            assert older.socket.recv(1) == b""
            assert newer.ask(kv.SetVBucket(vbucket=VB, state=ACTIVE)).status is Status.SUCCESS
        with manager_talk(node, tmp_path, epoch=4) as again:
            assert again.ask(token(0, epoch=3)).status is Status.EXISTS


def test_an_older_epoch_is_not_obeyed_even_after_a_restart(
    node: TemporaryProducer, tmp_path: Path
) -> None:
    with manager_talk(node, tmp_path, epoch=7):
        pass
    node.restart()
    with manager_talk(node, tmp_path, epoch=7) as talk:
        assert talk.ask(token(0, epoch=6)).status is Status.EXISTS
    with Talk(node) as talk:  # and not before it has said its epoch
        talk.hello(Feature.SELECT_BUCKET)
        sign_in(talk, Access(user=MANAGER, password=password(tmp_path)))
        talk.ask(kv.SelectBucket(bucket="default"))
        assert talk.ask(kv.SetVBucket(vbucket=VB, state=DEAD)).status is Status.EXISTS


def password(directory: Path) -> str:
    return str(json.loads((directory / "secret.json").read_text())["password"])


def test_an_epoch_that_cannot_be_read_is_no_epoch(tmp_path: Path) -> None:
    file = tmp_path / "epoch"
    file.write_text("-3")
    with pytest.raises(ConfigError, match="cannot be read: it says"):
        NodeLease(NodeIdentity(cluster="c", node="n", lease=1, epoch_file=file))


# ---- leases ------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 100 * SECOND

    def __call__(self) -> int:
        return self.now


def test_a_lease_counts_from_the_ticket_and_not_from_its_return() -> None:
    clock = Clock()
    membership = NodeLease(NodeIdentity(cluster="c", node="n", lease=10), now=clock)
    first = membership.renew(1, 0)
    assert not membership.leased
    clock.now += 4 * SECOND
    second = membership.renew(1, first)
    assert membership.leased
    clock.now += 6 * SECOND  # type: ignore[unreachable]
    assert not membership.leased  # 10 seconds after the first ticket was made
    clock.now += 3 * SECOND
    membership.renew(1, second)
    assert membership.leased
    clock.now += SECOND
    assert not membership.leased


def test_a_renewal_that_waited_while_the_node_was_stopped_is_worth_nothing() -> None:
    clock = Clock()
    membership = NodeLease(NodeIdentity(cluster="c", node="n", lease=10), now=clock)
    ticket = membership.renew(1, 0)
    clock.now += 60 * SECOND
    membership.renew(1, ticket)
    assert not membership.leased
    membership.renew(1, clock.now + SECOND)  # nor is a ticket that was never made
    assert not membership.leased


WRITES = [
    kv.Set(vbucket=VB, key=b"k", value=b"v"),
    kv.Delete(vbucket=VB, key=b"k"),
    kv.Increment(vbucket=VB, key=b"n", delta=1, initial=1, expiry=0),
    kv.Touch(vbucket=VB, key=b"k", expiry=10),
    kv.GetLocked(vbucket=VB, key=b"k"),
    kv.Set(
        vbucket=VB,
        key=b"k",
        value=b"v",
        frames=(Durability(level=DurabilityLevel.MAJORITY, timeout_ms=100),),
    ),
    kv.FlushAll(),
]


def test_without_a_lease_writes_are_refused_and_reads_are_not(
    node: TemporaryProducer, tmp_path: Path
) -> None:
    node.bucket.write(SetDocument(VB, b"\0k", b"v"))
    with manager_talk(node, tmp_path) as manager, stranger(node) as talk:
        give_map(manager)
        for write in WRITES:
            answer = talk.ask(write)
            assert answer.status is Status.TEMPORARY_FAILURE, write
            assert b"manager" in answer.value
        assert talk.ask(kv.Get(vbucket=VB, key=b"k")).value == b"v"
        ticket = renew(manager, 0)
        assert talk.ask(WRITES[0]).status is Status.TEMPORARY_FAILURE  # it has not come back yet
        renew(manager, ticket)
        assert talk.ask(WRITES[0]).status is Status.SUCCESS
        talk.send(*[kv.Set(vbucket=VB, key=b"x", value=b"y", quiet=True)] * 3, kv.Noop(opaque=9))
        assert talk.read().opaque == 9


def test_a_write_whose_lease_ends_before_it_is_stored_gets_no_success(
    node: TemporaryProducer, tmp_path: Path
) -> None:
    membership = node.producer.node.membership
    assert membership is not None
    with manager_talk(node, tmp_path) as manager:
        give_map(manager)
        renew(manager, renew(manager, 0))
        for write in (WRITES[0], WRITES[5]):
            with stranger(node) as talk:
                before = high(node.bucket)
                with node.bucket._core._lock:  # as a disk that takes its time
                    talk.send(write)
                    until(partial(is_waited_for, node))
                    held, membership._until = membership._until, 0
                until(partial(has_more, node.bucket, before))
                assert talk.socket.recv(1) == b""  # neither a success nor a refusal would be true
                membership._until = held


# ---- acknowledgements of copies ----------------------------------------------------------


def acknowledge(node: TemporaryProducer, talk: Talk, name: str, seqno: int) -> dict[str, int]:
    """Claims on a stream to have a vbucket; returns what the node believes."""
    talk.open(f"replication:{name}")
    talk.control("consumer_name", name)
    talk.control("acknowledge_seqnos", "true")
    talk.send(m.StreamRequest(vbucket=VB, start=0, end=NO_END, opaque=77))
    talk.read_until(m.Mutation)
    talk.send(m.SeqnoAcknowledged(vbucket=VB, opaque=77, prepared_seqno=seqno))
    talk.send(kv.Noop(opaque=78))  # it is worked on after what came before it
    while talk.read().opaque != 78:
        pass
    return node.producer.server.copied(node.bucket, VB)


def test_a_reader_cannot_acknowledge_for_a_copy(node: TemporaryProducer, tmp_path: Path) -> None:
    node.bucket.write(SetDocument(VB, b"\0k", b"v"))
    with manager_talk(node, tmp_path) as manager, stranger(node) as talk:
        give_map(manager)
        assert acknowledge(node, talk, "n2", 1) == {}


def test_a_copy_cannot_have_more_than_was_sent_to_it(
    node: TemporaryProducer, tmp_path: Path
) -> None:
    node.bucket.write(SetDocument(VB, b"\0k", b"v"))
    with manager_talk(node, tmp_path) as manager:
        give_map(manager)
        assert acknowledge(node, manager, "n2", 1_000_000) == {"n2": 1}
