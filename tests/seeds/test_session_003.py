"""Document 003, a session step by step, where no test of the streams themselves shows a step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from printed_packets import RIGHT
from seedkit import Packet, changed, exchange, packets_until, u16, u32, u64
from talk import Talk
from waiting import until

from upriver.testing import TemporaryProducer

OPEN = changed(RIGHT["001", 1], (28, u32(1)))
OPENED = RIGHT["001", 2]
#: Stream requests from nothing, with 40 bytes of extras and with 48.
DRAFT, TODAY = RIGHT["001", 10], RIGHT["004", 3]
START, END, VBUUID = 32, 40, 48


@pytest.fixture
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=4) as producer:
        for number in range(6):
            producer.write(b"k%d" % number, b"v", 0)
        yield producer


@pytest.fixture
def talk(producer: TemporaryProducer) -> Iterator[Talk]:
    with Talk(producer) as talk:
        assert exchange(talk, OPEN) == OPENED
        yield talk


def newest(producer: TemporaryProducer) -> int:
    return producer.bucket.failover_log(0).newest.vbuuid


def seqnos(packets: list[bytes]) -> list[int]:
    return [int.from_bytes(p[24:32]) for p in packets if p[:2] == b"\x80\x57"]


def test_the_name_is_in_the_statistics(producer: TemporaryProducer, talk: Talk) -> None:
    told = talk.statistics("dcp")
    assert told["eq_dcpq:bucketstream vb[100-105]:type"] == "producer"


def test_the_answer_to_open_has_no_uuid(producer: TemporaryProducer) -> None:
    with Talk(producer) as talk:
        answer = Packet.of(exchange(talk, OPEN))
    assert (answer.place, answer.length) == (0, 0)


@pytest.mark.parametrize("request_", [DRAFT, TODAY], ids=["40 bytes", "48 bytes"])
def test_nothing_and_vbuuid_0_get_everything(talk: Talk, request_: bytes) -> None:
    everything = changed(request_, (END, u64(6)), (VBUUID, u64(0)))
    talk.socket.sendall(everything)
    stream = packets_until(talk, lambda packet: packet[1] == 0x55)
    assert seqnos(stream) == [1, 2, 3, 4, 5, 6]


def test_the_last_seqno_and_vbuuid_get_the_rest(producer: TemporaryProducer, talk: Talk) -> None:
    rest = changed(DRAFT, (START, u64(4)), (END, u64(6)), (VBUUID, u64(newest(producer))))
    talk.socket.sendall(rest)
    assert seqnos(packets_until(talk, lambda packet: packet[1] == 0x55)) == [5, 6]


def test_a_failover_between_a_rollback_and_the_next_request_rolls_back_again(
    producer: TemporaryProducer, talk: Talk
) -> None:
    old = u64(newest(producer))
    producer.fail_over(0, 4)
    producer.write(b"new", b"v", 0)
    first = exchange(talk, changed(DRAFT, (START, u64(6)), (VBUUID, old)))
    assert (Packet.of(first).place, first[24:]) == (0x23, u64(4))  # a seqno, and no vbuuid
    producer.fail_over(0, 2)
    second = exchange(talk, changed(DRAFT, (START, u64(4)), (VBUUID, old)))
    assert (Packet.of(second).place, second[24:]) == (0x23, u64(2))
    accepted = exchange(talk, changed(DRAFT, (START, u64(2)), (VBUUID, old)))
    assert Packet.of(accepted).place == 0
    assert accepted[24:40] == u64(newest(producer)) + u64(2)


def test_a_seqno_below_the_one_of_the_rollback_is_taken_too(
    producer: TemporaryProducer, talk: Talk
) -> None:
    old = u64(newest(producer))
    producer.fail_over(0, 4)
    assert exchange(talk, changed(DRAFT, (START, u64(6)), (VBUUID, old)))[24:] == u64(4)
    accepted = exchange(talk, changed(DRAFT, (START, u64(1)), (VBUUID, old)))
    assert Packet.of(accepted).place == 0


def test_a_connection_that_is_torn_down_leaves_nothing_at_the_server(
    producer: TemporaryProducer,
) -> None:
    with Talk(producer) as talk:
        assert exchange(talk, OPEN) == OPENED
        talk.socket.sendall(TODAY)
        packets_until(talk, lambda packet: seqnos([packet]) == [6])
    server = producer.producer.server
    until(lambda: not server.view().connections)
    assert producer.bucket.stats().readers == 0


def test_one_connection_carries_streams_of_all_vbuckets(
    producer: TemporaryProducer, talk: Talk
) -> None:
    for vbucket in (1, 2, 3):
        producer.write(b"k", b"v", vbucket)
    requests = [
        changed(DRAFT, (6, u16(vbucket)), (12, u32(vbucket)), (VBUUID, u64(0)), (END, u64(1)))
        for vbucket in (1, 2, 3)
    ]
    talk.socket.sendall(b"".join(requests))
    ends: set[int] = set()
    while len(ends) < 3:
        packet = Packet.of(talk.packet())
        assert packet.magic == 0x81 or packet.opaque == packet.place
        if packet.opcode == 0x55:
            ends.add(packet.opaque)
    assert ends == {1, 2, 3}
