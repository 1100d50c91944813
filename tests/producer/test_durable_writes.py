"""Durable writes on a server without replicas: they succeed once they are on disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from talk import Talk, everything
from waiting import until

from upriver.errors import Status, StoreOutOfFiles
from upriver.model import NO_END, VBucketState
from upriver.store import BucketSettings, PrepareWrite, SetDocument, Store
from upriver.testing import TemporaryProducer
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.frameinfo import Durability
from upriver.wire.protocol_enums import Command, DurabilityLevel, Feature

LEVELS = [
    DurabilityLevel.MAJORITY,
    DurabilityLevel.MAJORITY_AND_PERSIST_ON_MASTER,
    DurabilityLevel.PERSIST_TO_MAJORITY,
]


@pytest.fixture
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=4) as producer:
        yield producer


@pytest.fixture
def talk(producer: TemporaryProducer) -> Iterator[Talk]:
    with Talk(producer) as talk:
        talk.hello(Feature.ALT_REQUEST, Feature.SYNC_REPLICATION, Feature.MUTATION_SEQNO)
        yield talk


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_every_level_is_met(
    talk: Talk, producer: TemporaryProducer, level: DurabilityLevel
) -> None:
    frames = (Durability(level=level),)
    done = talk.ask(kv.Set(vbucket=1, key=b"k", value=b"5", frames=frames))
    assert (done.status, done.seqno) == (Status.SUCCESS, 2)
    assert talk.ask(kv.Get(vbucket=1, key=b"k")).cas == done.cas
    counted = talk.ask(kv.Increment(vbucket=1, key=b"k", delta=2, frames=frames))
    assert (counted.value, counted.seqno) == (7, 4)
    deleted = talk.ask(kv.Delete(vbucket=1, key=b"k", frames=frames))
    assert (deleted.status, deleted.seqno) == (Status.SUCCESS, 6)
    assert talk.ask(kv.Get(vbucket=1, key=b"k")).status is Status.NOT_FOUND
    assert talk.ask(kv.Delete(vbucket=1, key=b"k", frames=frames)).status is Status.NOT_FOUND
    assert producer.bucket.verify() == []


def test_a_part_of_a_document_is_changed_durably(talk: Talk) -> None:
    talk.ask(kv.Set(vbucket=1, key=b"k", value=b'{"a":1}'))
    frames = (Durability(level=DurabilityLevel.MAJORITY),)
    edit = kv.SubdocOperation(
        vbucket=1,
        key=b"k",
        command=Command.SUBDOC_DICT_UPSERT,
        path=b"b",
        value=b"2",
        frames=frames,
    )
    done = talk.ask(edit)
    assert (done.status, done.extras[8:]) == (Status.SUCCESS, (3).to_bytes(8))
    assert talk.ask(kv.Get(vbucket=1, key=b"k")).value == b'{"a":1,"b":2}'


def test_prepares_that_were_pending_when_the_server_was_killed_are_committed(
    tmp_path: Path,
) -> None:
    with Store(tmp_path) as store:
        bucket = store.create_bucket("default", BucketSettings(vbuckets=4))
        bucket.write(PrepareWrite(1, SetDocument(1, b"\0k", b"v"), 1))
    with TemporaryProducer(data=tmp_path, vbuckets=4) as producer, Talk(producer) as talk:
        while (answer := talk.ask(kv.Get(vbucket=1, key=b"k"))).status is not Status.SUCCESS:
            assert answer.status is Status.SYNC_WRITE_RECOMMIT_IN_PROGRESS
        assert answer.value == b"v"


def test_prepares_are_committed_once_the_process_may_open_files_again(
    producer: TemporaryProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed, failures = Store.buckets, list[str]()

    def buckets(store: Store) -> list[str]:
        if len(failures) < 3:
            failures.append("Too many open files")
            raise StoreOutOfFiles(path=str(store.path), problem=failures[-1])
        return listed(store)

    monkeypatch.setattr(Store, "buckets", buckets)
    producer.bucket.write(PrepareWrite(1, SetDocument(1, b"\0k", b"v"), 1))
    until(lambda: not producer.bucket.vbuckets_with_prepares())
    assert failures
    with Talk(producer) as talk:
        assert talk.ask(kv.Get(vbucket=1, key=b"k")).value == b"v"


def test_a_topology_makes_writes_wait_for_the_copies_that_it_names(
    talk: Talk, producer: TemporaryProducer
) -> None:
    """As nodes are managed by hand: states with topologies, and connections passed on."""
    topology = b'{"topology":[["ours","theirs"]]}'
    state = kv.SetVBucket(vbucket=1, state=VBucketState.ACTIVE, value=topology)
    assert talk.ask(state).status is Status.SUCCESS
    with everything(producer, "replication:ours->theirs") as copy:
        for key, value in (("enable_sync_writes", "true"), ("consumer_name", "theirs")):
            assert copy.control(key, value).status is Status.SUCCESS
        copy.send(m.StreamRequest(vbucket=1, opaque=7, start=0, end=NO_END))
        assert isinstance(copy.read(), m.StreamAccepted)
        wanted = (Durability(level=DurabilityLevel.MAJORITY, timeout_ms=60_000),)
        talk.send(kv.Set(vbucket=1, key=b"k", value=b"v", frames=wanted, opaque=5))
        prepare = copy.read_until(m.Prepare)[-1]
        with Talk(producer) as reader:
            assert reader.ask(kv.Get(vbucket=1, key=b"k")).status is Status.NOT_FOUND
        copy.send(m.SeqnoAcknowledged(vbucket=1, opaque=7, prepared_seqno=prepare.seqno))
        assert (talk.read().status, copy.read_until(m.Commit)[-1].commit_seqno) == (
            Status.SUCCESS,
            2,
        )
