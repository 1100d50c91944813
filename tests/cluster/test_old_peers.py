"""Add Stream and takeover with nodes of releases 3.0.2 and 4.1.2, which send no Hello."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from clusterkit import VB, branches, high, make_replica, marker, mutation
from talk import Talk
from waiting import until

from upriver.errors import Status
from upriver.model import NO_END, FailoverEntry, StreamEndReason, VBucketState
from upriver.producer.server_settings import PeerRelease, ServerSettings
from upriver.store import SetDocument
from upriver.testing import TemporaryProducer
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.dialects import Draft001
from upriver.wire.protocol_enums import Command, MarkerFlag, OpenFlag, StreamFlag

ACTIVE, PENDING, REPLICA = VBucketState.ACTIVE, VBucketState.PENDING, VBucketState.REPLICA
ASKED = MarkerFlag.MEMORY | MarkerFlag.CHECKPOINT | MarkerFlag.ACK


@pytest.fixture
def node() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=4) as node:
        yield node


def consumer(node: TemporaryProducer) -> Talk:
    """The manager of a node that is the consumer, and the producer that it gets; no Hello."""
    talk = Talk(node)
    assert talk.open("takeover", OpenFlag.CONSUMER).status is Status.SUCCESS
    return talk


def short_request(talk: Talk) -> m.StreamRequest:
    """Reads a stream request in the form of draft 001."""
    packet = talk.packet()
    assert (packet[1], packet[4]) == (0x53, 40)
    request = Draft001().decode(packet)
    assert isinstance(request, m.StreamRequest)
    return request


def refuse(talk: Talk, request: m.StreamRequest, status: Status) -> None:
    talk.send(m.PlainResponse(command=Command.STREAM_REQUEST, opaque=request.opaque, status=status))


def requested(talk: Talk, flags: StreamFlag) -> m.StreamRequest:
    talk.send(m.AddStream(vbucket=VB, flags=flags, opaque=77))
    refuse(talk, short_request(talk), Status.INVALID)
    while isinstance(message := talk.read(), m.Control):
        # 3.0.2 knows some of the controls and refuses the others
        known = message.key in ("connection_buffer_size", "enable_noop", "set_noop_interval")
        status = Status.SUCCESS if known else Status.INVALID
        answer = m.PlainResponse(command=Command.CONTROL, opaque=message.opaque, status=status)
        talk.send(answer)
    assert isinstance(message, m.StreamRequest)
    return message


def state_packet(request: m.StreamRequest, number: int) -> bytes:
    """Set VBucket State as a peer numbers it."""
    return bytes.fromhex(f"805b0000 01 00 {VB:04x} 00000001 {request.opaque:08x}") + (
        bytes(8) + bytes([number])
    )


@pytest.mark.parametrize("before", [REPLICA, PENDING], ids=["replica", "pending"])
@pytest.mark.parametrize("number", [2, 3], ids=["3.0.2", "4.1.2"])
def test_a_vbucket_is_taken_over_from_an_old_node(
    node: TemporaryProducer, before: VBucketState, number: int
) -> None:
    make_replica(node)
    node.bucket.set_state(VB, before)
    with consumer(node) as talk:
        request = requested(talk, StreamFlag.TAKEOVER)
        assert (request.start, request.end, request.snapshot_end) == (0, NO_END, 0)
        log = (FailoverEntry(7, 0),)
        talk.send(
            m.StreamAccepted(opaque=request.opaque, failover_log=log),
            marker(request, 0, 5, flags=ASKED),
            *(replace(mutation(request, n), collection=None, nru=2) for n in range(1, 6)),
        )
        assert talk.read() == m.AddStreamResponse(opaque=77, stream_opaque=request.opaque)
        assert talk.read().command is Command.SNAPSHOT_MARKER
        for sent, then in ((number, PENDING), (1, ACTIVE)):
            talk.socket.sendall(state_packet(request, sent))
            answer = talk.read()
            assert (answer.command, answer.status) == (Command.SET_STREAM_STATE, Status.SUCCESS)
            assert node.bucket.state(VB) is then
        talk.send(m.StreamEnd(vbucket=VB, opaque=request.opaque))
        assert talk.ask(kv.Noop()).status is Status.SUCCESS
    assert branches(node.bucket) == [7]
    assert high(node.bucket) == 5


def test_an_active_vbucket_adds_no_stream(node: TemporaryProducer) -> None:
    with consumer(node) as talk:
        answer = talk.ask(m.AddStream(vbucket=VB))
        assert answer.status is Status.NOT_MY_VBUCKET


def test_the_form_of_the_request_is_found_out_once_for_a_name(node: TemporaryProducer) -> None:
    make_replica(node)
    make_replica(node, 2)
    with consumer(node) as talk:
        talk.send(m.AddStream(vbucket=VB, opaque=77), m.AddStream(vbucket=2, opaque=78))
        refuse(talk, short_request(talk), Status.INVALID)
        asked = [talk.read() for _ in range(6)]  # the second stream has waited for the answer
        assert [x.vbucket for x in asked if isinstance(x, m.StreamRequest)] == [VB, 2]
        assert all(isinstance(x, m.Control) for x in asked[:4])
    until(lambda: not node.producer.server.view().connections)
    with consumer(node) as talk:
        talk.send(m.AddStream(vbucket=VB, opaque=77))
        request = talk.read()
        assert isinstance(request, m.StreamRequest)
        refuse(talk, request, Status.INVALID)  # another node has that name now
        assert short_request(talk).vbucket == VB


def test_a_node_that_hangs_up_instead_of_refusing_is_asked_otherwise(
    node: TemporaryProducer,
) -> None:
    make_replica(node)
    for _ in range(3):
        with consumer(node) as talk:
            talk.send(m.AddStream(vbucket=VB, opaque=77))
            short_request(talk)
        until(lambda: not node.producer.server.view().connections)
    with consumer(node) as talk:
        talk.send(m.AddStream(vbucket=VB, opaque=77))
        request = talk.read()
        assert request.snapshot_end == 0
        talk.send(m.StreamAccepted(opaque=request.opaque, failover_log=(FailoverEntry(7, 0),)))
        assert talk.read() == m.AddStreamResponse(opaque=77, stream_opaque=request.opaque)
        assert isinstance(talk.read(), m.Control)


@pytest.mark.parametrize(
    ("peers", "numbers"),
    [(PeerRelease.RELEASE_3_0, [2, 1]), (PeerRelease.TODAY, [3, 1])],
    ids=["3.0", "today"],
)
def test_a_vbucket_is_handed_over_to_a_node_without_hello(
    peers: PeerRelease, numbers: list[int]
) -> None:
    with TemporaryProducer(vbuckets=4, settings=ServerSettings(peers=peers)) as node:
        node.bucket.write_many([SetDocument(VB, b"\0k%d" % n, b"v") for n in range(5)])
        with Talk(node) as talk:
            talk.open("takeover", OpenFlag.PRODUCER)
            for key, value in (
                ("connection_buffer_size", "10485760"),
                ("enable_noop", "true"),
                ("set_noop_interval", "180"),
            ):
                talk.control(key, value)
            own = 0x123456  # its own branch, although it has nothing
            talk.send(
                m.StreamRequest(
                    vbucket=VB,
                    opaque=1,
                    start=0,
                    end=NO_END,
                    vbuuid=own,
                    flags=StreamFlag.TAKEOVER,
                )
            )
            assert isinstance(talk.read(), m.StreamAccepted)
            announced = talk.read()
            assert announced.flags & MarkerFlag.ACK
            assert [talk.read().seqno for _ in range(5)] == [1, 2, 3, 4, 5]
            talk.send(m.PlainResponse(command=Command.SNAPSHOT_MARKER, opaque=1))
            for number in numbers:
                packet = talk.packet()
                assert (packet[1], packet[-1]) == (0x5B, number)
                talk.send(m.PlainResponse(command=Command.SET_STREAM_STATE, opaque=1))
            assert talk.read().reason is StreamEndReason.OK
        until(lambda: node.bucket.state(VB) is VBucketState.DEAD)
