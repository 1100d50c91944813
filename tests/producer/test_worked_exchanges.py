"""The exchanges that the drafts print, with their own packets on a real socket."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from printed_packets import RIGHT
from talk import Talk

from upriver.errors import Status
from upriver.model import StreamEndReason
from upriver.store import SetDocument
from upriver.testing import TemporaryProducer
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp, Draft000, Draft001, Draft002
from upriver.wire.protocol_enums import Command, OpenFlag


@pytest.fixture
def producer() -> Iterator[TemporaryProducer]:
    """Vbuckets 0 and 12, which the examples speak of, have three documents each."""
    with TemporaryProducer(vbuckets=16) as producer:
        for vbucket in (0, 12):
            producer.bucket.write_many([SetDocument(vbucket, b"\0k%d" % n, b"v") for n in range(3)])
        yield producer


def exchange(talk: Talk, draft: str, number: int) -> bytes:
    """Sends the packet of a draft and returns the answer's bytes."""
    talk.socket.sendall(RIGHT[draft, number])
    return talk.packet()


def test_draft_002_stream_and_failover_log(producer: TemporaryProducer) -> None:
    with Talk(producer, Draft002()) as talk:
        assert exchange(talk, "002", 2) == RIGHT["002", 3]  # a stream request, and OK
        assert isinstance(talk.read_until(m.Mutation)[0], m.StreamStart)
    with Talk(producer, Draft002()) as talk:  # without a vbucket: the first one
        answer = Draft002().decode(exchange(talk, "002", 6))
        assert answer.failover_log == producer.bucket.failover_log(0).entries  # type: ignore[attr-defined]


def test_draft_000_stream_and_failover_log(producer: TemporaryProducer) -> None:
    with Talk(producer, Draft000()) as talk:
        assert exchange(talk, "000", 3) == RIGHT["000", 4]  # a stream request, and OK
        assert talk.packet() == RIGHT["000", 9]  # stream start
        assert talk.packet() == RIGHT["000", 10]  # snapshot start
        talk.read_until(m.SnapshotEnd)
    with Talk(producer, Draft000()) as talk:
        answer = Draft000().decode(exchange(talk, "000", 7))
        assert answer.failover_log == producer.bucket.failover_log(12).entries  # type: ignore[attr-defined]


def test_draft_001_rejected_and_tried_again(producer: TemporaryProducer) -> None:
    log = producer.bucket.failover_log(0).entries
    with Talk(producer, Draft001()) as talk:
        opening = m.Open(name="bucketstream vb[100-105]", flags=OpenFlag.PRODUCER, opaque=1)
        talk.send(opening)
        assert talk.packet() == RIGHT["001", 2]
        # A branch that nobody knows: the draft says not found, its servers sent a rollback to 0.
        rejected = exchange(talk, "001", 8)
        assert (rejected[6:8], rejected[24:]) == (b"\0\x23", bytes(8))
        assert Draft001().decode(rejected) == m.StreamRollback(opaque=0x1000, seqno=0)
        accepted = Draft001().decode(exchange(talk, "001", 10))
        assert accepted == m.StreamAccepted(opaque=0x1000, failover_log=log)
        assert len(talk.read_until(lambda x: getattr(x, "seqno", 0) == 3)) == 4
        closing = Draft001().decode(exchange(talk, "001", 5))  # another vbucket's stream
        assert (closing.status, closing.opaque) == (Status.NOT_FOUND, 0xDEADBEEF)  # type: ignore[attr-defined]
        failover = Draft001().decode(exchange(talk, "001", 6))
        assert failover == m.FailoverLogResponse(opaque=0xDEADBEEF, failover_log=log)


def test_draft_004_rejected_and_tried_again(producer: TemporaryProducer) -> None:
    with Talk(producer, Dcp()) as talk:
        talk.open("reader")
        assert exchange(talk, "004", 1) == RIGHT["004", 2]  # rollback to 0
        accepted = Dcp().decode(exchange(talk, "004", 3))
        log = producer.bucket.failover_log(0).entries
        assert accepted == m.StreamAccepted(opaque=0x1000, failover_log=log)
        stream = talk.read_until(lambda x: getattr(x, "seqno", 0) == 3)
        assert {x.opaque for x in stream} == {0x1000}
        assert talk.ask(m.CloseStream(vbucket=0)).status is Status.SUCCESS


def test_a_stream_that_is_ended_by_its_end(producer: TemporaryProducer) -> None:
    with Talk(producer, Draft001()) as talk:
        talk.open("reader")
        request = m.StreamRequest(vbucket=0, start=0, end=3, opaque=0xDEADBEEF)
        talk.send(request)
        *_, last = talk.read_until(m.StreamEnd)
        assert Draft001().encode(last) == RIGHT["001", 12]
        assert last.reason is StreamEndReason.OK


def test_persistence_can_be_stopped_for_tests(producer: TemporaryProducer) -> None:
    vbuuid = producer.bucket.failover_log(0).newest.vbuuid

    def persisted(talk: Talk) -> tuple[int, int]:
        answer = talk.ask(kv.ObserveSeqno(vbucket=0, vbuuid=vbuuid))
        return answer.persisted_seqno, answer.current_seqno

    with Talk(producer) as talk:
        assert talk.ask(kv.StopPersistence()).status is Status.SUCCESS
        producer.bucket.write(SetDocument(0, b"\0more", b"v"))
        assert persisted(talk) == (3, 4)
        assert talk.ask(kv.StartPersistence()).command is Command.START_PERSISTENCE
        assert persisted(talk) == (4, 4)
