"""A consumer refuses a message of a stream: that stream ends, and nothing else does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from talk import Talk

from upriver.errors import Status
from upriver.model import NO_END
from upriver.store import SetDocument
from upriver.testing import TemporaryProducer
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp, Dialect, Draft000, Draft001, Draft002

DRAFTS: list[Dialect] = [Draft002(), Draft000(), Draft001(), Dcp()]
WITH_STATUSES: list[Dialect] = DRAFTS[1:]
MUTATION = {"000": 0x56, "001": 0x57, "dcp": 0x57}
STREAM_END = {"000": 0x53, "001": 0x55, "dcp": 0x55}
#: All that the documents name, those of today's consumers, and one that nobody knows.
STATUSES = [
    0x01,
    0x02,
    0x04,
    0x07,
    0x0A,
    0x0B,
    0x22,
    0x23,
    0x24,
    0x81,
    0x82,
    0x83,
    0x84,
    0x86,
    0xEE,
]


def by_name(dialect: Dialect) -> str:
    return dialect.name


@pytest.fixture(scope="module")
def running() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=16) as producer:
        for vbucket in (12, 13):
            producer.bucket.write_many([SetDocument(vbucket, b"\0k%d" % n, b"v") for n in range(3)])
        yield producer


def two_streams(producer: TemporaryProducer, dialect: Dialect) -> Talk:
    """Streams of vbuckets 12 and 13 with the opaques 0x2d and 0x2e, all read."""
    talk = Talk(producer, dialect)
    if dialect.opens_connections:
        assert talk.open("reader").status is Status.SUCCESS
    high = producer.bucket.vbucket_stats
    for vbucket, opaque in ((12, 0x2D), (13, 0x2E)):
        talk.send(m.StreamRequest(vbucket=vbucket, start=0, end=NO_END, opaque=opaque))
        last = high(vbucket).high_seqno
        while getattr(talk.read(), "seqno", 0) != last:
            pass
    return talk


def status_packet(opcode: int, status: int, opaque: int = 0x2D) -> bytes:
    """A response without a body, in the 24 bytes that drafts 000, 001 and 004 print."""
    return bytes.fromhex(f"81{opcode:02x}0000 0000{status:04x} 00000000 {opaque:08x}") + bytes(8)


def assert_only_the_other_goes_on(talk: Talk, producer: TemporaryProducer) -> None:
    """Vbucket 13's stream gets a change, although vbucket 12 had one before it."""
    talk.send(m.FailoverLogRequest(vbucket=12, opaque=3))
    # what is answered here was sent after the refusal, which was worked on before
    talk.read_until(m.FailoverLogResponse)
    producer.bucket.write(SetDocument(12, b"\0unseen", b"v"))
    producer.bucket.write(SetDocument(13, b"\0seen", b"v"))
    messages = talk.read_until(lambda x: getattr(x, "key", b"") == b"seen")
    assert {message.opaque for message in messages} == {0x2E}


@pytest.mark.parametrize("status", STATUSES, ids=hex)
@pytest.mark.parametrize("dialect", WITH_STATUSES, ids=by_name)
def test_any_status_ends_the_stream_and_only_the_stream(
    running: TemporaryProducer, dialect: Dialect, status: int
) -> None:
    with two_streams(running, dialect) as talk:
        nack = status_packet(MUTATION[dialect.name], status)
        talk.socket.sendall(nack)
        assert_only_the_other_goes_on(talk, running)
        talk.socket.sendall(nack)  # late: the stream is gone already
        talk.socket.sendall(status_packet(STREAM_END[dialect.name], status, opaque=4711))
        assert_only_the_other_goes_on(talk, running)
        talk.send(m.StreamRequest(vbucket=12, start=0, end=NO_END, opaque=0x2F))
        assert talk.read_until(lambda x: getattr(x, "key", b"") == b"unseen")[-1].opaque == 0x2F


@pytest.mark.parametrize(
    "packet",
    [
        "02000000 0000002d 00000001 02",
        "06000000 0000002d 00000001 00",
        "07000000 0000002d 00000001 00",
    ],
    ids=["not my vbucket", "request error", "response decode error"],
)
def test_draft_002_refuses_with_three_operations(running: TemporaryProducer, packet: str) -> None:
    with two_streams(running, Draft002()) as talk:
        for _ in range(2):
            talk.socket.sendall(bytes.fromhex(packet))
            assert_only_the_other_goes_on(talk, running)


@pytest.mark.parametrize("dialect", WITH_STATUSES, ids=by_name)
def test_a_response_of_success_ends_nothing(running: TemporaryProducer, dialect: Dialect) -> None:
    with two_streams(running, dialect) as talk:
        talk.socket.sendall(status_packet(MUTATION[dialect.name], 0))
        talk.socket.sendall(status_packet(MUTATION[dialect.name], 0, opaque=4711))
        running.bucket.write(SetDocument(12, b"\0still", b"v"))
        assert talk.read_until(lambda x: getattr(x, "key", b"") == b"still")[-1].opaque == 0x2D


def test_a_refusal_after_close_stream_is_taken_in_silence(running: TemporaryProducer) -> None:
    """Document 001: the producer may still receive response messages for this stream."""
    for dialect in (Draft001(), Dcp()):
        with two_streams(running, dialect) as talk:
            close = m.CloseStream(vbucket=12, opaque=7)
            talk.send(close)
            answer = talk.read()
            assert (answer.status, answer.opaque) == (Status.SUCCESS, 7)
            talk.socket.sendall(status_packet(0x57, 0x01))
            assert_only_the_other_goes_on(talk, running)
            talk.send(replace(close, opaque=8))
            assert talk.read().status is Status.NOT_FOUND


def test_the_codes_of_7_0_end_a_stream_as_the_older_ones_do(running: TemporaryProducer) -> None:
    for status in (0x01, 0x02, 0x0A, 0x0B):
        with two_streams(running, Dcp()) as talk:
            talk.send(m.Control(key="v7_dcp_status_codes", value="true", opaque=5))
            assert talk.read().status is Status.SUCCESS
            talk.socket.sendall(status_packet(0x57, status))
            assert_only_the_other_goes_on(talk, running)
            assert talk.ask(kv.Noop()).status is Status.SUCCESS
