"""Durable writes of a node with a copy that the test plays: invisible until they are durable."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clusterkit import (
    VB,
    Script,
    high,
    make_replica,
    manager_talk,
    marker,
    member_settings,
    mutation,
    renew,
)
from talk import Talk
from waiting import until

from upriver.errors import Status, StoreRefusal
from upriver.model import NO_END, Datatype, VBucketState
from upriver.producer.bootstrap.cluster_config import ClusterConfig, NodeAddress, bucket_json
from upriver.store import Bucket
from upriver.testing import TemporaryProducer
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.frameinfo import Durability
from upriver.wire.protocol_enums import Command, DurabilityLevel, Feature, MarkerFlag, OpenFlag

LEVELS = [
    DurabilityLevel.MAJORITY,
    DurabilityLevel.MAJORITY_AND_PERSIST_ON_MASTER,
    DurabilityLevel.PERSIST_TO_MAJORITY,
]
PATIENT = Durability(level=DurabilityLevel.MAJORITY, timeout_ms=60_000)
IMPATIENT = Durability(level=DurabilityLevel.MAJORITY, timeout_ms=50)
COPY = "n2"
#: The copies of a vbucket by their places in the map.
Row = tuple[int, int]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=4, settings=member_settings(tmp_path)) as node:
        yield node


def lead(node: TemporaryProducer, directory: Path) -> Talk:
    """The manager: gives the map, in which every vbucket has a copy on another node."""
    manager = manager_talk(node, directory)
    give_map(manager, 1, (0, 1))
    renew(manager, renew(manager, 0))
    return manager


def give_map(manager: Talk, rev: int, row: Row, then: Row | None = None) -> None:
    """Gives a map in which every vbucket has the same row, and may be moving to another."""
    nodes = tuple(NodeAddress("127.0.0.1", port, uuid=f"n{port}") for port in (1, 2, 3))
    forward = () if then is None else (then,) * 4
    told = ClusterConfig(
        rev=rev, nodes=nodes, rows=(row,) * 4, forward=forward, replicas=1, this_node=0
    )
    config = bucket_json(told, "default")
    given = kv.SetClusterConfig(bucket="default", epoch=1, revision=rev, config=config)
    assert manager.ask(given).status is Status.SUCCESS


class Replica(Talk):
    """The copy of a vbucket, on a connection of the cluster."""

    def __init__(self, node: TemporaryProducer, directory: Path, copy: str = COPY) -> None:
        talk = manager_talk(node, directory)
        self.__dict__ = talk.__dict__
        self.hello(Feature.COLLECTIONS, Feature.XATTR, Feature.SNAPPY, Feature.JSON)
        self.open(f"replication:{copy}", OpenFlag.PRODUCER | OpenFlag.INCLUDE_DELETE_TIMES)
        for name, value in (
            ("enable_noop", "true"),
            ("enable_sync_writes", "true"),
            ("consumer_name", copy),
        ):
            assert self.control(name, value).status is Status.SUCCESS
        self.send(m.StreamRequest(vbucket=VB, start=0, end=NO_END, opaque=77))
        assert isinstance(self.read(), m.StreamAccepted)

    def acknowledge(self, seqno: int) -> None:
        self.send(m.SeqnoAcknowledged(vbucket=VB, opaque=77, prepared_seqno=seqno))

    def next(self) -> Any:
        while isinstance(message := self.read(), m.SnapshotMarker | m.StreamNoop):
            pass
        return message


def client(node: TemporaryProducer) -> Talk:
    talk = Talk(node)
    talk.hello(
        Feature.SELECT_BUCKET,
        Feature.ALT_REQUEST,
        Feature.SYNC_REPLICATION,
        Feature.MUTATION_SEQNO,
    )
    talk.ask(kv.SelectBucket(bucket="default"))
    return talk


def durable(wanted: Durability = PATIENT, value: bytes = b"new", opaque: int = 0) -> kv.Set:
    return kv.Set(vbucket=VB, key=b"k", value=value, frames=(wanted,), opaque=opaque)


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_a_write_is_seen_once_the_copy_acknowledged_it(
    node: TemporaryProducer, tmp_path: Path, level: DurabilityLevel
) -> None:
    with lead(node, tmp_path), client(node) as writer, client(node) as other:
        assert other.ask(kv.Set(vbucket=VB, key=b"k", value=b"old")).status is Status.SUCCESS
        with Replica(node, tmp_path) as replica:
            assert replica.next().value == b"old"
            writer.send(durable(Durability(level=level, timeout_ms=60_000), opaque=5))
            prepare = replica.next()
            assert (prepare.key, prepare.value, prepare.level) == (b"k", b"new", level)
            assert other.ask(kv.Get(vbucket=VB, key=b"k")).value == b"old"
            for write in (kv.Set, kv.Append):
                refused = other.ask(write(vbucket=VB, key=b"k", value=b"x"))
                assert refused.status is Status.SYNC_WRITE_IN_PROGRESS
            assert other.ask(durable()).status is Status.SYNC_WRITE_IN_PROGRESS
            replica.acknowledge(prepare.seqno)
            answer = writer.read()
            assert (answer.status, answer.opaque) == (Status.SUCCESS, 5)
            commit = replica.next()
            assert isinstance(commit, m.Commit)
            assert (commit.prepared_seqno, commit.commit_seqno) == (prepare.seqno, answer.seqno)
            found = other.ask(kv.Get(vbucket=VB, key=b"k"))
            assert (found.value, found.cas) == (b"new", answer.cas)


@pytest.mark.parametrize("first", ["now", "then"])
def test_a_write_to_a_moving_vbucket_needs_a_majority_of_both_rows(
    node: TemporaryProducer, tmp_path: Path, first: str
) -> None:
    with (
        lead(node, tmp_path) as manager,
        client(node) as writer,
        Replica(node, tmp_path, "n2") as now,
        Replica(node, tmp_path, "n3") as then,
    ):
        give_map(manager, 2, (0, 1), (0, 2))
        one, other = (now, then) if first == "now" else (then, now)
        writer.send(durable(IMPATIENT))
        one.acknowledge(one.next().seqno)
        assert writer.read().status is Status.SYNC_WRITE_AMBIGUOUS
        assert isinstance(other.next(), m.Prepare)
        assert isinstance(one.next(), m.Abort)
        assert isinstance(other.next(), m.Abort)
        writer.send(durable())
        one.acknowledge(one.next().seqno)
        other.acknowledge(other.next().seqno)
        assert writer.read().status is Status.SUCCESS


@pytest.mark.parametrize("row", [(0, 1), (0, 2)], ids=["the old row", "the new row"])
def test_a_write_needs_one_row_again_when_its_vbucket_has_moved_or_stays(
    node: TemporaryProducer, tmp_path: Path, row: Row
) -> None:
    with lead(node, tmp_path) as manager, client(node) as writer:
        give_map(manager, 2, (0, 1), (0, 2))
        with Replica(node, tmp_path, f"n{row[1] + 1}") as replica:
            writer.send(durable())
            replica.acknowledge(replica.next().seqno)
            give_map(manager, 3, row)
            assert writer.read().status is Status.SUCCESS


def test_a_write_whose_time_is_over_was_never_seen(node: TemporaryProducer, tmp_path: Path) -> None:
    with lead(node, tmp_path), client(node) as writer, Replica(node, tmp_path) as replica:
        assert writer.ask(durable(IMPATIENT)).status is Status.SYNC_WRITE_AMBIGUOUS
        prepare, abort = replica.next(), replica.next()
        assert isinstance(abort, m.Abort)
        assert abort.prepared_seqno == prepare.seqno
        assert writer.ask(kv.Get(vbucket=VB, key=b"k")).status is Status.NOT_FOUND
        assert writer.ask(kv.Set(vbucket=VB, key=b"k", value=b"x")).status is Status.SUCCESS


def test_a_write_is_completed_though_its_client_has_gone(
    node: TemporaryProducer, tmp_path: Path
) -> None:
    with lead(node, tmp_path), client(node) as other, Replica(node, tmp_path) as replica:
        with client(node) as writer:
            writer.send(durable())
            prepare = replica.next()
        replica.acknowledge(prepare.seqno)
        assert isinstance(replica.next(), m.Commit)
        assert other.ask(kv.Get(vbucket=VB, key=b"k")).value == b"new"


def test_an_acknowledgement_above_what_was_sent_counts_for_nothing_more(
    node: TemporaryProducer, tmp_path: Path
) -> None:
    with lead(node, tmp_path), client(node) as writer, Replica(node, tmp_path) as replica:
        replica.control("connection_buffer_size", "1")  # the window closes behind one message
        writer.ask(kv.Set(vbucket=VB, key=b"first", value=b"x"))
        replica.read_until(m.SnapshotMarker)
        replica.acknowledge(2**40)
        assert writer.ask(durable(IMPATIENT)).status is Status.SYNC_WRITE_AMBIGUOUS


def test_a_write_that_another_node_must_settle_is_ambiguous(
    node: TemporaryProducer, tmp_path: Path
) -> None:
    manager, replica = lead(node, tmp_path), Replica(node, tmp_path)
    with manager, client(node) as writer, replica:
        writer.send(durable(opaque=5))
        assert isinstance(replica.next(), m.Prepare)
        changed = kv.SetVBucket(vbucket=VB, state=VBucketState.REPLICA)
        assert manager.ask(changed).status is Status.SUCCESS
        assert writer.read().status is Status.SYNC_WRITE_AMBIGUOUS


# ---- a node that is the copy -------------------------------------------------------------


class Copy(Script):
    """A test that is manager and producer, to a node that has a name among the copies."""

    def __init__(self, node: TemporaryProducer) -> None:
        Talk.__init__(self, node)
        self.hello(Feature.COLLECTIONS, Feature.XATTR, Feature.SNAPPY, Feature.JSON)
        opened = m.Open(
            name="script",
            flags=OpenFlag.CONSUMER,
            value=b'{"consumer_name":"n9"}',
            datatype=Datatype.JSON,
        )
        assert self.ask(opened).status is Status.SUCCESS

    def next(self) -> Any:
        while isinstance(message := self.read(), m.Control):
            self.send(m.PlainResponse(command=Command.CONTROL, opaque=message.opaque))
        return message


def prepare(request: m.StreamRequest, seqno: int, key: bytes = b"k") -> m.Prepare:
    return m.Prepare(
        vbucket=VB,
        opaque=request.opaque,
        seqno=seqno,
        rev=1,
        cas=1000 + seqno,
        key=key,
        value=b"prepared",
        level=DurabilityLevel.MAJORITY,
        collection=0,
    )


@pytest.fixture
def copy() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=4) as node:
        make_replica(node)
        yield node


def begun(script: Copy) -> m.StreamRequest:
    request = script.add()
    script.accept(request)
    assert script.read().prepared_seqno == 0  # it has nothing yet
    return request


def pending(bucket: Bucket) -> list[int]:
    return [one.seqno for _, one in bucket.prepares(VB)]


def test_a_copy_asks_for_sync_writes_and_says_its_name(copy: TemporaryProducer) -> None:
    with Copy(copy) as script:
        script.send(m.AddStream(vbucket=VB, opaque=77))
        asked = []
        while isinstance(message := script.read(), m.Control):
            asked.append((message.key, message.value))
    assert asked[4:6] == [("enable_sync_writes", "true"), ("consumer_name", "n9")]


def test_a_copy_acknowledges_a_prepare_and_commits_it(copy: TemporaryProducer) -> None:
    with Copy(copy) as script:
        request = begun(script)
        script.send(marker(request, 1, 1, flags=MarkerFlag.MEMORY), prepare(request, 1))
        acknowledged = script.read()
        assert isinstance(acknowledged, m.SeqnoAcknowledged)
        assert (acknowledged.prepared_seqno, acknowledged.opaque) == (1, request.opaque)
        assert pending(copy.bucket) == [1]
        committed = m.Commit(
            vbucket=VB,
            opaque=request.opaque,
            prepared_seqno=1,
            commit_seqno=2,
            key=b"k",
            collection=0,
        )
        script.send(marker(request, 2, 2, flags=MarkerFlag.MEMORY), committed)
        assert script.read().prepared_seqno == 2
        document = copy.bucket.get(VB, b"\0k", replica=True)
        assert (document.value, document.seqno, document.cas) == (b"prepared", 2, 1001)
        assert pending(copy.bucket) == []


def test_a_mutation_from_disk_commits_what_is_prepared(copy: TemporaryProducer) -> None:
    with Copy(copy) as script:
        request = begun(script)
        script.send(marker(request, 1, 1, flags=MarkerFlag.MEMORY), prepare(request, 1))
        assert script.read().prepared_seqno == 1
        disk = marker(
            request, 2, 5, flags=MarkerFlag.DISK, max_visible_seqno=5, high_completed_seqno=1
        )
        script.send(disk, mutation(request, 5, b"k", b"later"))
        assert script.read().prepared_seqno == 5
        assert copy.bucket.get(VB, b"\0k", replica=True).value == b"later"
        assert pending(copy.bucket) == []


def test_a_copy_forgets_what_was_aborted(copy: TemporaryProducer) -> None:
    with Copy(copy) as script:
        request = begun(script)
        aborted = m.Abort(
            vbucket=VB,
            opaque=request.opaque,
            prepared_seqno=1,
            abort_seqno=2,
            key=b"k",
            collection=0,
        )
        script.send(marker(request, 1, 2), prepare(request, 1), aborted)
        until(lambda: high(copy.bucket) == 2)
        assert pending(copy.bucket) == []
        with pytest.raises(StoreRefusal):
            copy.bucket.get(VB, b"\0k", replica=True)


def test_a_copy_that_becomes_active_commits_what_it_has_prepared(copy: TemporaryProducer) -> None:
    """Another node may have told a client that the write was made, so it must be."""
    with Copy(copy) as script:
        request = begun(script)
        script.send(marker(request, 1, 1, flags=MarkerFlag.MEMORY), prepare(request, 1))
        assert script.read().prepared_seqno == 1
    copy.bucket.set_state(VB, VBucketState.ACTIVE)
    with client(copy) as talk:
        seen = {talk.ask(kv.Get(vbucket=VB, key=b"k")).status for _ in range(1)}
        assert seen <= {Status.SYNC_WRITE_RECOMMIT_IN_PROGRESS, Status.SUCCESS}
        until(lambda: talk.ask(kv.Get(vbucket=VB, key=b"k")).status is Status.SUCCESS)
        assert talk.ask(kv.Get(vbucket=VB, key=b"k")).value == b"prepared"
