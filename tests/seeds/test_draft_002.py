"""Document 002, the oldest draft, to the letter: its own bytes to the server and to the library."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from printed_packets import PRINTED, RIGHT
from printed_servers import (
    ITEM_002,
    DocumentServer,
    goes_back_as_printed,
    knows_002,
    message_002,
    read_all,
    stream_002,
)
from seedkit import (
    SOON,
    Packet002,
    changed,
    exchange,
    give,
    packets_until,
    reply,
    request_002,
    u16,
    u32,
    u64,
)
from talk import Talk
from waiting import until

from upriver.consumer import Change, Consumer
from upriver.errors import Status, StatusError
from upriver.model import Op, VBucketState
from upriver.testing import TemporaryProducer
from upriver.wire import canonical
from upriver.wire.dialects import Draft002

REQUEST, OK, NOT_MINE, BACK = (RIGHT["002", n] for n in (2, 3, 4, 5))
LOG_REQUEST, LOG = RIGHT["002", 6], RIGHT["002", 7]
#: Where the fields of a stream request are.
VBUCKET, START, END, VBUUID = 14, 16, 24, 32
BRANCH = 0x3C58A  # the vbuuid in the printed request
#: Request error and response decode error, of which the document says no more.
ERRORS = (6, 7)


@pytest.fixture
def producer() -> Iterator[TemporaryProducer]:
    """Vbucket 12 of the examples, on the branch that they name, has one change of each kind."""
    with TemporaryProducer(vbuckets=16) as producer:
        give(
            producer,
            12,
            canonical.mutation(12, 1, 5, 77, 6, 4_000_000_000, 0, b"\0key", b"value"),
            canonical.deletion(12, 2, 3, 78, 1234, 0, b"\0gone"),
            canonical.expiration(12, 3, 2, 79, 1234, 0, b"\0late"),
            log=((BRANCH, 0),),
        )
        yield producer


@pytest.fixture
def talk(producer: TemporaryProducer) -> Iterator[Talk]:
    with Talk(producer, Draft002()) as talk:
        yield talk


def is_close(packet: bytes) -> bool:
    return packet[0] == 5


# ---- header ------------------------------------------------------------------------------


def test_a_header_alone_gets_an_error_and_the_connection_goes_on(talk: Talk) -> None:
    error = Packet002.of(exchange(talk, PRINTED["002", 1]))
    assert (error.opcode in ERRORS, error.request) == (True, 10)
    assert exchange(talk, REQUEST) == OK


def test_reserved_bytes_are_ignored_and_sent_as_zeros(talk: Talk) -> None:
    noisy = changed(REQUEST, (1, b"\xff\xff\xff"), (13, b"\xff"), (END, u64(3)))
    talk.socket.sendall(noisy)
    assert {Packet002.of(packet).reserved for packet in packets_until(talk, is_close)} == {bytes(3)}


def test_every_request_has_one_answer_with_its_id(talk: Talk) -> None:
    asked = [
        changed(REQUEST, (4, u32(7)), (VBUCKET, u16(99))),
        request_002(b"\x09", 8),
        request_002(b"\x02\x00\x00\x0c", 9),
    ]
    talk.socket.sendall(b"".join(asked))
    answers = [Packet002.of(talk.packet()) for _ in asked]
    refused, error, log = answers
    assert (refused.opcode, refused.request, refused.body) == (2, 7, b"\x02")
    assert (error.opcode in ERRORS, error.request) == (True, 8)
    assert (log.opcode, log.request, log.body[:1]) == (2, 9, b"\x01")


# ---- streams -----------------------------------------------------------------------------


def test_a_stream_from_its_request_to_its_close(talk: Talk) -> None:
    talk.socket.sendall(changed(REQUEST, (END, u64(3))))
    accepted, *stream = packets_until(talk, is_close)
    assert accepted == OK
    cut = [Packet002.of(packet) for packet in stream]
    assert all(packet.request == 0x2D and packet.length == len(packet.body) for packet in cut)
    assert [(x.opcode, x.body[0] if x.opcode == 4 else None) for x in cut] == [
        (3, None),  # stream begin
        (4, 1),  # snapshot start
        (4, 3),  # mutation
        (4, 4),  # deletion
        (4, 5),  # expiration
        (4, 2),  # snapshot end
        (5, None),  # stream close
    ]
    assert cut[0].body == u16(12)
    mutation, deletion, expiration = (packet.body for packet in cut[2:5])
    assert mutation == ITEM_002.pack(3, 0, 3, 77, 1, 5, 6, 4_000_000_000) + u32(0) + b"keyvalue"
    assert deletion == ITEM_002.pack(4, 0, 4, 78, 2, 3, 0, 0) + b"gone"
    assert expiration == ITEM_002.pack(5, 0, 4, 79, 3, 2, 0, 0) + b"late"
    assert cut[-1].body == u32(0)


def test_a_stream_begins_after_the_seqno_that_the_reader_has(talk: Talk) -> None:
    talk.socket.sendall(changed(REQUEST, (START, u64(2)), (END, u64(3))))
    items = [p[12:] for p in packets_until(talk, is_close) if p[0] == 4 and p[12] >= 3]
    assert [ITEM_002.unpack_from(item)[4] for item in items] == [3]


def test_a_stream_goes_on_to_the_end_of_the_snapshot_with_its_end(talk: Talk) -> None:
    talk.socket.sendall(changed(REQUEST, (END, u64(2))))
    items = [p[12:] for p in packets_until(talk, is_close) if p[0] == 4 and p[12] >= 3]
    assert [ITEM_002.unpack_from(item)[4] for item in items] == [1, 2, 3]


def test_several_requests_begin_several_streams(producer: TemporaryProducer, talk: Talk) -> None:
    producer.write(b"other", b"v", 0)
    one = changed(REQUEST, (END, u64(3)))
    other = changed(REQUEST, (4, u32(0x2E)), (VBUCKET, u16(0)), (END, u64(1)))
    talk.socket.sendall(one + other)
    closes: set[int] = set()
    begins: dict[int, bytes] = {}
    while len(closes) < 2:
        packet = Packet002.of(talk.packet())
        if packet.opcode == 3:
            begins[packet.request] = packet.body
        elif packet.opcode == 5:
            closes.add(packet.request)
    assert begins == {0x2D: u16(12), 0x2E: u16(0)}


def test_a_stream_closes_with_a_reason_when_its_vbucket_changes(
    producer: TemporaryProducer, talk: Talk
) -> None:
    talk.socket.sendall(REQUEST)
    packets_until(talk, lambda packet: packet[0] == 4 and packet[12] == 2)
    producer.set_state(12, VBucketState.DEAD)
    assert Packet002.of(talk.packet()) == Packet002(5, bytes(3), 0x2D, 4, u32(1))


def test_the_group_is_any_text_and_the_high_seqno_is_not_used(talk: Talk) -> None:
    fixed = changed(REQUEST[12:48], (END - 12, u64(3)), (28, u64(99)))
    for group in (b"", "größe".encode(), b"g" * 250):
        assert exchange(talk, request_002(fixed + group)) == OK
        packets_until(talk, is_close)


# ---- answers -----------------------------------------------------------------------------


def test_ok_and_not_my_vbucket_are_the_printed_bytes(talk: Talk) -> None:
    assert exchange(talk, changed(REQUEST, (VBUCKET, u16(99)))) == NOT_MINE == PRINTED["002", 4]
    assert exchange(talk, REQUEST) == OK == PRINTED["002", 3]


def test_a_rollback_is_the_explained_bytes() -> None:
    with TemporaryProducer(vbuckets=16) as producer, Talk(producer, Draft002()) as talk:
        give(
            producer,
            12,
            canonical.mutation(12, 0x45A8, 1, 1, 0, 0, 0, b"\0k", b"v"),
            log=((BRANCH, 0),),
        )
        assert exchange(talk, changed(REQUEST, (START, u64(0x9999)))) == BACK


def test_a_failover_log_is_the_printed_bytes() -> None:
    with TemporaryProducer(vbuckets=16) as producer, Talk(producer, Draft002()) as talk:
        frame = canonical.mutation(0, 0xF294, 1, 1, 0, 0, 0, b"\0k", b"v")
        give(producer, 0, frame, log=((0xDF2, 0xF294), (0x7B43, 0x9321)))
        # as it is explained, without a vbucket: of the first one
        assert exchange(talk, LOG_REQUEST) == LOG == PRINTED["002", 7]
        assert exchange(talk, request_002(b"\x02\x00\x00\x00")) == LOG


# ---- misprints on a connection -----------------------------------------------------------


def test_the_printed_request_id_is_taken_as_it_stands(talk: Talk) -> None:
    answer = Packet002.of(exchange(talk, PRINTED["002", 6]))
    assert (answer.opcode, answer.request) == (2, 0x0400002D)


def test_the_printed_length_of_a_stream_request_is_refused_and_ends_the_connection(
    talk: Talk,
) -> None:
    """24 bytes of 50 are no stream request, and no packet begins after them."""
    error = Packet002.of(exchange(talk, PRINTED["002", 2]))
    assert (error.opcode in ERRORS, error.request) == (True, 0x0400002D)
    assert talk.is_closed()


def test_the_unfinished_packets_of_its_last_part_are_of_no_use(talk: Talk) -> None:
    """They have memcached's first byte, so a connection of this draft ends with them."""
    assert exchange(talk, REQUEST) == OK
    talk.socket.sendall(PRINTED["002", 8])
    assert talk.is_closed()


# ---- the library -------------------------------------------------------------------------


def read(server: DocumentServer, end: int = 3, **options: object) -> list[Change]:
    return read_all(server, "002", {12: end}, **options)


def test_the_library_reads_a_server_that_knows_this_document_alone() -> None:
    with knows_002(stream_002) as server:
        changes = read(server)
    assert [(c.op, c.seqno, c.rev, c.cas, c.key, c.value) for c in changes] == [
        (Op.MUTATION, 1, 3, 165, b"mykey", b"myvalue"),
        (Op.DELETION, 2, 4, 166, b"mykey", b""),
        (Op.EXPIRATION, 3, 5, 167, b"mykey", b""),
    ]
    assert (changes[0].flags, changes[0].expiry) == (7, 9)
    (asked,) = [packet for packet in server.heard if packet[0] == 1 and packet[12] == 1]
    assert asked[12:48] == changed(REQUEST[12:48], (12, u64(3)), (20, bytes(16)))
    assert asked[48:].startswith(b"upriver")


def test_the_library_names_the_vbucket_when_it_asks_for_a_failover_log() -> None:
    with knows_002(stream_002) as server:
        read(server)
    logs = {packet[12:] for packet in server.heard if packet[0] == 1 and packet[12] == 2}
    assert logs == {b"\x02\x00\x00\x0c"}


def test_the_library_takes_a_failover_log_without_pairs() -> None:
    with knows_002(stream_002, log=OK) as server:
        assert [change.seqno for change in read(server)] == [1, 2, 3]


def test_the_library_goes_back_to_where_the_document_says() -> None:
    goes_back_as_printed("002", knows_002, stream_002, BACK, START)


def test_the_library_asks_again_where_a_vbucket_is_not() -> None:
    refused: list[bytes] = []

    def stream(request: bytes) -> list[bytes]:
        if refused:
            return stream_002(request)
        refused.append(request)
        return [reply(request, NOT_MINE)]

    with knows_002(stream) as server:
        assert [change.seqno for change in read(server)] == [1, 2, 3]
    assert len(refused) == 1


def test_a_request_error_ends_the_reading_of_the_library() -> None:
    with (
        knows_002(lambda request: [message_002(request, 6, b"\x01why")]) as server,
        pytest.raises(StatusError) as caught,
    ):
        read(server)
    assert caught.value.status is Status.INVALID


def test_the_library_asks_again_after_a_stream_that_closed_because_of_a_state() -> None:
    closed: list[bytes] = []

    def stream(request: bytes) -> list[bytes]:
        if closed:
            return stream_002(request)
        closed.append(request)
        return [reply(request, OK), message_002(request, 5, u32(1))]

    with (
        knows_002(stream) as server,
        Consumer(
            server.source, dialect="002", vbuckets=frozenset({12}), end={12: 3}, **SOON
        ) as consumer,
    ):
        assert [change.seqno for change in consumer] == [1, 2, 3]
        until(lambda: consumer.status().counts["stream ended: state changed"] == 1)
