"""Messages of streams that a client never asked for are refused, and its own streams go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from consumerkit import DIALECTS, LOG, PATIENCE, Conversation, Scripted, mutation
from draft_servers import PRINTED_MUTATION, DraftServer, change, closing, opening
from printed_packets import RIGHT
from waiting import until

from upriver.consumer import AsyncConsumer, Consumer
from upriver.wire import messages as m

Read = Callable[..., list[int]]


def blocking(source: str, **options: Any) -> list[int]:
    with Consumer(source, **options) as consumer:
        return [change.seqno for change in consumer]


def on_a_loop(source: str, **options: Any) -> list[int]:
    async def read() -> list[int]:
        async with AsyncConsumer(source, **options) as consumer:
            return [change.seqno async for change in consumer]

    return asyncio.run(asyncio.wait_for(read(), PATIENCE))


both = pytest.mark.parametrize("read", [blocking, on_a_loop])

#: A mutation of a stream that nobody asked for, and the answer to it, as they lie on the wire.
STRAYS = {
    "002": (
        bytes.fromhex("04000000 00001210 0000002d 03 00 0005") + bytes(36) + b"hello",
        bytes.fromhex("02000000 00001210 00000001 02"),
    ),
    "000": (
        RIGHT["000", PRINTED_MUTATION["000"]],
        bytes.fromhex("8156 0000 00 00 0007 00000000 0000002d") + bytes(8),
    ),
    "001": (
        RIGHT["001", PRINTED_MUTATION["001"]],
        bytes.fromhex("8157 0000 00 00 0007 00000000 00001210") + bytes(8),
    ),
}


@both
@pytest.mark.parametrize("draft", STRAYS)
def test_a_stray_message_is_refused_and_the_connection_goes_on(read: Read, draft: str) -> None:
    stray, refusal = STRAYS[draft]
    dialect = DIALECTS[draft]

    def play(talk: Conversation, request: m.StreamRequest) -> None:
        talk.send(*opening(dialect, request), change(request, 1))
        talk.socket.sendall(stray)
        talk.send(change(request, 2), *closing(dialect, request))

    with DraftServer(dialect, play) as server:
        found = read(server.source, dialect=draft, vbuckets=frozenset({0}), end={0: 2})
        until(lambda: refusal in server.heard)
        assert len(server.requests()) == 1
    assert found == [1, 2]


@both
def test_a_stray_message_of_today_is_refused_too(read: Read) -> None:
    refusals: list[m.PlainResponse] = []

    def script(talk: Conversation, request: Any) -> bool:
        if isinstance(request, m.PlainResponse):
            refusals.append(request)
            return True
        if not isinstance(request, m.StreamRequest):
            return False
        dialect = DIALECTS["dcp"]
        talk.send(
            m.StreamAccepted(opaque=request.opaque, failover_log=LOG.entries),
            *opening(dialect, request),
            mutation(1, opaque=0x2D, vbucket=12),
            change(request, 1),
            m.SeqnoAdvanced(opaque=0x2D, vbucket=12, seqno=2),
            m.StreamEnd(vbucket=request.vbucket, opaque=request.opaque),
        )
        return True

    with Scripted(script, vbuckets=1) as server:
        assert read(server.source, end="now") == [1]
        until(lambda: len(refusals) == 2)
        assert server.connections <= 2
    assert [(x.opaque, x.status.name) for x in refusals] == [(0x2D, "NOT_MY_VBUCKET")] * 2
