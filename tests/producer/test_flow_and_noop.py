"""Flow control and noops as a consumer meets them on a socket."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from talk import Talk, everything

from upriver.errors import Status
from upriver.model import NO_END
from upriver.producer.server_settings import ServerSettings
from upriver.store import SetDocument
from upriver.testing import TemporaryProducer
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.protocol_enums import Command

DOCUMENTS = 50


@pytest.fixture
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=2, settings=ServerSettings(idle_timeout=3)) as producer:
        producer.bucket.write_many(
            [SetDocument(0, b"\0key%02d" % n, b"v" * 100) for n in range(DOCUMENTS)]
        )
        yield producer


def streaming(producer: TemporaryProducer, window: int) -> Talk:
    talk = everything(producer)
    assert talk.control("connection_buffer_size", str(window)).status is Status.SUCCESS
    talk.send(m.StreamRequest(vbucket=0, start=0, end=DOCUMENTS, opaque=9))
    assert isinstance(talk.read(), m.StreamAccepted)
    return talk


def drain(talk: Talk) -> list[bytes]:
    """Every packet of the stream that is under way: questions show where it stops.

    A slow server answers one in the middle of its sending, so the last must bring nothing else.
    """
    packets: list[bytes] = []
    for number in itertools.count():
        before = len(packets)
        talk.send(kv.Noop(opaque=4711))
        while talk.dialect.decode(packet := talk.packet()).opaque != 4711:
            packets.append(packet)
        if number and len(packets) == before:
            return packets
    raise AssertionError


def test_the_producer_stops_when_the_window_is_full(producer: TemporaryProducer) -> None:
    with streaming(producer, 1000) as talk:
        first = drain(talk)
        sizes = [len(packet) for packet in first]
        assert sum(sizes) >= 1000  # it stops only when it is full
        assert sum(sizes[:-1]) < 1000  # and sends nothing more then
        assert drain(talk) == []
        talk.send(m.BufferAck(size=sum(sizes)))
        second = drain(talk)
        assert sum(map(len, second)) >= 1000
        assert sum(map(len, second[:-1])) < 1000


def test_any_message_may_overshoot_the_window(producer: TemporaryProducer) -> None:
    with streaming(producer, 1) as talk:
        seen = 0
        while True:
            packets = drain(talk)
            assert len(packets) == 1  # one at a time, however small the window
            message = talk.dialect.decode(packets[0])
            seen += isinstance(message, m.Mutation)
            if isinstance(message, m.StreamEnd):
                break
            talk.send(m.BufferAck(size=len(packets[0])))
        assert seen == DOCUMENTS


def test_acknowledging_too_much_gives_no_credit(producer: TemporaryProducer) -> None:
    with streaming(producer, 500) as talk:
        drain(talk)
        talk.send(m.BufferAck(size=10**9))
        packets = drain(talk)
        assert sum(map(len, packets[:-1])) < 500


def test_a_window_can_be_changed_and_switched_off(producer: TemporaryProducer) -> None:
    with streaming(producer, 500) as talk:
        drain(talk)
        assert talk.control("connection_buffer_size", "0").status is Status.SUCCESS
        # flow control is gone; whoever was waiting goes on with the next thing that happens
        talk.send(m.BufferAck(size=0))
        stream = talk.read_until(m.StreamEnd)
        assert isinstance(stream[-1], m.StreamEnd)


def test_noops_come_in_their_interval_and_must_be_answered(producer: TemporaryProducer) -> None:
    with everything(producer) as talk:
        talk.control("set_noop_interval", "0.1")
        first = talk.read_until(m.StreamNoop)[-1]
        talk.send(m.PlainResponse(command=Command.STREAM_NOOP, opaque=first.opaque))
        second = talk.read_until(m.StreamNoop)[-1]
        assert second.opaque == first.opaque + 1
        # no answer: nothing more is asked, and after the idle timeout the connection goes
        assert talk.is_closed()


def test_noops_flow_while_the_window_is_full(producer: TemporaryProducer) -> None:
    with streaming(producer, 100) as talk:
        talk.send(m.Control(key="set_noop_interval", value="0.1", opaque=1))
        noop = talk.read_until(m.StreamNoop)[-1]
        assert noop.opaque == 10_000_001


def test_an_answer_to_a_noop_that_was_never_asked_ends_the_connection(
    producer: TemporaryProducer,
) -> None:
    with everything(producer) as talk:
        talk.send(m.PlainResponse(command=Command.STREAM_NOOP, opaque=1))
        assert talk.is_closed()


def test_a_stalled_reader_holds_no_memory_and_others_go_on(producer: TemporaryProducer) -> None:
    producer.bucket.write_many(
        [SetDocument(1, b"\0big%03d" % n, b"x" * 100_000) for n in range(200)]
    )
    with everything(producer, "stalled") as stalled, everything(producer, "lively") as lively:
        stalled.send(m.StreamRequest(vbucket=1, start=0, end=NO_END, opaque=1))
        lively.send(m.StreamRequest(vbucket=1, start=0, end=200, opaque=1))
        assert isinstance(lively.read_until(m.StreamEnd)[-1], m.StreamEnd)
        connection = next(
            x for x in producer.producer.server.connections if x.streams.name == "stalled"
        )
        transport = connection._transport
        assert transport is not None
        limit = producer.producer.settings.connection_memory + 2 * 256 * 1024
        assert transport.get_write_buffer_size() <= limit
