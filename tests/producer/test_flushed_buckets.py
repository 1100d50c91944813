"""A client flushes a bucket while others read it: what every draft's readers are told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from talk import PATIENCE, Talk, everything

from upriver.consumer import Consumer, Flushed, Rollback, RollbackReason, RolledBack, Rows
from upriver.consumer.changes import changes_of
from upriver.errors import Status
from upriver.model import NO_END, StreamEndReason, VBucketState
from upriver.store import SetDocument
from upriver.testing import TemporaryProducer
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp, Dialect, Draft000, Draft001, Draft002

VB = 1
WITH_FLUSH: list[Dialect] = [Draft000(), Draft001()]
WITHOUT: list[Dialect] = [Draft002(), Dcp()]
WITH_OPEN = (Draft001, Dcp)


def by_name(dialect: Dialect) -> str:
    return dialect.name


@pytest.fixture
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=2) as producer:
        for number in range(3):
            producer.write(b"k%d" % number, b"v", VB)
        yield producer


def flush(producer: TemporaryProducer) -> None:
    """Flushes the bucket as any client would."""
    with Talk(producer) as client:
        assert client.ask(kv.FlushAll()).status is Status.SUCCESS


def opened(producer: TemporaryProducer, dialect: Dialect) -> Talk:
    talk = Talk(producer, dialect)
    if isinstance(dialect, WITH_OPEN):
        assert talk.open("reader").status is Status.SUCCESS
    return talk


def request(start: int = 0, vbuuid: int = 0) -> m.StreamRequest:
    return m.StreamRequest(vbucket=VB, start=start, end=NO_END, vbuuid=vbuuid, opaque=45)


def newest(producer: TemporaryProducer) -> int:
    return producer.bucket.failover_log(VB).newest.vbuuid


def seqno_3(message: Any) -> bool:
    return isinstance(message, m.Mutation) and message.seqno == 3


def flushed_while_read(producer: TemporaryProducer, talk: Talk) -> list[Any]:
    """What a stream says from a flush of its bucket to its end."""
    talk.send(request())
    talk.read_until(seqno_3)
    flush(producer)
    return talk.read_until(m.StreamEnd)


@pytest.mark.parametrize("dialect", WITH_FLUSH, ids=by_name)
def test_drafts_that_have_it_send_flush_and_end_the_stream(
    producer: TemporaryProducer, dialect: Dialect
) -> None:
    old = newest(producer)
    with opened(producer, dialect) as talk:
        *before, flushed, end = flushed_while_read(producer, talk)
        assert flushed == m.FlushStream(vbucket=VB, opaque=45)
        assert (end.opaque, end.reason) == (45, StreamEndReason.STATE_CHANGED)
        # the snapshot that was under way is closed before, and no message of data follows it
        assert {type(x) for x in before} <= {m.SnapshotEnd}
        # whoever asks again with the old name is sent back to nothing
        talk.send(request(3, old))
        assert talk.read() == m.StreamRollback(opaque=45, seqno=0)
        producer.write(b"new", b"v", VB)
        talk.send(request())
        assert talk.read_until(m.Mutation)[-1].key == b"new"
    assert [entry.seqno for entry in producer.bucket.failover_log(VB)] == [0]


@pytest.mark.parametrize("dialect", WITHOUT, ids=by_name)
def test_other_drafts_end_the_stream_and_send_readers_back_to_nothing(
    producer: TemporaryProducer, dialect: Dialect
) -> None:
    old = newest(producer)
    with opened(producer, dialect) as talk:
        *before, end = flushed_while_read(producer, talk)
        assert {type(x) for x in before} <= {m.SnapshotEnd}
        if isinstance(dialect, Dcp):
            assert end.reason is StreamEndReason.STATE_CHANGED
        talk.send(request(3, old))
        assert talk.read() == m.StreamRollback(opaque=45, seqno=0)


@pytest.mark.parametrize("dialect", WITH_FLUSH, ids=by_name)
def test_a_stream_that_waited_from_the_beginning_is_told_too(
    producer: TemporaryProducer, dialect: Dialect
) -> None:
    with opened(producer, dialect) as talk:
        other = m.StreamRequest(vbucket=0, start=0, end=NO_END, opaque=7)
        talk.send(other)
        assert isinstance(talk.read(), m.StreamAccepted)
        flush(producer)
        *_, flushed, end = talk.read_until(m.StreamEnd)
        assert flushed == m.FlushStream(vbucket=0, opaque=7)
        assert end.opaque == 7


@pytest.mark.parametrize("dialect", WITH_FLUSH, ids=by_name)
def test_a_failover_is_no_flush(producer: TemporaryProducer, dialect: Dialect) -> None:
    with opened(producer, dialect) as talk:
        talk.send(request())
        talk.read_until(seqno_3)
        producer.fail_over(VB, 2)
        messages = talk.read_until(m.StreamEnd)
        assert not any(isinstance(x, m.FlushStream) for x in messages)


def test_a_flush_in_the_middle_of_a_snapshot_stops_it(producer: TemporaryProducer) -> None:
    big = bytes(300_000)  # more than a stream takes out of the store at a time
    producer.bucket.write_many([SetDocument(VB, b"\0big%d" % n, big) for n in range(40)])
    with opened(producer, Draft000()) as talk:
        talk.send(request())
        talk.read_until(m.Mutation)  # the socket is full now, and the rest is still in the store
        flush(producer)
        messages = talk.read_until(m.StreamEnd)
    kinds = [type(x) for x in messages]
    assert kinds[-2:] == [m.FlushStream, m.StreamEnd]
    whole = m.SnapshotEnd in kinds
    assert whole == (sum(kind is m.Mutation for kind in kinds) == 42)


@pytest.mark.parametrize("dialect", ["000", "001", "dcp"])
def test_a_reader_is_told_and_ends_with_what_is_there(
    producer: TemporaryProducer, dialect: Any
) -> None:
    documents: dict[bytes, bytes] = {}
    told: list[type] = []
    with Consumer(
        producer.source, vbuckets=frozenset({VB}), dialect=dialect, retry_most=0.1
    ) as consumer:
        flushed = False
        while b"new" not in documents:
            event = consumer.poll(PATIENCE)
            assert event is not None, "nothing came"
            if isinstance(event, Rows):
                documents |= {one.key: one.value for one in changes_of(event.batch)}
            elif isinstance(event, Flushed | RolledBack):
                told.append(type(event))
                documents.clear()
                if isinstance(event, RolledBack):
                    assert event.to.seqno == 0
            if len(documents) == 3 and not flushed:
                flushed = True
                flush(producer)
                producer.write(b"new", b"v", VB)
    assert documents == {b"new": b"v"}
    assert told == ([RolledBack] if dialect == "dcp" else [Flushed])


@pytest.mark.parametrize("dialect", ["000", "001", "dcp"])
def test_who_iterates_is_told_of_a_rollback_to_the_beginning(
    producer: TemporaryProducer, dialect: Any
) -> None:
    documents: dict[bytes, bytes] = {}
    told: list[Rollback] = []

    def forget(rollback: Rollback) -> None:
        told.append(rollback)
        documents.clear()

    with Consumer(
        producer.source,
        vbuckets=frozenset({VB}),
        dialect=dialect,
        retry_most=0.1,
        on_rollback=forget,
    ) as consumer:
        for change in consumer:
            documents[change.key] = change.value
            if len(documents) == 3 and not told:
                flush(producer)
                producer.write(b"new", b"v", VB)
            if change.key == b"new":
                break
        assert consumer.position().position(VB).seqno == 1
    assert documents == {b"new": b"v"}
    reason = RollbackReason.UNKNOWN_BRANCH if dialect == "dcp" else RollbackReason.FLUSHED
    assert told == [Rollback(VB, 3, 0, reason)]


def test_a_clients_flush_leaves_copies_of_other_nodes_alone(producer: TemporaryProducer) -> None:
    producer.bucket.set_state(VB, VBucketState.REPLICA)
    producer.write(b"mine", b"v", 0)
    branch = newest(producer)
    flush(producer)
    assert producer.bucket.vbucket_stats(0).items == 0
    assert producer.bucket.vbucket_stats(VB).items == 3
    assert newest(producer) == branch
    with everything(producer) as talk:  # which only their own stream can empty
        talk.send(m.StreamRequest(vbucket=VB, start=0, end=3, opaque=9))
        messages = talk.read_until(m.StreamEnd)
    assert sum(isinstance(x, m.Mutation) for x in messages) == 3
