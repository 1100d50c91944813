"""Document 000 to the letter: memcached's header, and each of its packets byte for byte."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
from printed_packets import PRINTED, RIGHT
from printed_servers import SEQNO_000 as SEQNO
from printed_servers import DocumentServer, goes_back_as_printed, knows_000, read_all, stream_000
from seedkit import (
    Packet,
    changed,
    exchange,
    give,
    give_three,
    is_closed,
    packets_until,
    reply,
    u16,
    u32,
    u64,
)
from talk import Talk

from upriver.consumer import Change, Consumer, Flushed
from upriver.consumer.changes import changes_of
from upriver.errors import Status
from upriver.model import Op, VBucketState
from upriver.session.consumer_events import Rows, StateAsked
from upriver.testing import TemporaryProducer
from upriver.wire import canonical
from upriver.wire import kv_messages as kv
from upriver.wire.dialects import Draft000

PACKETS = {number: packet for (draft, number), packet in RIGHT.items() if draft == "000"}
REQUEST, OK, NOT_MINE, BACK = (PACKETS[n] for n in (3, 4, 5, 6))
LOG_REQUEST, LOG = PACKETS[7], PACKETS[8]
STREAM_START, SNAPSHOT_START, SNAPSHOT_END = PACKETS[9], PACKETS[10], PACKETS[11]
MUTATION, DELETION, EXPIRATION = PACKETS[12], PACKETS[13], PACKETS[14]
FLUSH, END_OK, END_CHANGED, ACTIVE = PACKETS[15], PACKETS[16], PACKETS[17], PACKETS[18]
#: Where the fields of a stream request are.
VBUCKET, FLAGS, START, END, VBUUID, HIGH = 6, 24, 32, 40, 48, 56
BRANCH = 0x3C58A  # the vbuuid in the printed request
#: The printed changes as a store has them, by the packet that they are sent as.
STORED = {
    MUTATION: canonical.mutation(12, SEQNO, 3, 165, 0, 0, 0, b"\0mykey", b"myvalue"),
    DELETION: canonical.deletion(12, SEQNO, 3, 165, 1234, 0, b"\0mykey"),
    EXPIRATION: canonical.expiration(12, SEQNO, 3, 165, 1234, 0, b"\0mykey"),
}


@pytest.fixture
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=16) as producer:
        yield producer


@pytest.fixture
def filled(producer: TemporaryProducer) -> TemporaryProducer:
    """Vbucket 12 of the examples has the printed mutation, on the branch of the request."""
    give(producer, 12, STORED[MUTATION], log=((BRANCH, 0),))
    return producer


def speaking(producer: TemporaryProducer) -> Talk:
    return Talk(producer, Draft000())


def is_end(packet: bytes) -> bool:
    return packet[1] == 0x53


def seqnos(packets: Iterable[bytes]) -> list[int]:
    return [int.from_bytes(p[24:32]) for p in packets if p[0] == 0x80 and p[1] in (0x56, 0x57)]


# ---- header ------------------------------------------------------------------------------


def test_a_header_alone_is_refused_and_the_connection_goes_on(filled: TemporaryProducer) -> None:
    with speaking(filled) as talk:
        answer = Packet.of(exchange(talk, PRINTED["000", 1]))
        assert (answer.magic, answer.opcode, answer.opaque) == (0x81, 0x50, 10)
        assert answer.place == 4  # any status but 0 is an error
        assert exchange(talk, LOG_REQUEST)[:4] == bytes.fromhex("81510000")


def test_headers_say_the_lengths_and_have_no_more_than_they_must(
    filled: TemporaryProducer,
) -> None:
    with speaking(filled) as talk:
        talk.socket.sendall(changed(REQUEST, (END, u64(SEQNO))))
        packets = [Packet.of(packet) for packet in packets_until(talk, is_end)]
    for packet in packets:
        assert packet.length == len(packet.body)
        assert (packet.datatype, packet.opaque) == (0, 0x2D)
        is_change = packet.opcode == 0x56
        assert packet.cas == (165 if is_change else 0)
        assert packet.key_length == (5 if is_change else 0)
        assert packet.place == (0 if packet.magic == 0x81 else 12)


def test_a_first_byte_that_is_no_magic_ends_the_connection(filled: TemporaryProducer) -> None:
    assert is_closed(filled, changed(REQUEST, (0, b"\x90")))
    assert is_closed(filled, REQUEST, changed(LOG_REQUEST, (0, b"\x10")))


def test_every_request_has_one_answer_with_its_opaque(filled: TemporaryProducer) -> None:
    asked = [
        changed(REQUEST, (12, u32(7)), (VBUCKET, u16(99))),
        changed(LOG_REQUEST, (12, u32(8)), (VBUCKET, u16(99))),
        changed(LOG_REQUEST, (12, u32(9))),
    ]
    with speaking(filled) as talk:
        talk.socket.sendall(b"".join(asked))
        answers = [Packet.of(talk.packet()) for _ in asked]
    told = [(answer.opcode, answer.place, answer.opaque) for answer in answers]
    assert told == [(0x50, 7, 7), (0x51, 7, 8), (0x51, 0, 9)]


# ---- streams -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change", [MUTATION, DELETION, EXPIRATION], ids=["mutation", "deletion", "expiration"]
)
def test_a_whole_stream_is_the_documents_packets(
    producer: TemporaryProducer, change: bytes
) -> None:
    give(producer, 12, STORED[change], log=((BRANCH, 0),))
    with speaking(producer) as talk:
        talk.socket.sendall(changed(REQUEST, (END, u64(SEQNO))))
        stream = packets_until(talk, is_end)
    assert stream == [OK, STREAM_START, SNAPSHOT_START, change, SNAPSHOT_END, END_OK]
    assert PRINTED["000", 9] == STREAM_START
    assert (PRINTED["000", 10], PRINTED["000", 11]) == (SNAPSHOT_START, SNAPSHOT_END)


def test_a_stream_goes_on_with_new_changes_in_snapshots_of_their_own(
    filled: TemporaryProducer,
) -> None:
    with speaking(filled) as talk:
        talk.socket.sendall(REQUEST)
        packets_until(talk, lambda packet: packet == SNAPSHOT_END)
        for number in range(2):
            filled.write(b"k", b"%d" % number, 12)
            start, change, end = (talk.packet() for _ in range(3))
            assert (start, end) == (SNAPSHOT_START, SNAPSHOT_END)
            assert seqnos([change]) == [SEQNO + 1 + number]


def test_a_key_is_once_in_a_snapshot(producer: TemporaryProducer) -> None:
    for number in range(30):
        producer.write(b"k%d" % (number % 7), b"%d" % number, 12)
    with speaking(producer) as talk:
        talk.socket.sendall(changed(REQUEST, (END, u64(30))))
        stream = packets_until(talk, is_end)
    assert stream.count(SNAPSHOT_START) == 1
    assert seqnos(stream) == list(range(24, 31))


def test_a_stream_begins_after_the_seqno_that_the_reader_has(
    producer: TemporaryProducer,
) -> None:
    give_three(producer, 12, BRANCH)
    with speaking(producer) as talk:
        talk.socket.sendall(changed(REQUEST, (START, u64(2)), (END, u64(3))))
        assert seqnos(packets_until(talk, is_end)) == [3]


def test_a_stream_goes_on_to_the_end_of_the_snapshot_with_its_end(
    producer: TemporaryProducer,
) -> None:
    give_three(producer, 12, BRANCH)
    with speaking(producer) as talk:
        talk.socket.sendall(changed(REQUEST, (END, u64(2))))
        assert seqnos(packets_until(talk, is_end)) == [1, 2, 3]


def test_several_requests_begin_several_streams(filled: TemporaryProducer) -> None:
    filled.write(b"other", b"v", 0)
    other = changed(REQUEST, (12, u32(0x2E)), (VBUCKET, u16(0)), (END, u64(1)))
    with speaking(filled) as talk:
        talk.socket.sendall(changed(REQUEST, (END, u64(SEQNO))) + other)
        heard = [Packet.of(talk.packet()) for _ in range(12)]
    assert {(x.opaque, x.place) for x in heard if x.magic == 0x80} == {(0x2D, 12), (0x2E, 0)}
    assert sum(x.opcode == 0x53 for x in heard) == 2


def test_a_state_that_changed_ends_the_stream_with_the_printed_packet(
    filled: TemporaryProducer,
) -> None:
    with speaking(filled) as talk:
        talk.socket.sendall(REQUEST)
        packets_until(talk, lambda packet: packet == SNAPSHOT_END)
        filled.set_state(12, VBucketState.DEAD)
        assert talk.packet() == END_CHANGED


def test_a_flush_is_the_printed_packet_and_ends_the_stream(filled: TemporaryProducer) -> None:
    with speaking(filled) as talk:
        talk.socket.sendall(REQUEST)
        packets_until(talk, lambda packet: packet == SNAPSHOT_END)
        with Talk(filled) as client:
            assert client.ask(kv.FlushAll()).status is Status.SUCCESS
        assert [talk.packet(), talk.packet()] == [FLUSH, END_CHANGED]
    assert PRINTED["000", 15] == FLUSH


def test_a_takeover_hands_the_vbucket_over_by_the_printed_packet(
    filled: TemporaryProducer,
) -> None:
    with speaking(filled) as talk:
        talk.socket.sendall(changed(REQUEST, (FLAGS, u32(1))))
        *_, pending, active, end = packets_until(talk, is_end)
    assert pending == changed(ACTIVE, (24, b"\x02"))
    assert (active, end) == (ACTIVE, END_OK)
    assert filled.bucket.state(12) is VBucketState.DEAD


# ---- the fields of a request -------------------------------------------------------------


@pytest.mark.parametrize("flags", [0x8, 0x100, 0x200])
def test_flags_that_are_not_known_are_refused(filled: TemporaryProducer, flags: int) -> None:
    with speaking(filled) as talk:
        assert Packet.of(exchange(talk, changed(REQUEST, (FLAGS, u32(flags))))).place == 4


def test_a_group_has_the_length_that_the_key_length_says(filled: TemporaryProducer) -> None:
    with speaking(filled) as talk:
        for group in (b"", b"replication_12", b"g" * 250):
            lengths = ((2, u16(len(group))), (8, u32(40 + len(group))))
            packet = changed(REQUEST[:64], (END, u64(SEQNO)), *lengths) + group
            assert exchange(talk, packet) == OK
            packets_until(talk, is_end)


def test_the_high_seqno_and_the_reserved_bytes_are_not_used(filled: TemporaryProducer) -> None:
    with speaking(filled) as talk:
        noisy = changed(REQUEST, (28, b"\xff" * 4), (HIGH, u64(99)))
        assert exchange(talk, noisy) == OK


# ---- answers -----------------------------------------------------------------------------


def test_not_my_vbucket_is_the_status_of_the_list(filled: TemporaryProducer) -> None:
    with speaking(filled) as talk:
        assert exchange(talk, changed(REQUEST, (VBUCKET, u16(99)))) == NOT_MINE
    assert Packet.of(NOT_MINE).place == 7


def test_a_rollback_is_the_explained_bytes(producer: TemporaryProducer) -> None:
    frame = canonical.mutation(12, 0x45A8, 1, 1, 0, 0, 0, b"\0k", b"v")
    give(producer, 12, frame, log=((BRANCH, 0),))
    with speaking(producer) as talk:
        assert exchange(talk, changed(REQUEST, (START, u64(0x9999)))) == BACK
    assert (Packet.of(BACK).length, BACK[24:]) == (8, PRINTED["000", 6][24:])


def test_an_unknown_vbuuid_is_sent_back_to_the_beginning(filled: TemporaryProducer) -> None:
    unknown = changed(REQUEST, (START, u64(5)), (VBUUID, u64(1)))
    with speaking(filled) as talk:
        assert exchange(talk, unknown) == changed(BACK, (24, u64(0)))


def test_a_failover_log_is_the_explained_bytes(producer: TemporaryProducer) -> None:
    frame = canonical.mutation(12, 0xF294, 1, 1, 0, 0, 0, b"\0k", b"v")
    give(producer, 12, frame, log=((0xDF2, 0xF294), (0x7B43, 0x9321)))
    with speaking(producer) as talk:
        assert exchange(talk, LOG_REQUEST) == LOG
    assert (Packet.of(LOG).length // 16, LOG[24:]) == (2, PRINTED["000", 8][24:])


def test_a_vbucket_has_a_new_vbuuid_once_it_becomes_active(filled: TemporaryProducer) -> None:
    filled.set_state(12, VBucketState.REPLICA)
    filled.set_state(12, VBucketState.ACTIVE)
    with speaking(filled) as talk:
        log = exchange(talk, LOG_REQUEST)[24:]
    assert len(log) == 32
    assert log[:8] != u64(BRANCH)
    assert log[8:] == u64(SEQNO) + u64(BRANCH) + u64(0)


# ---- misprints on a connection -----------------------------------------------------------


def test_the_request_type_that_was_left_in_byte_5_is_ignored(filled: TemporaryProducer) -> None:
    assert (PRINTED["000", 3][5], PRINTED["000", 7][5]) == (1, 2)
    with speaking(filled) as talk:
        assert exchange(talk, PRINTED["000", 7])[:4] == LOG[:4]
        assert exchange(talk, PRINTED["000", 3]) == OK


# ---- the library -------------------------------------------------------------------------


def read(server: DocumentServer, **options: object) -> list[Change]:
    return read_all(server, "000", {12: SEQNO + 2}, **options)


def test_the_library_reads_a_server_that_knows_this_document_alone() -> None:
    with knows_000(stream_000) as server:
        changes = read(server)
    assert [(c.op, c.seqno, c.rev, c.cas, c.key, c.value) for c in changes] == [
        (Op.MUTATION, SEQNO, 3, 165, b"mykey", b"myvalue"),
        (Op.DELETION, SEQNO + 1, 3, 165, b"mykey", b""),
        (Op.EXPIRATION, SEQNO + 2, 3, 165, b"mykey", b""),
    ]
    (asked,) = [packet for packet in server.heard if Packet.of(packet).extras_length == 40]
    nothing = ((16, u64(SEQNO + 2)), (24, u64(0)), (32, u64(0)))
    assert asked[24:64] == changed(REQUEST[24:64], *nothing)
    assert asked[64:].startswith(b"upriver")


def test_the_library_asks_for_the_failover_log_before_and_after_a_stream_is_accepted() -> None:
    """The OK of this document does not have it."""
    with knows_000(stream_000) as server:
        read(server)
    asked = [packet[1] for packet in server.heard if packet[6:8] == u16(12)]
    assert asked == [0x51, 0x50, 0x51]


@pytest.mark.parametrize("pairs", [0, 1, 1024])
def test_the_library_takes_failover_logs_of_any_length(pairs: int) -> None:
    entries = b"".join(u64(2000 - n) + u64(2000 - n) for n in range(pairs))
    log = changed(LOG[:24], (8, u32(len(entries)))) + entries
    with knows_000(stream_000, log) as server:
        assert len(read(server)) == 3


def test_the_library_goes_back_to_where_the_document_says() -> None:
    goes_back_as_printed("000", knows_000, stream_000, BACK, START)


@pytest.mark.parametrize("refusal", [NOT_MINE, PRINTED["000", 5]], ids=["7", "1"])
def test_the_library_takes_both_statuses_of_not_my_vbucket(refusal: bytes) -> None:
    refused: list[bytes] = []

    def stream(request: bytes) -> list[bytes]:
        if refused:
            return stream_000(request)
        refused.append(request)
        return [reply(request, refusal)]

    with knows_000(stream) as server:
        assert len(read(server)) == 3
    assert len(refused) == 1


def test_the_library_asks_again_after_a_state_that_changed() -> None:
    ended: list[bytes] = []

    def stream(request: bytes) -> list[bytes]:
        if ended:
            return stream_000(request)
        ended.append(request)
        return [reply(request, packet) for packet in (OK, STREAM_START, END_CHANGED)]

    with knows_000(stream) as server:
        assert len(read(server)) == 3


def test_a_flush_and_a_state_are_events_of_the_library() -> None:
    def stream(request: bytes) -> list[bytes]:
        *before, end = stream_000(request)
        states = [changed(ACTIVE, (24, bytes([state]))) for state in (2, 3, 4, 1)]
        return [*before, *(reply(request, packet) for packet in (FLUSH, *states)), end]

    with (
        knows_000(stream) as server,
        Consumer(
            server.source, dialect="000", vbuckets=frozenset({12}), end={12: SEQNO + 2}
        ) as consumer,
    ):
        events = list(consumer.events())
    rows = [
        row.seqno for event in events if isinstance(event, Rows) for row in changes_of(event.batch)
    ]
    assert rows == [SEQNO, SEQNO + 1, SEQNO + 2]
    assert [event for event in events if isinstance(event, Flushed)] == [Flushed(12)]
    assert [event.state for event in events if isinstance(event, StateAsked)] == [
        VBucketState.PENDING,
        VBucketState.REPLICA,
        VBucketState.DEAD,
        VBucketState.ACTIVE,
    ]
    assert not [packet for packet in server.heard if packet[0] == 0x81]  # none is answered
