"""Document 001 to the letter: Open, both roles on a connection, and each of its packets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
from consumerkit import at
from printed_packets import PRINTED, RIGHT
from printed_servers import DocumentServer, knows_001, read_all, stream_001
from seedkit import (
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

from upriver.consumer import Change, Consumer, Flushed, Rollback
from upriver.errors import RemoteProtocolError, Status
from upriver.model import FailoverLog, Op, VBucketState
from upriver.session.consumer_events import StateAsked
from upriver.testing import TemporaryProducer
from upriver.wire import canonical
from upriver.wire import kv_messages as kv
from upriver.wire.dialects import Draft001

PACKETS = {number: packet for (draft, number), packet in RIGHT.items() if draft == "001"}
OPEN_CONSUMER, OPENED = PACKETS[1], PACKETS[2]
OPEN = changed(OPEN_CONSUMER, (28, u32(1)))
ADD, CLOSE = PACKETS[3], PACKETS[5]
LOG_REQUEST, LOG = PACKETS[6], PACKETS[7]
#: A request that must go back to 0, and the one after that.
REQUEST, BACK, AGAIN, OK = PACKETS[8], PACKETS[9], PACKETS[10], PACKETS[11]
END_OK, MARKER = PACKETS[12], PACKETS[13]
MUTATION, DELETION, EXPIRATION = PACKETS[14], PACKETS[15], PACKETS[16]
FLUSH, DEAD = PACKETS[17], PACKETS[18]
#: Where fields of every request, and those of a stream request, are.
VBUCKET, OPAQUE, FLAGS, START, END, VBUUID, HIGH = 6, 12, 24, 32, 40, 48, 56
BRANCH = 0xFEEDDECA  # the vbuuid in the printed requests
OPAQUE_OF_CHANGES, VBUCKET_OF_CHANGES = 0x1210, 0x210
#: The printed changes as a store has them.
STORED = {
    MUTATION: canonical.mutation(0x210, 4, 1, 0x64A5ACEC8A56, 0, 0, 0, b"\0hello", b"world"),
    DELETION: canonical.deletion(0x210, 5, 1, 0, 1234, 0, b"\0hello"),
    EXPIRATION: canonical.expiration(0x210, 5, 1, 0, 1234, 0, b"\0hello"),
}


@pytest.fixture
def producer() -> Iterator[TemporaryProducer]:
    """Vbucket 0 of the examples, on the branch that they name, has three changes."""
    with TemporaryProducer(vbuckets=8) as producer:
        give_three(producer, 0, BRANCH)
        yield producer


@pytest.fixture
def talk(producer: TemporaryProducer) -> Iterator[Talk]:
    """A connection that is opened as the document says."""
    with Talk(producer, Draft001()) as talk:
        assert exchange(talk, OPEN) == OPENED
        yield talk


def from_nothing(*changes: tuple[int, bytes]) -> bytes:
    """The second printed stream request, of vbucket 0 from the beginning."""
    return changed(AGAIN, *changes)


def status(answer: bytes) -> int:
    packet = Packet.of(answer)
    assert packet.magic == 0x81
    return packet.place


def is_end(packet: bytes) -> bool:
    return packet[1] == 0x55


def seqnos(packets: Iterable[bytes]) -> list[int]:
    return [int.from_bytes(p[24:32]) for p in packets if p[0] == 0x80 and p[1] == 0x57]


def with_parts(
    packet: bytes, *, extras: bytes = b"", key: bytes = b"", value: bytes = b""
) -> bytes:
    """A header with other parts behind it, and their lengths."""
    size = len(extras) + len(key) + len(value)
    lengths = ((2, u16(len(key))), (4, bytes([len(extras)])), (8, u32(size)))
    return changed(packet[:24], *lengths) + extras + key + value


# ---- both ways on one connection ---------------------------------------------------------


def test_more_streams_can_be_begun_while_one_sends(producer: TemporaryProducer, talk: Talk) -> None:
    producer.write(b"other", b"v", 3)
    talk.socket.sendall(from_nothing())
    packets_until(talk, lambda packet: seqnos([packet]) == [1])
    talk.socket.sendall(from_nothing((VBUCKET, u16(3)), (OPAQUE, u32(7)), (END, u64(1))))
    heard = packets_until(talk, lambda packet: is_end(packet))
    assert {Packet.of(packet).opaque for packet in heard} == {0x1000, 7}
    producer.write(b"k", b"v", 0)
    assert Packet.of(talk.packet()).opaque == 0x1000  # the first goes on


# ---- open --------------------------------------------------------------------------------


def test_a_connection_is_opened_by_the_printed_packets(producer: TemporaryProducer) -> None:
    for opening, consumes in ((OPEN, False), (OPEN_CONSUMER, True)):
        with Talk(producer, Draft001()) as talk:
            assert exchange(talk, opening) == OPENED == PRINTED["001", 2]
            views = producer.producer.server.view().connections
            assert ("bucketstream vb[100-105]", consumes) in {(x.name, x.consumer) for x in views}


@pytest.mark.parametrize(
    "wrong",
    [
        with_parts(OPEN, key=b"name"),
        with_parts(OPEN, extras=OPEN[24:32]),
        with_parts(OPEN, extras=OPEN[24:32], key=b"name", value=b"value"),
        with_parts(OPEN, extras=u32(0) + u32(0x80), key=b"name"),
    ],
    ids=["no extras", "no key", "a value", "an unknown flag"],
)
def test_an_open_that_is_made_otherwise_is_invalid(
    producer: TemporaryProducer, wrong: bytes
) -> None:
    with Talk(producer, Draft001()) as talk:
        assert status(exchange(talk, wrong)) == 4
        assert exchange(talk, OPEN) == OPENED


def test_the_sequence_number_is_not_used(producer: TemporaryProducer) -> None:
    with Talk(producer, Draft001()) as talk:
        assert exchange(talk, changed(OPEN, (24, b"\xff" * 4))) == OPENED


# ---- add stream --------------------------------------------------------------------------


def test_add_stream_is_refused_where_no_copy_is(producer: TemporaryProducer) -> None:
    with Talk(producer, Draft001()) as talk:
        assert exchange(talk, OPEN_CONSUMER) == OPENED
        assert status(exchange(talk, ADD)) == 7  # vbucket 5 is active


@pytest.mark.parametrize(
    "wrong",
    [
        with_parts(ADD),
        with_parts(ADD, extras=ADD[24:], key=b"k"),
        with_parts(ADD, extras=ADD[24:], value=b"v"),
    ],
    ids=["no extras", "a key", "a value"],
)
def test_an_add_stream_that_is_made_otherwise_is_invalid(
    producer: TemporaryProducer, wrong: bytes
) -> None:
    producer.set_state(5, VBucketState.REPLICA)
    with Talk(producer, Draft001()) as talk:
        assert exchange(talk, OPEN_CONSUMER) == OPENED
        assert status(exchange(talk, wrong)) == 4


def test_add_stream_to_a_producer_ends_the_connection(producer: TemporaryProducer) -> None:
    assert is_closed(producer, OPEN, ADD)


# ---- close stream ------------------------------------------------------------------------


def test_a_stream_is_closed_by_the_printed_packet(producer: TemporaryProducer, talk: Talk) -> None:
    producer.write(b"k", b"v", 5)
    talk.socket.sendall(from_nothing((VBUCKET, u16(5)), (OPAQUE, u32(0x1001))))
    packets_until(talk, lambda packet: seqnos([packet]) == [1])
    assert exchange(talk, CLOSE) == plain(CLOSE)
    producer.write(b"k", b"unseen", 5)
    late = changed(plain(CLOSE), (1, b"\x57"), (OPAQUE, u32(0x1001)))  # an answer to a change
    assert status(exchange(talk, late + CLOSE)) == 1  # there is none any more
    assert exchange(talk, LOG_REQUEST)[:4] == LOG[:4]


@pytest.mark.parametrize(
    "wrong",
    [
        with_parts(CLOSE, extras=b"\0" * 4),
        with_parts(CLOSE, key=b"k"),
        with_parts(CLOSE, value=b"v"),
        with_parts(LOG_REQUEST, extras=b"\0" * 4),
        with_parts(LOG_REQUEST, key=b"k"),
        with_parts(LOG_REQUEST, value=b"v"),
        with_parts(AGAIN),
        with_parts(AGAIN, extras=AGAIN[24:], key=b"k"),
        with_parts(AGAIN, extras=AGAIN[24:], value=b"v"),
    ],
    ids=[
        f"{what}, {part}"
        for what, parts in (
            ("close", ("extras", "key", "value")),
            ("failover log", ("extras", "key", "value")),
            ("stream request", ("no extras", "key", "value")),
        )
        for part in parts
    ],
)
def test_a_request_with_parts_that_it_must_not_have_is_invalid(talk: Talk, wrong: bytes) -> None:
    talk.socket.sendall(from_nothing((VBUCKET, u16(3)), (END, u64(0))))  # the draft is known
    packets_until(talk, is_end)
    assert status(exchange(talk, wrong)) == 4
    assert exchange(talk, LOG_REQUEST)[:4] == LOG[:4]


# ---- failover log ------------------------------------------------------------------------


def test_a_failover_log_has_a_value_and_nothing_else(producer: TemporaryProducer) -> None:
    """The printed log, without the entries that begin above a newer one."""
    frame = canonical.mutation(0, 0x5432, 1, 1, 0, 0, 0, b"\0k", b"v")
    give(producer, 0, frame, log=((0xFEEDDECA, 0x5432), (0xFEEDFACE, 4)))
    entries = u64(0xFEEDDECA) + u64(0x5432) + u64(0xFEEDFACE) + u64(4)
    with Talk(producer, Draft001()) as talk:
        talk.socket.sendall(OPEN)
        assert talk.packet() == OPENED
        assert exchange(talk, LOG_REQUEST) == changed(LOG[:24], (8, u32(32))) + entries


def test_a_failover_log_of_a_vbucket_that_is_not_there(talk: Talk) -> None:
    talk.socket.sendall(from_nothing((VBUCKET, u16(3)), (END, u64(0))))
    packets_until(talk, is_end)
    asked = changed(LOG_REQUEST, (VBUCKET, u16(99)))
    assert exchange(talk, asked) == plain(asked, 7)


# ---- stream request ----------------------------------------------------------------------


def test_a_request_goes_back_and_is_accepted_with_the_log(
    producer: TemporaryProducer, talk: Talk
) -> None:
    assert exchange(talk, REQUEST) == changed(BACK, (24, u64(3)))  # no further than it must
    accepted = exchange(talk, AGAIN)
    entries = b"".join(u64(x.vbuuid) + u64(x.seqno) for x in producer.bucket.failover_log(0))
    assert accepted == changed(OK[:24], (8, u32(16))) + entries
    assert entries == OK[24:32] + u64(0)


def test_an_unknown_vbuuid_gets_the_printed_rollback_to_0(
    producer: TemporaryProducer, talk: Talk
) -> None:
    give(producer, 1, log=((7, 0),))
    unknown = changed(REQUEST, (VBUCKET, u16(1)))
    assert exchange(talk, unknown) == BACK
    assert BACK[24:] == PRINTED["001", 9][24:]


def test_everything_of_a_stream_has_the_opaque_of_its_request(talk: Talk) -> None:
    talk.socket.sendall(from_nothing((END, u64(3))))
    stream = packets_until(talk, is_end)
    assert {Packet.of(packet).opaque for packet in stream} == {0x1000}
    assert [packet[1] for packet in stream] == [0x53, 0x56, 0x57, 0x57, 0x57, 0x55]


def test_a_stream_begins_after_the_seqno_that_the_reader_has(talk: Talk) -> None:
    talk.socket.sendall(changed(REQUEST, (START, u64(2)), (END, u64(3))))
    assert seqnos(packets_until(talk, is_end)) == [3]


def test_a_stream_goes_on_to_the_end_of_the_snapshot_with_its_end(talk: Talk) -> None:
    talk.socket.sendall(from_nothing((END, u64(2))))
    assert seqnos(packets_until(talk, is_end)) == [1, 2, 3]


def test_reserved_bytes_and_the_high_seqno_are_not_used(talk: Talk) -> None:
    talk.socket.sendall(from_nothing((28, b"\xff" * 4), (HIGH, u64(99)), (END, u64(3))))
    assert seqnos(packets_until(talk, is_end)) == [1, 2, 3]


def test_the_statuses_of_a_refused_stream_request(talk: Talk) -> None:
    talk.socket.sendall(from_nothing())
    packets_until(talk, lambda packet: seqnos([packet]) == [3])
    for number, packet in (
        (2, from_nothing()),  # there is a stream of it
        (7, from_nothing((VBUCKET, u16(99)))),
        (0x22, changed(REQUEST, (VBUCKET, u16(1)), (START, u64(3)), (END, u64(2)))),
        (4, from_nothing((VBUCKET, u16(2)), (FLAGS, u32(0x200)))),
    ):
        assert exchange(talk, packet) == plain(packet, number)


def test_a_stream_from_its_end_is_granted_and_ends_at_once(talk: Talk) -> None:
    talk.socket.sendall(changed(REQUEST, (START, u64(3)), (END, u64(3))))
    accepted, end = packets_until(talk, is_end)
    assert status(accepted) == 0
    assert end == changed(END_OK, (OPAQUE, u32(0x1000)))


def test_a_stream_request_before_open_ends_the_connection(producer: TemporaryProducer) -> None:
    assert is_closed(producer, AGAIN)


# ---- messages of a stream ----------------------------------------------------------------


def test_a_marker_and_an_end_are_the_printed_packets(talk: Talk) -> None:
    talk.socket.sendall(from_nothing((OPAQUE, u32(0xDEADBEEF)), (END, u64(3))))
    _, marker, *_, end = packets_until(talk, is_end)
    assert (marker, end) == (MARKER, END_OK) == (PRINTED["001", 13], PRINTED["001", 12])


def test_a_stream_whose_vbucket_changes_its_state_says_so(
    producer: TemporaryProducer, talk: Talk
) -> None:
    talk.socket.sendall(from_nothing((OPAQUE, u32(0xDEADBEEF))))
    packets_until(talk, lambda packet: seqnos([packet]) == [3])
    producer.set_state(0, VBucketState.DEAD)
    assert talk.packet() == changed(END_OK, (24, u32(1)))


def test_a_flush_is_the_printed_packet_and_ends_the_stream(
    producer: TemporaryProducer, talk: Talk
) -> None:
    talk.socket.sendall(from_nothing((OPAQUE, u32(0xDEADBEEF))))
    packets_until(talk, lambda packet: seqnos([packet]) == [3])
    with Talk(producer) as client:
        assert client.ask(kv.FlushAll()).status is Status.SUCCESS
    assert [talk.packet(), talk.packet()] == [FLUSH, changed(END_OK, (24, u32(1)))]
    assert PRINTED["001", 17] == FLUSH


def test_a_takeover_hands_the_vbucket_over_without_waiting(
    producer: TemporaryProducer, talk: Talk
) -> None:
    talk.socket.sendall(from_nothing((OPAQUE, u32(0xDEADBEEF)), (FLAGS, u32(1))))
    *_, pending, active, end = packets_until(talk, is_end)
    assert pending == changed(DEAD, (24, b"\x02"))
    assert active == changed(DEAD, (24, b"\x01"))
    assert end == END_OK
    assert producer.bucket.state(0) is VBucketState.DEAD


@pytest.fixture(scope="module")
def large() -> Iterator[TemporaryProducer]:
    """It has the vbucket 528 of the printed changes."""
    with TemporaryProducer(vbuckets=1024) as producer:
        yield producer


@pytest.mark.parametrize(
    "change", [MUTATION, DELETION, EXPIRATION], ids=["mutation", "deletion", "expiration"]
)
def test_changes_are_the_printed_packets(large: TemporaryProducer, change: bytes) -> None:
    large.bucket.set_state(VBUCKET_OF_CHANGES, VBucketState.REPLICA)
    large.bucket.flush_copy(VBUCKET_OF_CHANGES)
    give(large, VBUCKET_OF_CHANGES, STORED[change], log=((BRANCH, 0),))
    asked = from_nothing((VBUCKET, u16(VBUCKET_OF_CHANGES)), (OPAQUE, u32(OPAQUE_OF_CHANGES)))
    with Talk(large, Draft001()) as talk:
        talk.socket.sendall(OPEN + asked)
        assert [talk.packet() for _ in range(4)][3] == change
    number = {MUTATION: 14, DELETION: 15, EXPIRATION: 16}[change]
    assert change == PRINTED["001", number]


# ---- misprints on a connection -----------------------------------------------------------


def test_the_library_takes_a_rollback_as_it_is_printed() -> None:
    """With its seqno in extras, which the text forbids."""
    assert goes_back(PRINTED["001", 9], to=0) == [0]


# ---- the library -------------------------------------------------------------------------


def read(server: DocumentServer, end: int = 6, **options: object) -> list[Change]:
    return read_all(server, "001", {0: end}, **options)


def goes_back(refusal: bytes, *, to: int) -> list[int]:
    """To which seqnos the library goes back that read up to 5 and is refused once."""
    asked: list[bytes] = []

    def stream(request: bytes) -> list[bytes]:
        asked.append(request)
        return [reply(request, refusal)] if len(asked) == 1 else stream_001(request)

    told: list[Rollback] = []
    where = at(5, vbuuid=BRANCH, log=FailoverLog.of((BRANCH, 0)), boundaries=(5,))
    with knows_001(stream) as server:
        changes = read(server, start={0: where}, on_rollback=told.append)
    assert [change.seqno for change in changes] == [4, 5, 6]
    assert [int.from_bytes(x[START : START + 8]) for x in asked] == [5, to]
    assert {len(x) for x in asked} == {64}
    return [rollback.to_seqno for rollback in told]


def test_the_library_reads_a_server_that_knows_this_document_alone() -> None:
    with knows_001(stream_001) as server:
        changes = read(server)
    assert [(c.op, c.seqno, c.rev, c.cas, c.key, c.value) for c in changes] == [
        (Op.MUTATION, 4, 1, 0x64A5ACEC8A56, b"hello", b"world"),
        (Op.DELETION, 5, 1, 0, b"hello", b""),
        (Op.EXPIRATION, 6, 1, 0, b"hello", b""),
    ]
    assert {packet[24:32] for packet in server.heard if packet[:2] == OPEN[:2]} == {OPEN[24:32]}
    assert not [packet for packet in server.heard if packet[0] == 0x81]  # nothing is answered


def test_the_library_takes_a_rollback_and_not_found_for_an_unknown_vbuuid() -> None:
    assert goes_back(BACK, to=0) == [0]
    assert goes_back(changed(plain(REQUEST), (6, u16(1))), to=0) == [0]


def test_the_library_that_knows_no_branch_of_a_log_begins_anew() -> None:
    asked: list[bytes] = []

    def stream(request: bytes) -> list[bytes]:
        asked.append(request)
        return stream_001(request)

    told: list[Rollback] = []
    elsewhere = at(5, vbuuid=1, log=FailoverLog.of((1, 0)), boundaries=(5,))
    with knows_001(stream) as server:
        changes = read(server, start={0: elsewhere}, on_rollback=told.append)
    assert [change.seqno for change in changes] == [4, 5, 6]
    assert [(rollback.from_seqno, rollback.to_seqno) for rollback in told] == [(5, 0)]
    assert [request[START:HIGH] for request in asked] == [u64(0) + u64(6) + u64(0)]


def test_the_library_says_where_its_branch_began() -> None:
    asked: list[bytes] = []

    def stream(request: bytes) -> list[bytes]:
        asked.append(request)
        return stream_001(request)

    log = FailoverLog.of((BRANCH, 3), (7, 0))
    with knows_001(stream) as server:
        read(server, start={0: at(5, vbuuid=BRANCH, log=log, boundaries=(5,))})
    assert [request[START:] for request in asked] == [u64(5) + u64(6) + u64(BRANCH) + u64(3)]


def test_a_snapshot_is_whole_at_the_next_marker_and_at_the_end_of_the_stream() -> None:
    def stream(request: bytes) -> list[bytes]:
        items = [changed(item, (VBUCKET, u16(0))) for item in (MUTATION, DELETION)]
        packets = [OK, MARKER, items[0], MARKER, items[1], END_OK]
        return [reply(request, packet) for packet in packets]

    with (
        knows_001(stream) as server,
        Consumer(server.source, dialect="001", vbuckets=frozenset({0}), end={0: 5}) as consumer,
    ):
        assert [change.seqno for change in consumer] == [4, 5]
        assert consumer.position().position(0).boundaries == (4, 5)


def test_bytes_after_a_change_are_its_metadata_and_not_its_value() -> None:
    extended = MUTATION + b"meta"
    extended = changed(extended, (8, u32(40 + 4)), (52, u16(4)))

    def stream(request: bytes) -> list[bytes]:
        first = changed(extended, (VBUCKET, u16(0)))
        return [reply(request, p) for p in (OK, MARKER, first, END_OK)]

    with knows_001(stream) as server:
        (change,) = read(server, end=4)
    assert (change.key, change.value) == (b"hello", b"world")


@pytest.mark.parametrize(
    "wrong",
    [
        with_parts(MUTATION, extras=MUTATION[24:54]),
        with_parts(MUTATION, key=b"hello", value=b"world"),
        with_parts(DELETION, extras=DELETION[24:42], key=b"hello", value=b"world"),
        with_parts(EXPIRATION, extras=EXPIRATION[24:42]),
        with_parts(MARKER, extras=bytes(4)),
        with_parts(END_OK),
        with_parts(FLUSH, key=b"k"),
        with_parts(DEAD, extras=b"\x09"),
    ],
    ids=[
        *("mutation without key", "mutation without extras", "deletion with value"),
        *("expiration without key", "marker with extras", "end without extras"),
        *("flush with key", "state 9"),
    ],
)
def test_the_library_takes_no_message_that_is_made_otherwise(wrong: bytes) -> None:
    def stream(request: bytes) -> list[bytes]:
        here = changed(wrong, (VBUCKET, u16(0)))
        return [reply(request, packet) for packet in (OK, MARKER, here)]

    with knows_001(stream) as server, pytest.raises(RemoteProtocolError):
        read(server)


def test_a_flush_and_a_state_are_events_of_the_library() -> None:
    def stream(request: bytes) -> list[bytes]:
        states = (changed(DEAD, (24, bytes([number]))) for number in (2, 3, 4, 1))
        return stream_001(request, FLUSH, *states)

    with (
        knows_001(stream) as server,
        Consumer(server.source, dialect="001", vbuckets=frozenset({0}), end={0: 6}) as consumer,
    ):
        events = list(consumer.events())
    assert [event for event in events if isinstance(event, Flushed)] == [Flushed(0)]
    assert [event.state for event in events if isinstance(event, StateAsked)] == [
        VBucketState.PENDING,
        VBucketState.REPLICA,
        VBucketState.DEAD,
        VBucketState.ACTIVE,
    ]
    assert not [packet for packet in server.heard if packet[0] == 0x81]


def test_the_library_asks_again_after_a_state_that_changed() -> None:
    ended: list[bytes] = []

    def stream(request: bytes) -> list[bytes]:
        if ended:
            return stream_001(request)
        ended.append(request)
        return [reply(request, packet) for packet in (OK, MARKER, changed(END_OK, (24, u32(1))))]

    with knows_001(stream) as server:
        assert len(read(server)) == 3
