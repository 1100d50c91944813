"""A node that is told to be the consumer: what it says, to whom, when, and what it writes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest
from clusterkit import VB, Script, branches, frames, high, make_replica, marker, mutation
from talk import Talk
from waiting import until

from upriver.errors import Status
from upriver.model import NO_END, Datatype, FailoverEntry, StreamEndReason, VBucketState
from upriver.producer.server_settings import PeerRelease, ServerSettings
from upriver.session.stray_messages import MOST_STRAYS
from upriver.store import Bucket, SetDocument
from upriver.testing import TemporaryProducer
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp, Draft001
from upriver.wire.protocol_enums import Command, Feature, MarkerFlag, OpenFlag, StreamFlag

REPLICA, PENDING, ACTIVE = VBucketState.REPLICA, VBucketState.PENDING, VBucketState.ACTIVE
DEAD = VBucketState.DEAD


@pytest.fixture
def node() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=4) as node:
        make_replica(node)
        yield node


def test_add_stream_is_answered_when_the_stream_is_settled(node: TemporaryProducer) -> None:
    with Script(node) as script:
        request = script.add()
        assert (request.vbucket, request.start, request.end) == (VB, 0, NO_END)
        assert (request.vbuuid, request.snapshot_start, request.snapshot_end) == (0, 0, 0)
        # a later request is answered before: nothing was settled yet
        script.send(kv.Noop(opaque=5))
        assert script.read().opaque == 5
        script.accept(request, (9, 0))
        assert branches(node.bucket) == [9]


def test_the_controls_come_first_and_once(node: TemporaryProducer) -> None:
    make_replica(node, 2)
    with Script(node) as script:
        script.send(m.AddStream(vbucket=VB), m.AddStream(vbucket=2))
        first = [script.read() for _ in range(6)]
    controls = {x.key: x.value for x in first[:4] if isinstance(x, m.Control)}
    assert controls == {
        "connection_buffer_size": "10485760",
        "enable_noop": "true",
        "set_noop_interval": "20",
        "enable_expiry_opcode": "true",
    }
    assert [x.vbucket for x in first[4:]] == [VB, 2]


@pytest.mark.parametrize("status", [Status.NOT_MY_VBUCKET, Status.TEMPORARY_FAILURE])
def test_a_refusal_of_the_producer_is_told(node: TemporaryProducer, status: Status) -> None:
    with Script(node) as script:
        request = script.add()
        refusal = m.PlainResponse(
            command=Command.STREAM_REQUEST, opaque=request.opaque, status=status
        )
        script.send(refusal)
        answer = script.read()
        assert (answer.command, answer.status, answer.opaque) == (Command.ADD_STREAM, status, 77)
        script.accept(script.add())  # it can be tried again


@pytest.mark.parametrize("vbucket", [0, 4, 1000])
def test_active_and_absent_vbuckets_get_no_stream(node: TemporaryProducer, vbucket: int) -> None:
    with Script(node) as script:
        assert script.ask(m.AddStream(vbucket=vbucket)).status is Status.NOT_MY_VBUCKET


def test_a_vbucket_is_received_once(node: TemporaryProducer) -> None:
    with Script(node) as script, Script(node, "another") as other:
        script.accept(script.add())
        assert script.ask(m.AddStream(vbucket=VB)).status is Status.EXISTS
        assert other.ask(m.AddStream(vbucket=VB)).status is Status.EXISTS
        assert script.ask(m.CloseStream(vbucket=2)).status is Status.NOT_FOUND
        script.send(m.CloseStream(vbucket=VB, opaque=8))
        told = {type(x): x for x in (script.read(), script.read())}
        assert told[m.PlainResponse].status is Status.SUCCESS
        assert told[m.CloseStream].vbucket == VB  # the producer is told as well
        other.accept(other.add())


def test_a_lost_connection_gives_its_vbuckets_free(node: TemporaryProducer) -> None:
    with Script(node) as script:
        script.accept(script.add())
    until(lambda: not node.producer.server.view().connections)
    with Script(node) as script:
        script.accept(script.add())


def test_a_name_is_taken_over_among_consumers_only(node: TemporaryProducer) -> None:
    with Talk(node) as reader, Script(node, "same") as first:
        reader.hello(Feature.JSON)
        assert reader.open("same").status is Status.SUCCESS
        with Script(node, "same"):
            assert first.is_closed()
            assert reader.ask(kv.Noop()).status is Status.SUCCESS


def test_changes_are_written_as_they_were_made(node: TemporaryProducer) -> None:
    with Script(node) as script:
        request = script.add()
        script.accept(request)
        sent = [
            replace(mutation(request, 1, value=b'{"a":1}'), nru=2),
            replace(
                mutation(request, 3),
                flags=0xDEAD,
                expiry=4_000_000_000,
                datatype=Datatype.JSON,
                nru=2,
            ),
            m.Deletion(
                vbucket=VB,
                opaque=request.opaque,
                seqno=4,
                key=b"gone",
                rev=9,
                cas=77,
                delete_time=1234,
                collection=0,
            ),
        ]
        script.send(marker(request, 0, 4, flags=MarkerFlag.DISK), *sent)
        until(lambda: high(node.bucket) == 4)
    dialect = Dcp(collections=True)
    stored = b"".join(dialect.encode(replace(x, opaque=0)) for x in sent)
    assert b"".join(frames(node.bucket)) == stored


def test_a_message_of_no_stream_is_refused_and_the_others_go_on(node: TemporaryProducer) -> None:
    with Script(node) as script:
        request = script.add()
        script.accept(request)
        stray = replace(mutation(request, 1), opaque=4711)
        script.send(marker(request, 0, 9), mutation(request, 1), stray, replace(stray, vbucket=2))
        for _ in range(2):
            refusal = script.read()
            assert (refusal.command, refusal.opaque) == (Command.MUTATION, 4711)
            assert refusal.status is Status.NOT_MY_VBUCKET
        script.send(mutation(request, 2))
        until(lambda: high(node.bucket) == 2)
        script.send(*[stray] * MOST_STRAYS)
        assert script.is_closed()


def test_a_marker_is_acknowledged_after_its_last_item_is_written(node: TemporaryProducer) -> None:
    with Script(node) as script:
        request = script.add()
        script.accept(request)
        script.send(marker(request, 0, 2, flags=MarkerFlag.ACK), mutation(request, 1))
        until(lambda: high(node.bucket) == 1)
        script.send(kv.Noop(opaque=5))
        assert script.read().command is Command.NOOP
        script.send(mutation(request, 2))
        answer = script.read()
        assert high(node.bucket) == 2
        assert (answer.command, answer.opaque) == (Command.SNAPSHOT_MARKER, request.opaque)


def test_room_is_given_back_for_what_was_written(node: TemporaryProducer) -> None:
    with Script(node) as script:
        request = script.add()
        script.accept(request)
        script.send(marker(request, 0, 30))
        size = 44
        for seqno in range(1, 31):
            change = mutation(request, seqno, value=bytes(100_000))
            size += len(script.dialect.encode(change))
            script.send(change)
        given = 0
        while given < size - 10 * 1024 * 1024 // 5:  # what is left is below the threshold
            ack = script.read()
            assert isinstance(ack, m.BufferAck)
            given += ack.size
        assert given <= size


def test_noops_are_answered(node: TemporaryProducer) -> None:
    with Script(node) as script:
        script.accept(script.add())
        script.send(m.StreamNoop(opaque=10_000_001))
        answer = script.read()
        assert (answer.command, answer.opaque) == (Command.STREAM_NOOP, 10_000_001)


def test_a_half_received_snapshot_is_named_when_the_stream_is_asked_for_again(
    node: TemporaryProducer,
) -> None:
    with Script(node) as script:
        request = script.add()
        script.accept(request)
        script.send(marker(request, 0, 3), *(mutation(request, n) for n in (1, 2, 3)))
        script.send(marker(request, 4, 9), mutation(request, 4), mutation(request, 6))
        until(lambda: high(node.bucket) == 6)
    until(lambda: not node.producer.server.view().connections)
    with Script(node) as script:
        request = script.add()
        assert (request.start, request.vbuuid) == (6, 7)
        assert (request.snapshot_start, request.snapshot_end) == (4, 9)
        script.send(m.StreamRollback(opaque=request.opaque, seqno=5))
        again = script.read()  # 5 lies inside the snapshot: only 3 was ever consistent
        assert (again.start, again.snapshot_start, again.snapshot_end) == (3, 3, 3)
        assert high(node.bucket) == 3
        script.accept(again)


def test_a_branch_of_which_nothing_came_is_dropped_before_anything_is_lost(
    node: TemporaryProducer,
) -> None:
    with Script(node) as script:
        request = script.add()
        script.accept(request, (8, 2), (7, 0))
        script.send(marker(request, 0, 2), mutation(request, 1), mutation(request, 2))
        until(lambda: high(node.bucket) == 2)
        script.send(m.StreamEnd(vbucket=VB, opaque=request.opaque))
        request = script.add()
        assert (request.start, request.vbuuid) == (2, 8)
        script.send(m.StreamRollback(opaque=request.opaque, seqno=0))
        again = script.read()
        assert (again.start, again.vbuuid) == (2, 7)
        script.send(m.StreamRollback(opaque=again.opaque, seqno=0))
        again = script.read()
        assert (again.start, again.vbuuid) == (0, 0)
        assert frames(node.bucket) == []


def test_a_takeover_makes_it_pending_and_then_active_without_a_new_branch(
    node: TemporaryProducer,
) -> None:
    with Script(node) as script:
        request = script.add(flags=StreamFlag.TAKEOVER)
        assert request.flags == StreamFlag.TAKEOVER
        script.accept(request, (7, 0))
        for state in (PENDING, ACTIVE):
            script.send(m.SetStreamState(vbucket=VB, opaque=request.opaque, state=state))
            answer = script.read()
            assert (answer.command, answer.opaque) == (Command.SET_STREAM_STATE, request.opaque)
            assert node.bucket.state(VB) is state
        script.send(m.StreamEnd(vbucket=VB, opaque=request.opaque, reason=StreamEndReason.OK))
        assert branches(node.bucket) == [7]


def test_the_first_state_of_a_takeover_is_pending_in_the_numbers_of_3_0_too(
    node: TemporaryProducer,
) -> None:
    with Script(node) as script:
        request = script.add(flags=StreamFlag.TAKEOVER)
        script.accept(request)
        for _ in range(2):  # told to what is pending already, it changes nothing
            script.send(m.SetStreamState(vbucket=VB, opaque=request.opaque, state=REPLICA))  # 0x02
            assert script.read().status is Status.SUCCESS
            assert node.bucket.state(VB) is PENDING
        script.send(m.SetStreamState(vbucket=VB, opaque=request.opaque, state=PENDING))  # 0x03
        assert script.read().status is Status.SUCCESS
        script.send(m.SetStreamState(vbucket=VB, opaque=request.opaque, state=ACTIVE))
        assert script.read().status is Status.SUCCESS
        assert node.bucket.state(VB) is ACTIVE


def test_only_a_takeover_that_is_not_given_up_changes_states(node: TemporaryProducer) -> None:
    with Script(node) as script:
        request = script.add()
        script.accept(request)
        script.send(m.SetStreamState(vbucket=VB, opaque=request.opaque, state=PENDING))
        assert isinstance(script.read(), m.CloseStream)
        script.send(m.PlainResponse(command=Command.CLOSE_STREAM, opaque=request.opaque))
        request = script.add(flags=StreamFlag.TAKEOVER)
        script.accept(request)
        script.send(m.SetStreamState(vbucket=VB, opaque=request.opaque, state=PENDING))
        assert script.read().status is Status.SUCCESS
        node.bucket.set_state(VB, REPLICA)  # the manager takes it back
        script.send(m.SetStreamState(vbucket=VB, opaque=request.opaque, state=ACTIVE))
        assert isinstance(script.read(), m.CloseStream)
        assert node.bucket.state(VB) is REPLICA


def test_a_vbucket_that_is_no_copy_any_more_receives_nothing(node: TemporaryProducer) -> None:
    make_replica(node, 2)
    with Script(node) as script:
        first, second = script.add(VB), None
        script.accept(first)
        second = script.add(2)
        script.accept(second)
        node.bucket.set_state(VB, ACTIVE)
        assert script.read().vbucket == VB  # Close Stream
        script.send(marker(second, 0, 1), mutation(second, 1))  # the other goes on
        until(lambda: high(node.bucket, 2) == 1)


def test_a_flush_empties_the_vbucket(node: TemporaryProducer) -> None:
    with Script(node) as script:
        request = script.add()
        script.accept(request)
        script.send(marker(request, 0, 1), mutation(request, 1))
        script.send(m.FlushStream(vbucket=VB, opaque=request.opaque))
        script.send(marker(request, 2, 2), mutation(request, 2))
        until(lambda: high(node.bucket) == 2)
        assert len(b"".join(frames(node.bucket)).split(b"k1")) == 1
        assert node.bucket.vbucket_stats(VB).items == 1


def test_a_producer_that_breaks_the_rules_is_left(node: TemporaryProducer) -> None:
    with Script(node) as script:
        request = script.add()
        script.accept(request)
        script.send(marker(request, 0, 1), mutation(request, 1), mutation(request, 2))
        assert script.is_closed()
    assert high(node.bucket) == 1


@pytest.mark.parametrize(
    "request_",
    [m.StreamRequest(vbucket=VB, start=0, end=NO_END), m.Control(key="enable_noop", value="true")],
)
def test_a_consumer_that_is_taken_for_a_producer_hangs_up(
    node: TemporaryProducer, request_: m.Request
) -> None:
    with Script(node) as script:
        script.send(request_)
        assert script.is_closed()


def test_documents_can_still_be_asked_for_on_such_a_connection(node: TemporaryProducer) -> None:
    node.bucket.write(SetDocument(0, b"\0here", b"it is"))
    with Script(node) as script:
        assert script.ask(kv.Get(vbucket=0, key=b"here", collection=0)).value == b"it is"
        assert script.ask(kv.SelectBucket(bucket="default")).status is Status.NOT_SUPPORTED
        told = node.producer.server.view().connections[0]
        assert told.consumer
        assert told.name == "script"


# ---- draft 001 ---------------------------------------------------------------------------


@pytest.fixture(params=list(PeerRelease), ids=lambda peers: peers.value)
def old(request: pytest.FixtureRequest) -> Iterator[TemporaryProducer]:
    """A node that finds out which draft its peers speak, whatever it is told of their release."""
    settings = ServerSettings(peers=request.param)
    with TemporaryProducer(vbuckets=4, settings=settings) as node:
        make_replica(node)
        yield node


def told(
    node: TemporaryProducer, flags: StreamFlag = StreamFlag.NONE
) -> tuple[Talk, m.StreamRequest]:
    """A manager and producer of draft 001 that says no Hello; a stream that it has accepted."""
    talk = Talk(node, Draft001(nru=True))
    assert talk.ask(m.Open(name="old", flags=OpenFlag.CONSUMER)).status is Status.SUCCESS
    talk.send(m.AddStream(vbucket=VB, opaque=77, flags=flags))
    packet = talk.packet()
    assert (packet[1], packet[4]) == (0x53, 40)  # and no Control before it
    request = talk.dialect.decode(packet)
    assert isinstance(request, m.StreamRequest)
    accepted = m.StreamAccepted(opaque=request.opaque, failover_log=(FailoverEntry(7, 0),))
    talk.send(accepted)
    assert talk.read() == m.AddStreamResponse(opaque=77, stream_opaque=request.opaque)
    return talk, request


def set_state(talk: Talk, request: m.StreamRequest, number: int) -> None:
    """Set VBucket State with a number of draft 001."""
    head = f"805b0000 01 00 {VB:04x} 00000001 {request.opaque:08x}"
    talk.socket.sendall(bytes.fromhex(head) + bytes(8) + bytes([number]))


@pytest.mark.parametrize("old", [PeerRelease.TODAY], indirect=True)
@pytest.mark.parametrize("flags", [StreamFlag.NONE, StreamFlag.TAKEOVER])
@pytest.mark.parametrize(("number", "state"), [(3, REPLICA), (4, DEAD)])
def test_a_producer_of_draft_001_gives_a_copy_up(
    old: TemporaryProducer, flags: StreamFlag, number: int, state: VBucketState
) -> None:
    old.bucket.set_state(VB, PENDING)
    talk, request = told(old, flags)
    with talk:
        set_state(talk, request, number)
        until(lambda: old.bucket.state(VB) is state)
        if state is DEAD:
            closed = talk.read()
            assert isinstance(closed, m.CloseStream)
            assert closed.vbucket == VB
        assert talk.ask(kv.Noop()).status is Status.SUCCESS


@pytest.mark.parametrize("old", [PeerRelease.TODAY], indirect=True)
def test_a_takeover_of_draft_001_goes_by_its_own_numbers(old: TemporaryProducer) -> None:
    talk, request = told(old, StreamFlag.TAKEOVER)
    with talk:
        for number, state in ((3, REPLICA), (2, PENDING), (3, REPLICA), (2, PENDING), (1, ACTIVE)):
            set_state(talk, request, number)
            until(partial(is_in, old.bucket, state))
        assert talk.ask(kv.Noop()).status is Status.SUCCESS  # nothing else is said to a state
    assert branches(old.bucket) == [7]


@pytest.mark.parametrize("old", [PeerRelease.TODAY], indirect=True)
@pytest.mark.parametrize(
    ("flags", "before", "number"),
    [
        (StreamFlag.NONE, REPLICA, 2),
        (StreamFlag.NONE, PENDING, 1),
        (StreamFlag.TAKEOVER, REPLICA, 1),
    ],
    ids=["pending without takeover", "active without takeover", "active without pending"],
)
def test_a_state_that_is_not_safe_ends_the_stream(
    old: TemporaryProducer, flags: StreamFlag, before: VBucketState, number: int
) -> None:
    old.bucket.set_state(VB, before)
    talk, request = told(old, flags)
    with talk:
        set_state(talk, request, number)
        assert isinstance(talk.read(), m.CloseStream)
        assert old.bucket.state(VB) is before


@pytest.mark.parametrize("old", [PeerRelease.TODAY], indirect=True)
@pytest.mark.parametrize("number", [2, 3, 4])
def test_an_active_copy_stays_active(old: TemporaryProducer, number: int) -> None:
    talk, request = told(old, StreamFlag.TAKEOVER)
    with talk:
        for state in (2, 1, number):
            set_state(talk, request, state)
        assert isinstance(talk.read(), m.CloseStream)
        assert old.bucket.state(VB) is ACTIVE


@pytest.mark.parametrize("old", [PeerRelease.TODAY], indirect=True)
@pytest.mark.parametrize("hello", [False, True])
@pytest.mark.parametrize("dialect", [Dcp(), Draft001()], ids=["48 bytes", "40 bytes"])
def test_a_stream_request_to_a_consumer_disconnects(
    old: TemporaryProducer, hello: bool, dialect: Dcp | Draft001
) -> None:
    with Talk(old) as talk:
        if hello:
            talk.hello(Feature.JSON)
        assert talk.open("copy", OpenFlag.CONSUMER).status is Status.SUCCESS
        talk.socket.sendall(dialect.encode(m.StreamRequest(vbucket=VB, start=0, end=NO_END)))
        assert talk.is_closed()


def test_draft_001_asks_without_controls_and_closes_snapshots_by_the_next_marker(
    old: TemporaryProducer,
) -> None:
    talk, request = told(old, StreamFlag.TAKEOVER)
    with talk:
        assert (request.start, request.flags) == (0, StreamFlag.TAKEOVER)
        talk.send(
            m.SnapshotMarker(vbucket=VB, opaque=request.opaque),
            *(replace(mutation(request, n), collection=None) for n in (1, 2)),
            m.SnapshotMarker(vbucket=VB, opaque=request.opaque),
            replace(mutation(request, 3), collection=None),
        )
        until(lambda: high(old.bucket) == 3)
        assert old.bucket.consistent_until(VB, 3) == 2
        for state in (PENDING, ACTIVE):  # which nobody answers
            talk.send(m.SetStreamState(vbucket=VB, opaque=request.opaque, state=state))
        until(lambda: old.bucket.state(VB) is ACTIVE)
        talk.send(m.StreamEnd(vbucket=VB, opaque=request.opaque))
        assert talk.ask(kv.Noop()).status is Status.SUCCESS
    assert branches(old.bucket) == [7]


def is_in(bucket: Bucket, state: VBucketState) -> bool:
    return bucket.state(VB) is state


def is_at(bucket: Bucket, seqno: int) -> bool:
    return high(bucket) == seqno


def test_draft_001_resumes_at_the_last_whole_snapshot(old: TemporaryProducer) -> None:
    for start in (0, 2):
        with Talk(old, Draft001(nru=True)) as talk:
            talk.ask(m.Open(name="old", flags=OpenFlag.CONSUMER))
            talk.send(m.AddStream(vbucket=VB, opaque=77))
            request = talk.read()
            assert (request.start, request.vbuuid) == (start, 7 if start else 0)
            log = (FailoverEntry(7, 0),)
            talk.send(m.StreamAccepted(opaque=request.opaque, failover_log=log))
            talk.send(m.SnapshotMarker(vbucket=VB, opaque=request.opaque))
            seqnos = (1, 2) if start == 0 else (3, 4)
            talk.send(*(replace(mutation(request, n), collection=None) for n in seqnos))
            if start == 0:
                talk.send(m.SnapshotMarker(vbucket=VB, opaque=request.opaque))
                talk.send(replace(mutation(request, 3), collection=None))
            until(partial(is_at, old.bucket, seqnos[-1] + (start == 0)))
        until(lambda: not old.producer.server.view().connections)
    assert old.bucket.vbucket_stats(VB).items == 4
