"""Draft 002 has a message for a packet that cannot be read: what our readers do with both."""

from __future__ import annotations

import pytest
from consumerkit import Conversation, Scripted
from draft_servers import DraftServer, change, closing, opening

from upriver.consumer import Consumer
from upriver.errors import DecodeError, StatusError
from upriver.wire import messages as m
from upriver.wire.dialects import Draft002

DRAFT = Draft002()


def unreadable(request: m.StreamRequest) -> bytes:
    """A stream message of a type that the draft does not have."""
    return bytes.fromhex(f"04000000 {request.opaque:08x} 00000004 09000000")


def reader(server: Scripted) -> Consumer:
    return Consumer(
        server.source,
        dialect="002",
        vbuckets=frozenset({0}),
        end={0: 2},
        retry_first=0.001,
        retry_most=0.005,
    )


def test_a_stream_with_an_unreadable_message_is_requested_again() -> None:
    requests: list[m.StreamRequest] = []

    def play(talk: Conversation, request: m.StreamRequest) -> None:
        requests.append(request)
        talk.send(*opening(DRAFT, request), change(request, 1))
        if len(requests) == 1:
            talk.socket.sendall(unreadable(request))
        talk.send(change(request, 2), *closing(DRAFT, request))

    with DraftServer(DRAFT, play) as server, reader(server) as consumer:
        assert [change.seqno for change in consumer] == [1, 2]
        told = [packet for packet in server.heard if packet[0] == 7]
        assert [packet[4:8] for packet in told] == [requests[0].opaque.to_bytes(4, "big")]
        assert len(requests) == 2
        assert consumer.status().counts == {"stream ended: closed": 1}


def test_a_server_whose_messages_are_never_readable_is_given_up() -> None:
    def play(talk: Conversation, request: m.StreamRequest) -> None:
        talk.send(*opening(DRAFT, request))
        talk.socket.sendall(unreadable(request))

    with (
        DraftServer(DRAFT, play) as server,
        reader(server) as consumer,
        pytest.raises(DecodeError, match="9 is not a type of this message"),
    ):
        list(consumer)


def test_a_request_that_the_server_cannot_read_ends_the_reading() -> None:
    def play(talk: Conversation, request: m.StreamRequest) -> None:
        talk.socket.sendall(bytes.fromhex(f"07000000 {request.opaque:08x} 00000000"))

    with (
        DraftServer(DRAFT, play) as server,
        reader(server) as consumer,
        pytest.raises(StatusError, match="vbucket 0 was refused"),
    ):
        list(consumer)
