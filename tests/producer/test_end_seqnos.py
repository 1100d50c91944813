"""Where a stream ends: at the end seqno in every draft, and at 0 as the server is set."""

from __future__ import annotations

from dataclasses import replace

import pytest
from printed_packets import RIGHT
from talk import Talk

from upriver.errors import Status
from upriver.model import StreamEndReason
from upriver.store import SetDocument
from upriver.testing import TemporaryProducer
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp, Dialect, Draft000, Draft001, Draft002

OLDER: list[Dialect] = [Draft002(), Draft000(), Draft001()]


def request_004() -> bytes:
    """The second request that document 004 prints, with the end seqno 0."""
    packet = bytearray(RIGHT["004", 3])
    packet[40:48] = bytes(8)
    return bytes(packet)


def write(producer: TemporaryProducer, *keys: bytes) -> None:
    producer.bucket.write_many([SetDocument(0, b"\0" + key, b"v") for key in keys])


@pytest.mark.parametrize("no_end", [False, True])
def test_an_end_of_zero_in_document_004(no_end: bool) -> None:
    with (
        TemporaryProducer(vbuckets=1, end_zero_is_no_end=no_end) as producer,
        Talk(producer, Dcp()) as talk,
    ):
        write(producer, b"a")
        assert talk.open("reader").status is Status.SUCCESS
        talk.socket.sendall(request_004())
        assert isinstance(talk.read(), m.StreamAccepted)
        if no_end:
            talk.read_until(lambda x: getattr(x, "key", b"") == b"a")
            write(producer, b"b")
            kinds = {type(x) for x in talk.read_until(lambda x: getattr(x, "key", b"") == b"b")}
            assert m.StreamEnd not in kinds
        else:
            assert talk.read().reason is StreamEndReason.OK


@pytest.mark.parametrize("dialect", OLDER, ids=lambda dialect: dialect.name)
def test_an_end_of_zero_in_the_older_drafts_is_a_seqno(dialect: Dialect) -> None:
    with (
        TemporaryProducer(vbuckets=1, end_zero_is_no_end=True) as producer,
        Talk(producer, dialect) as talk,
    ):
        write(producer, b"a")
        if dialect.opens_connections:
            talk.open("reader")
        talk.send(m.StreamRequest(vbucket=0, start=0, end=0, opaque=0x2D))
        messages = talk.read_until(m.StreamEnd)
        assert not any(isinstance(x, m.Mutation) for x in messages)


@pytest.mark.parametrize("dialect", [*OLDER, Dcp()], ids=lambda dialect: dialect.name)
def test_the_snapshot_that_the_end_is_in_is_sent_whole(dialect: Dialect) -> None:
    """In the older drafts too: a reader that ends within a snapshot would miss keys."""
    with TemporaryProducer(vbuckets=1) as producer, Talk(producer, dialect) as talk:
        write(producer, b"a", b"b", b"c")
        write(producer, b"a")  # moved on: seqno 1 is no more, and seqno 4 is beyond the end
        if dialect.opens_connections:
            talk.open("reader")
        request = m.StreamRequest(vbucket=0, start=0, end=2, opaque=0x2D)
        talk.send(request)
        messages = talk.read_until(m.StreamEnd)
        assert [x.seqno for x in messages if isinstance(x, m.Mutation)] == [2, 3, 4]
        assert messages[-1].reason is StreamEndReason.OK
        vbuuid = producer.bucket.failover_log(0).newest.vbuuid
        talk.send(replace(request, start=4, end=4, vbuuid=vbuuid, opaque=0x2E))
        assert talk.read_until(m.StreamEnd)[-1].opaque == 0x2E
