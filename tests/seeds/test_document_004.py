"""Document 004 to the letter: the stream request of today, its fields, statuses and disconnects."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from printed_packets import PRINTED, RIGHT
from printed_servers import DocumentServer, knows_004, marker_004
from seedkit import (
    SOON,
    Packet,
    changed,
    exchange,
    give,
    give_three,
    is_closed,
    packets_until,
    plain,
    reply,
    u16,
    u32,
    u64,
)
from talk import Talk

from upriver.consumer import Consumer, Rollback
from upriver.errors import Status, StatusError
from upriver.model import FailoverLog, Snapshot, StreamOffset, VBucketState
from upriver.producer.server_settings import ServerSettings
from upriver.session.stream_position import Position
from upriver.session.stream_request_checks import Policy
from upriver.testing import TemporaryProducer
from upriver.wire import canonical
from upriver.wire.protocol_enums import Feature

REQUEST, BACK, AGAIN, OK = (RIGHT["004", n] for n in (1, 2, 3, 4))
OPEN = changed(RIGHT["001", 1], (28, u32(1)))
OPEN_CONSUMER, OPENED = RIGHT["001", 1], RIGHT["001", 2]
#: Where the fields of a stream request are.
VBUCKET, OPAQUE, FLAGS, START, END, VBUUID, SNAPSHOT = 6, 12, 24, 32, 40, 48, 56
BRANCH = 0xFEEDDECA  # the vbuuid in the printed requests


@pytest.fixture
def producer() -> Iterator[TemporaryProducer]:
    """Vbucket 0 of the examples, on the branch that they name, has three changes."""
    with TemporaryProducer(vbuckets=8) as producer:
        give_three(producer, 0, BRANCH)
        yield producer


@pytest.fixture
def talk(producer: TemporaryProducer) -> Iterator[Talk]:
    with opened(producer) as talk:
        yield talk


def opened(producer: TemporaryProducer, *features: Feature) -> Talk:
    talk = Talk(producer)
    if features:
        talk.hello(*features)
    assert exchange(talk, OPEN) == OPENED
    return talk


def request(*changes: tuple[int, bytes]) -> bytes:
    """The second printed request, which begins with nothing."""
    return changed(AGAIN, *changes)


def at(seqno: int, end: int, *changes: tuple[int, bytes]) -> bytes:
    """A request of one who has everything up to a seqno."""
    here = ((START, u64(seqno)), (SNAPSHOT, u64(seqno) * 2), (END, u64(end)))
    return request(*here, *changes)


def with_value(packet: bytes, value: bytes) -> bytes:
    return changed(packet, (8, u32(48 + len(value)))) + value


def status(answer: bytes) -> int:
    packet = Packet.of(answer)
    assert packet.magic == 0x81
    return packet.place


def is_end(packet: bytes) -> bool:
    return packet[1] == 0x55


def seqnos(packets: list[bytes]) -> list[int]:
    return [int.from_bytes(p[24:32]) for p in packets if p[:2] == b"\x80\x57"]


# ---- the request and its fields ----------------------------------------------------------


def test_everything_of_a_stream_has_the_opaque_of_its_request(talk: Talk) -> None:
    talk.socket.sendall(request((OPAQUE, u32(0xDEADBEEF)), (END, u64(3))))
    stream = packets_until(talk, is_end)
    assert {Packet.of(packet).opaque for packet in stream} == {0xDEADBEEF}


@pytest.mark.parametrize(
    "wrong",
    [
        changed(AGAIN[:24], (4, b"\0"), (8, u32(0))),
        changed(AGAIN, (2, u16(1)), (8, u32(49))) + b"k",
        changed(AGAIN[:-4], (4, b"\x2c"), (8, u32(44))),
    ],
    ids=["no extras", "a key", "an incomplete field"],
)
def test_a_request_that_is_made_otherwise_is_invalid(talk: Talk, wrong: bytes) -> None:
    assert status(exchange(talk, wrong)) == 4
    assert status(exchange(talk, AGAIN)) == 0


def test_a_value_needs_a_connection_with_collections(producer: TemporaryProducer) -> None:
    chosen = with_value(request((END, u64(3))), b'{"collections":["0"]}')
    with opened(producer) as talk:
        assert status(exchange(talk, chosen)) == 4
    with opened(producer, Feature.COLLECTIONS) as talk:
        talk.control("enable_noop", "true")
        assert status(exchange(talk, chosen)) == 0
        assert seqnos(packets_until(talk, is_end)) == [1, 2, 3]


def test_reserved_bytes_are_not_used(talk: Talk) -> None:
    assert status(exchange(talk, request((28, b"\xff" * 4)))) == 0


@pytest.mark.parametrize("flag", [0x2, 0x4, 0x10, 0x20, 0x40, 0x80])
def test_a_flag_that_servers_know_is_taken(talk: Talk, flag: int) -> None:
    assert status(exchange(talk, request((FLAGS, u32(flag)), (VBUUID, u64(0))))) == 0


@pytest.mark.parametrize("flag", [0x8, 0x100, 0x200, 0x80000000])
def test_other_flags_are_invalid(talk: Talk, flag: int) -> None:
    refused = exchange(talk, request((FLAGS, u32(flag))))
    assert status(refused) == 4
    assert f"unknown flags {flag:#x}" in json.loads(refused[24:])["error"]["context"]


def test_a_takeover_is_asked_for_by_its_flag(producer: TemporaryProducer, talk: Talk) -> None:
    talk.socket.sendall(request((FLAGS, u32(1))))
    packets_until(talk, lambda packet: seqnos([packet]) == [3])
    talk.socket.sendall(changed(plain(AGAIN), (1, b"\x56")))  # the marker asked for an answer
    state = talk.packet()
    assert (state[1], state[24:]) == (0x5B, b"\x03")  # pending, in today's numbers
    assert producer.bucket.state(0) is VBucketState.ACTIVE  # until the reader has answered


def test_a_stream_goes_on_to_the_end_of_the_snapshot_with_its_end(talk: Talk) -> None:
    talk.socket.sendall(request((END, u64(2))))
    assert seqnos(packets_until(talk, is_end)) == [1, 2, 3]


def test_an_end_of_0_ends_at_once_as_on_servers(talk: Talk) -> None:
    talk.socket.sendall(request((END, u64(0))))
    accepted, end = packets_until(talk, is_end)
    assert (status(accepted), end[24:]) == (0, u32(0))


def test_an_end_of_0_can_be_none_as_it_is_written() -> None:
    settings = ServerSettings(policy=Policy(end_zero_is_unbounded=True))
    with TemporaryProducer(vbuckets=8, settings=settings) as producer:
        give_three(producer, 0, BRANCH)
        with opened(producer) as talk:
            talk.socket.sendall(request((END, u64(0))))
            packets_until(talk, lambda packet: seqnos([packet]) == [3])
            producer.write(b"more", b"v", 0)
            assert seqnos(packets_until(talk, lambda packet: packet[1] == 0x57)) == [4]


def test_vbuuid_0_gets_everything(talk: Talk) -> None:
    talk.socket.sendall(request((VBUUID, u64(0)), (END, u64(3))))
    assert seqnos(packets_until(talk, is_end)) == [1, 2, 3]


def test_vbuuid_0_above_the_beginning_goes_back_to_it(talk: Talk) -> None:
    assert exchange(talk, at(2, 3, (VBUUID, u64(0)))) == BACK


def test_a_snapshot_that_was_cut_goes_on(talk: Talk) -> None:
    """From seqno 2 on, within the snapshot from 1 to 3 that was announced."""
    talk.socket.sendall(request((START, u64(2)), (SNAPSHOT, u64(1) + u64(3)), (END, u64(3))))
    stream = packets_until(talk, is_end)
    (marker,) = [packet for packet in stream if packet[1] == 0x56]
    assert marker[24:40] == u64(1) + u64(3)
    assert seqnos(stream) == [3]


def test_a_vbucket_has_a_new_vbuuid_once_it_becomes_active(producer: TemporaryProducer) -> None:
    producer.set_state(0, VBucketState.REPLICA)
    producer.set_state(0, VBucketState.ACTIVE)
    with opened(producer) as talk:
        log = exchange(talk, AGAIN)[24:]
    assert log[:8] != u64(BRANCH)
    assert log[8:] == u64(3) + u64(BRANCH) + u64(0)


# ---- the printed exchange ----------------------------------------------------------------


def test_the_printed_exchange(producer: TemporaryProducer) -> None:
    """Rejected to 0, tried again from there, accepted with the log."""
    give(producer, 1, log=((7, 0),))
    with opened(producer) as talk:
        assert exchange(talk, changed(REQUEST, (VBUCKET, u16(1)))) == BACK
        accepted = exchange(talk, AGAIN)
    assert accepted == changed(OK[:24], (8, u32(16))) + u64(BRANCH) + u64(0)
    packet = Packet.of(OK)
    assert (packet.key_length, packet.extras_length) == (0, 0)


def test_one_who_is_ahead_on_its_branch_goes_back_to_the_high_seqno(talk: Talk) -> None:
    """The printed request names such a position; the text would refuse it with ERANGE."""
    assert exchange(talk, at(5, 9)) == changed(BACK, (24, u64(3)))


def test_the_printed_second_request_is_waited_for_until_it_is_whole(talk: Talk) -> None:
    """It announces 8 bytes more than it has."""
    talk.socket.sendall(PRINTED["004", 3])
    assert len(AGAIN) - len(PRINTED["004", 3]) == 8
    assert status(exchange(talk, bytes(8))) == 0


# ---- statuses ----------------------------------------------------------------------------


def test_exists_not_my_vbucket_and_range(talk: Talk) -> None:
    talk.socket.sendall(AGAIN)
    packets_until(talk, lambda packet: seqnos([packet]) == [3])
    outside = request((VBUCKET, u16(1)), (START, u64(5)), (SNAPSHOT, u64(6) + u64(9)))
    beyond = request((VBUCKET, u16(1)), (START, u64(5)), (SNAPSHOT, u64(2) + u64(4)))
    for number, packet in (
        (0x02, AGAIN),
        (0x07, request((VBUCKET, u16(99)))),
        (0x22, at(3, 2, (VBUCKET, u16(1)))),
        (0x22, outside),
        (0x22, beyond),
    ):
        assert status(exchange(talk, packet)) == number


def test_a_start_at_its_end_is_granted_and_ends_at_once(talk: Talk) -> None:
    talk.socket.sendall(at(3, 3))
    accepted, end = packets_until(talk, is_end)
    assert (status(accepted), end[24:]) == (0, u32(0))


def test_a_stream_too_many_is_no_memory() -> None:
    settings = ServerSettings(max_streams=1)
    with TemporaryProducer(vbuckets=8, settings=settings) as producer:
        give_three(producer, 0, BRANCH)
        with opened(producer) as talk:
            assert status(exchange(talk, AGAIN)) == 0
            packets_until(talk, lambda packet: seqnos([packet]) == [3])
            assert status(exchange(talk, request((VBUCKET, u16(1))))) == 0x82


def test_a_stream_id_needs_the_feature_and_the_feature_needs_one(
    producer: TemporaryProducer,
) -> None:
    with opened(producer, Feature.COLLECTIONS) as talk:
        talk.control("enable_noop", "true")
        assert status(exchange(talk, with_value(AGAIN, b'{"sid":7}'))) == 0x8D
        assert talk.control("enable_stream_id", "true").status is Status.SUCCESS
        assert status(exchange(talk, AGAIN)) == 0x8D
        assert status(exchange(talk, with_value(AGAIN, b'{"sid":7}'))) == 0


# ---- disconnects -------------------------------------------------------------------------


def test_another_client_of_the_same_name_ends_the_connection(
    producer: TemporaryProducer, talk: Talk
) -> None:
    with opened(producer) as other:
        assert talk.is_closed()
        assert status(exchange(other, AGAIN)) == 0


def test_a_name_counts_for_one_role(producer: TemporaryProducer, talk: Talk) -> None:
    with Talk(producer) as consumer:
        assert exchange(consumer, OPEN_CONSUMER) == OPENED
        assert status(exchange(talk, AGAIN)) == 0


def test_a_request_to_a_consumer_ends_the_connection(producer: TemporaryProducer) -> None:
    assert is_closed(producer, OPEN_CONSUMER, AGAIN)


def test_a_request_on_a_connection_that_was_not_opened_ends_it(
    producer: TemporaryProducer,
) -> None:
    assert is_closed(producer, AGAIN)


# ---- the library -------------------------------------------------------------------------


def test_the_library_has_the_printed_exchange_with_a_server() -> None:
    """It names the printed position, goes back to 0 as it is told, and is accepted."""
    asked: list[bytes] = []

    def stream(request_: bytes) -> list[bytes]:
        asked.append(request_)
        if len(asked) == 1:
            return [reply(request_, BACK)]
        change = canonical.mutation(0, 7, 1, 9, 0, 0, 0, b"k", b"v")
        return [reply(request_, p) for p in (OK, marker_004(request_, 0, 7), change)]

    here = StreamOffset(BRANCH, 0xFFEEDD, Snapshot(0xFFEEDD, 0xFFEEFF))
    where = Position(here, FailoverLog.of((BRANCH, 0x5432)))
    told: list[Rollback] = []
    with (
        knows_004(stream) as server,
        Consumer(
            server.source,
            dialect="dcp",
            vbuckets=frozenset({0}),
            start={0: where},
            on_rollback=told.append,
            **SOON,
        ) as consumer,
    ):
        assert next(iter(consumer)).seqno == 7
    active_only = (FLAGS, u32(0x10))
    assert asked[0] == changed(REQUEST, active_only, (OPAQUE, asked[0][12:16]))
    assert asked[1] == changed(AGAIN, active_only, (OPAQUE, asked[1][12:16]), (VBUUID, u64(0)))
    assert [(rollback.from_seqno, rollback.to_seqno) for rollback in told] == [(0xFFEEDD, 0)]


@pytest.mark.parametrize("number", [0x22, 0x04, 0x8D])
def test_a_refusal_that_stays_ends_the_reading_of_the_library(number: int) -> None:
    with (
        knows_004(lambda request_: [plain(request_, number)]) as server,
        pytest.raises(StatusError),
    ):
        read_once(server)


@pytest.mark.parametrize("number", [0x02, 0x07, 0x82, 0x86])
def test_a_refusal_that_passes_is_asked_again_by_the_library(number: int) -> None:
    asked: list[bytes] = []

    def stream(request_: bytes) -> list[bytes]:
        asked.append(request_)
        if len(asked) == 1:
            return [plain(request_, number)]
        change = canonical.mutation(0, 7, 1, 9, 0, 0, 0, b"k", b"v")
        return [reply(request_, p) for p in (OK, marker_004(request_, 0, 7), change)]

    with knows_004(stream) as server:
        assert read_once(server) == 7


def read_once(server: DocumentServer) -> int:
    """The seqno of the first change that a reader gets."""
    with Consumer(server.source, dialect="dcp", vbuckets=frozenset({0}), **SOON) as consumer:
        return next(iter(consumer)).seqno
