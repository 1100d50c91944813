"""What servers of the vendor do that no test server does by itself, as a reader meets it."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest
from consumerkit import (
    DIALECTS,
    LOG,
    PATIENCE,
    Conversation,
    Scripted,
    at,
    everything,
    marker,
    mutation,
    packets,
    streaming,
)

from upriver.consumer import Consumer
from upriver.consumer.streaming import engine
from upriver.errors import BucketNotFound, Status, StatusError
from upriver.model import Datatype, StreamEndReason, VBucketState
from upriver.session.consumer_events import StateAsked
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp
from upriver.wire.frameinfo import StreamId, UnknownFrameInfo
from upriver.wire.header import HEADER_SIZE
from upriver.wire.protocol_enums import Command, Feature, OpenFlag, StreamFlag

TODAY = (
    Feature.SELECT_BUCKET,
    Feature.XERROR,
    Feature.JSON,
    Feature.XATTR,
    Feature.COLLECTIONS,
    Feature.DUPLEX,
    Feature.CLUSTERMAP_NOTIFICATION,
)
MANIFEST = b"""{"uid": "5", "scopes": [{"name": "_default", "uid": "0", "collections": [
    {"name": "_default", "uid": "0"}, {"name": "c", "uid": "8"}]}]}"""

END = m.StreamEnd(vbucket=0, reason=StreamEndReason.OK)


def row(seqno: int, **more: Any) -> m.Mutation:
    return mutation(seqno, opaque=0, vbucket=0, **more)


def mark(start: int, end: int) -> m.Message:
    return marker(start, end, opaque=0, vbucket=0)


def with_collections(script: Callable[[Conversation, Any], bool], **options: Any) -> Scripted:
    """A server of today with one collection more than the default one."""

    def both(talk: Conversation, request: Any) -> bool:
        if script(talk, request):
            return True
        if isinstance(request, kv.GetManifest):
            talk.answer(request, value=MANIFEST)
            return True
        return False

    dialect = Dcp(collections=True)
    return Scripted(both, vbuckets=1, dialect=dialect, features=TODAY, **options)


# ---- what is asked -----------------------------------------------------------------------


def test_every_byte_until_changes_flow() -> None:
    said: list[bytes] = []

    def script(talk: Conversation, request: Any) -> bool:
        said.append(talk.dialect.encode(request))
        return isinstance(request, m.StreamRequest) and streaming(END)(talk, request)

    with with_collections(script) as server:
        assert everything(server.source, name="me", collections=("c",)) == []
    bodies = [(packet[1], packet[HEADER_SIZE:]) for packet in said if packet[:1] == b"\x80"]
    assert bodies[0][0] == 0x1F
    assert bodies[0][1].endswith(bytes.fromhex("0008 0007 000b 0006 0012 000c 000d"))
    start, end = 0, 5
    assert bodies[1:] == [
        (0x89, b"default"),
        (0x50, bytes.fromhex("00000000 00000021") + b"me"),
        (0x5E, b"enable_noop" + b"true"),
        (0x5E, b"set_noop_interval" + b"20"),
        (0x5E, b"connection_buffer_size" + b"16777216"),
        (0x5E, b"enable_expiry_opcode" + b"true"),
        (0x5E, b"max_marker_version" + b"2.2"),
        (0x5E, b"flatbuffers_system_events" + b"true"),
        (0xB5, b""),
        (0xBA, b""),
        (0x48, bytes.fromhex("00000001")),
        (
            0x53,
            bytes.fromhex("00000010 00000000")
            + b"".join(number.to_bytes(8) for number in (start, end, 0, start, start))
            + b'{"collections": ["8"]}',
        ),
    ]


@pytest.mark.parametrize("dialect", ["dcp", "001"])
def test_only_active_copies_are_asked_where_that_can_be_said(dialect: str) -> None:
    asked: list[m.StreamRequest] = []

    def script(talk: Conversation, request: Any) -> bool:
        if not isinstance(request, m.StreamRequest):
            return False
        asked.append(request)
        return streaming(END)(talk, request)

    with Scripted(script, vbuckets=1, dialect=DIALECTS[dialect]) as server:
        options: dict[str, Any] = {"vbuckets": frozenset({0}), "end": {0: 5}, "dialect": dialect}
        everything(server.source, **options)
    expected = StreamFlag.ACTIVE_ONLY if dialect == "dcp" else StreamFlag.NONE
    assert [request.flags for request in asked] == [expected]


# ---- opening -----------------------------------------------------------------------------


def test_a_server_from_before_deletions_had_a_time() -> None:
    opened: list[OpenFlag] = []

    def script(talk: Conversation, request: Any) -> bool:
        if isinstance(request, m.Open):
            opened.append(request.flags)
            if request.flags & OpenFlag.INCLUDE_DELETE_TIMES:
                talk.answer(request, Status.INVALID)
                return True
        return isinstance(request, m.StreamRequest) and streaming(mark(0, 1), row(1), END)(
            talk, request
        )

    with Scripted(script, vbuckets=1) as server:
        assert [change.seqno for change in everything(server.source)] == [1]
    assert opened == [OpenFlag.PRODUCER | OpenFlag.INCLUDE_DELETE_TIMES, OpenFlag.PRODUCER]


def refusing(key: str) -> Callable[[Conversation, Any], bool]:
    def script(talk: Conversation, request: Any) -> bool:
        if isinstance(request, m.Control) and request.key == key:
            talk.answer(request, Status.INVALID)
            return True
        return isinstance(request, m.StreamRequest) and streaming(END)(talk, request)

    return script


@pytest.mark.parametrize(
    "key", ["set_noop_interval", "connection_buffer_size", "enable_expiry_opcode"]
)
def test_a_reader_can_do_without(key: str) -> None:
    with with_collections(refusing(key)) as server:
        assert everything(server.source) == []


def test_collections_are_not_to_be_had_without_signs_of_life() -> None:
    with (
        with_collections(refusing("enable_noop")) as server,
        pytest.raises(StatusError, match="enable_noop"),
    ):
        everything(server.source)


def test_a_server_that_is_busy_is_not_taken_for_an_older_one() -> None:
    asked: list[Any] = []

    def script(talk: Conversation, request: Any) -> bool:
        asked.append(request)
        if isinstance(request, m.Open) and len(asked) < 4:
            talk.answer(request, Status.TEMPORARY_FAILURE)
            return True
        return isinstance(request, m.StreamRequest) and streaming(END)(talk, request)

    with Scripted(script, vbuckets=1, features=()) as server:
        with pytest.raises(StatusError, match="TEMPORARY_FAILURE"):
            everything(server.source)
        assert everything(server.source, wait_at_start=PATIENCE, retry_first=0.01) == []
    (request,) = (request for request in asked if isinstance(request, m.StreamRequest))
    assert request.snapshot_start == 0


def test_a_node_that_warms_up_is_waited_for() -> None:
    refusals = [Status.TEMPORARY_FAILURE, Status.TEMPORARY_FAILURE]

    def script(talk: Conversation, request: Any) -> bool:
        if isinstance(request, kv.GetAllSeqnos) and refusals:
            talk.answer(request, refusals.pop())
            return True
        return isinstance(request, m.StreamRequest) and streaming(END)(talk, request)

    with Scripted(script, vbuckets=1) as server:
        assert everything(server.source, wait_at_start=PATIENCE, retry_first=0.01) == []
    assert not refusals


def test_a_map_need_not_name_its_bucket() -> None:
    script = streaming(mark(0, 1), row(1), END)
    with Scripted(script, vbuckets=1, bucket="") as server:
        assert [change.seqno for change in everything(server.source)] == [1]


# ---- signs of life -----------------------------------------------------------------------


def test_a_sign_of_life_is_given_before_there_is_a_stream() -> None:
    answered = threading.Event()

    def script(talk: Conversation, request: Any) -> bool:
        if isinstance(request, kv.GetAllSeqnos):
            talk.send(m.StreamNoop(opaque=10_000_001))
            held.append((talk, request))
            return True
        if isinstance(request, m.PlainResponse) and request.command is Command.STREAM_NOOP:
            assert request.opaque == 10_000_001
            answered.set()
            talk, question = held.pop()
            talk.send(kv.AllSeqnosResponse(opaque=question.opaque, seqnos=((0, 0),)))
            return True
        return isinstance(request, m.StreamRequest) and streaming(END)(talk, request)

    held: list[tuple[Conversation, Any]] = []
    with Scripted(script, vbuckets=1) as server:
        assert everything(server.source) == []
    assert answered.is_set()


def slowly(source: str, noop_interval: float) -> Consumer:
    """A consumer that does not ask for its streams a second time."""
    return Consumer(source, noop_interval=noop_interval, retry_first=PATIENCE, retry_most=PATIENCE)


def test_a_connection_without_streams_is_kept_alive_by_the_reader() -> None:
    """Real servers give signs of life only where there is a stream."""
    asked = threading.Event()
    count = itertools.count(1)

    def script(talk: Conversation, request: Any) -> bool:
        if isinstance(request, kv.Noop) and next(count) == 3:
            asked.set()
        if isinstance(request, m.StreamRequest):
            talk.answer(request, Status.TEMPORARY_FAILURE)
            return True
        return False

    with Scripted(script, vbuckets=1) as server:
        with slowly(server.source, noop_interval=2) as consumer:
            assert asked.wait(PATIENCE)
            assert "connections lost" not in consumer.status().counts
        assert server.connections == 1


def test_a_connection_without_streams_that_does_not_answer_is_left() -> None:
    greeted: queue.SimpleQueue[Conversation] = queue.SimpleQueue()

    def script(talk: Conversation, request: Any) -> bool:
        if isinstance(request, m.StreamRequest):
            talk.answer(request, Status.TEMPORARY_FAILURE)
            return True
        if isinstance(request, kv.Hello):
            greeted.put(talk)
        return isinstance(request, kv.Noop)

    with (
        Scripted(script, vbuckets=1) as server,
        slowly(server.source, noop_interval=0.1) as consumer,
    ):
        greeted.get(timeout=PATIENCE)
        greeted.get(timeout=PATIENCE)  # to ask for the map, because a node was lost
        assert consumer.status().counts["connections lost"] == 1


# ---- what comes unasked ------------------------------------------------------------------


def test_a_map_that_is_pushed_in_pieces_while_the_stream_begins() -> None:
    pushed = kv.ClustermapChanged(bucket="default", epoch=1, revision=9, config=b"{}" * 50)

    def script(talk: Conversation, request: Any) -> bool:
        whole = packets(talk.dialect, pushed)
        if isinstance(request, kv.GetAllSeqnos):
            answer = kv.AllSeqnosResponse(opaque=request.opaque, seqnos=((0, 1),))
            talk.socket.sendall(packets(talk.dialect, answer) + whole[:40])
            return True
        if isinstance(request, m.StreamRequest):
            talk.socket.sendall(whole[40:])
            return streaming(mark(0, 1), row(1), END)(talk, request)
        return False

    with Scripted(script, vbuckets=1) as server:
        assert [change.seqno for change in everything(server.source)] == [1]
        assert server.connections == 1


def test_commands_of_later_servers_are_passed_over() -> None:
    later = m.UnknownCommand(opcode=0x7E, opaque=0xCAFE, key=b"k", value=b"v", from_server=True)
    script = streaming(mark(0, 2), row(1), later, row(2), END)
    with Scripted(script, vbuckets=1) as server:
        assert [change.seqno for change in everything(server.source)] == [1, 2]
        assert server.connections == 1


def test_changes_with_framing_extras_of_any_kind_are_changes() -> None:
    known, unknown = StreamId(7), UnknownFrameInfo(9, b"later")
    script = streaming(
        mark(0, 7),
        row(1),
        row(2, frames=(unknown,)),
        row(3, frames=(known, unknown), value=b"{}", datatype=Datatype.JSON),
        m.SystemEvent(vbucket=0, seqno=4, event=9, version=9),
        row(5),
        m.Deletion(vbucket=0, seqno=6, key=b"gone", frames=(unknown,)),
        row(7, frames=(known,)),
        END,
    )
    with Scripted(script, vbuckets=1) as server:
        changes = everything(server.source)
    assert [change.seqno for change in changes] == [1, 2, 3, 5, 6, 7]
    assert [change.key for change in changes][1:5] == [b"key2", b"key3", b"key5", b"gone"]


def test_the_end_of_a_backfill_may_be_said_twice() -> None:
    advanced = m.SeqnoAdvanced(vbucket=0, seqno=9)
    script = streaming(mark(0, 9), row(3), advanced, advanced, mark(10, 11), row(11), END)
    with (
        Scripted(script, vbuckets=1, seqno=11) as server,
        Consumer(server.source, end="now") as consumer,
    ):
        assert [change.seqno for change in consumer] == [3, 11]
        assert "connections lost" not in consumer.status().counts


def test_a_state_is_confirmed_though_a_reader_has_no_copy() -> None:
    confirmed = threading.Event()

    def script(talk: Conversation, request: Any) -> bool:
        if isinstance(request, m.StreamRequest):
            state = m.SetStreamState(vbucket=0, state=VBucketState.PENDING)
            return streaming(mark(0, 1), row(1), state)(talk, request)
        if isinstance(request, m.PlainResponse) and request.command is Command.SET_STREAM_STATE:
            assert (request.opaque, request.status) == (1, Status.SUCCESS)
            confirmed.set()
        return False

    with Scripted(script, vbuckets=1) as server, Consumer(server.source) as consumer:
        events = (event for event in consumer.events() if isinstance(event, StateAsked))
        assert next(events).state is VBucketState.PENDING
        assert confirmed.wait(PATIENCE)


# ---- what is refused for a while ---------------------------------------------------------


@pytest.mark.parametrize("status", [Status.UNKNOWN_COLLECTION, Status.UNKNOWN_SCOPE])
def test_a_node_that_has_not_heard_of_a_collection_yet_is_asked_again(status: Status) -> None:
    uids = ["4", "3"]
    context = b'{"error": {"context": "Unknown scope or collection"}, "manifest_uid": "%s"}'

    def script(talk: Conversation, request: Any) -> bool:
        if not isinstance(request, m.StreamRequest):
            return False
        if uids:
            talk.answer(request, status, context.replace(b"%s", uids.pop().encode()))
            return True
        return streaming(mark(0, 1), row(1, collection=8), END)(talk, request)

    with with_collections(script) as server:
        changes = everything(server.source, collections=("c",), retry_first=0.01)
    assert [change.seqno for change in changes] == [1]


@pytest.mark.parametrize("value", [b"", b'{"manifest_uid": "5"}', b'{"manifest_uid": 4}', b"["])
def test_a_collection_that_is_gone_ends_the_reading(value: bytes) -> None:
    def script(talk: Conversation, request: Any) -> bool:
        if not isinstance(request, m.StreamRequest):
            return False
        talk.answer(request, Status.UNKNOWN_COLLECTION, value)
        return True

    with with_collections(script) as server, pytest.raises(StatusError) as caught:
        everything(server.source, collections=("c",))
    assert caught.value.status is Status.UNKNOWN_COLLECTION


def restarting(refusals: list[Status]) -> Callable[[Conversation, Any], bool]:
    """A node that goes away behind a change, and then is without its bucket for a while."""
    came = itertools.count()

    def script(talk: Conversation, request: Any) -> bool:
        if isinstance(request, kv.SelectBucket) and next(came) and refusals:
            talk.answer(request, refusals.pop() if len(refusals) > 1 else refusals[0])
            return True
        if isinstance(request, m.StreamRequest):
            if not request.start:
                streaming(mark(0, 1), row(1))(talk, request)
                talk.hang_up()
                return True
            return streaming(mark(2, 2), row(2), END)(talk, request)
        return False

    return script


def test_a_node_that_restarts_has_no_bucket_for_a_while() -> None:
    refusals = [Status.SUCCESS, Status.NOT_FOUND, Status.NO_ACCESS]
    with Scripted(restarting(refusals), vbuckets=1, seqno=2) as server:
        assert [c.seqno for c in everything(server.source, retry_first=0.01)] == [1, 2]
    assert refusals == [Status.SUCCESS]


def test_a_bucket_that_does_not_come_back_was_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_BUCKET_COMES_BACK", 0.05)
    with (
        Scripted(restarting([Status.NOT_FOUND]), vbuckets=1, seqno=2) as server,
        pytest.raises(BucketNotFound),
    ):
        everything(server.source, retry_first=0.01)


def test_a_position_of_the_reader_s_is_named_as_it_is() -> None:
    """Its branch, and the snapshot that it is in the middle of."""
    asked: list[m.StreamRequest] = []

    def script(talk: Conversation, request: Any) -> bool:
        if not isinstance(request, m.StreamRequest):
            return False
        asked.append(request)
        return streaming(mark(2, 6), row(5), END)(talk, request)

    with Scripted(script, vbuckets=1) as server:
        start = {0: at(4, (2, 6), log=LOG)}
        assert [c.seqno for c in everything(server.source, start=start)] == [5]
    (request,) = asked
    assert (request.start, request.end, request.vbuuid) == (4, 5, 7)
    assert (request.snapshot_start, request.snapshot_end) == (2, 6)
