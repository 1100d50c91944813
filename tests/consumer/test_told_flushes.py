"""A Flush on a stream is a rollback to seqno 0, whatever the server does after it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from consumerkit import DIALECTS, PATIENCE, Conversation
from draft_servers import DraftServer, change, closing, opening
from printed_packets import RIGHT

from upriver.consumer import (
    AsyncConsumer,
    Checkpoint,
    Consumer,
    Flushed,
    Rollback,
    RollbackPolicy,
    RollbackReason,
    RolledBack,
)
from upriver.errors import RollbackRequired
from upriver.wire import messages as m

#: The Flush that the documents print.
FLUSHES = {"000": RIGHT["000", 15], "001": RIGHT["001", 17]}
DRAFTS = pytest.mark.parametrize("draft", FLUSHES)


def flushing(draft: str) -> DraftServer:
    """Sends the seqnos 1 and 2, a Flush, and 3 in the same snapshot, which it then ends."""
    dialect = DIALECTS[draft]

    def play(talk: Conversation, request: m.StreamRequest) -> None:
        flush = bytearray(FLUSHES[draft])
        flush[6:8] = request.vbucket.to_bytes(2, "big")
        flush[12:16] = request.opaque.to_bytes(4, "big")
        talk.send(*opening(dialect, request), change(request, 1), change(request, 2))
        talk.socket.sendall(flush)
        talk.send(change(request, 3), *closing(dialect, request))

    return DraftServer(dialect, play)


def options(draft: Any, **more: Any) -> dict[str, Any]:
    return {"dialect": draft, "vbuckets": frozenset({0}), "end": {0: 3}, **more}


def blocking(source: str, told: list[Any], **more: Any) -> Checkpoint:
    with Consumer(source, on_rollback=told.append, **more) as consumer:
        told += consumer
        return consumer.position()


def on_a_loop(source: str, told: list[Any], **more: Any) -> Checkpoint:
    async def read() -> Checkpoint:
        async with AsyncConsumer(source, on_rollback=told.append, **more) as consumer:
            async for change in consumer:
                told.append(change)
            return consumer.position()

    return asyncio.run(asyncio.wait_for(read(), PATIENCE))


@DRAFTS
@pytest.mark.parametrize("read", [blocking, on_a_loop])
def test_a_flush_is_told_before_what_follows_it(draft: Any, read: Any) -> None:
    told: list[Any] = []
    with flushing(draft) as server:
        position = read(server.source, told, **options(draft)).position(0)
    assert [getattr(one, "seqno", one) for one in told] == [
        1,
        2,
        Rollback(0, 2, 0, RollbackReason.FLUSHED),
        3,
    ]
    assert (position.seqno, position.boundaries) == (3, (3,))


@DRAFTS
def test_a_flush_is_an_event_of_its_own_too(draft: Any) -> None:
    with flushing(draft) as server, Consumer(server.source, **options(draft)) as consumer:
        events = list(consumer.events())
        assert [event for event in events if isinstance(event, Flushed)] == [Flushed(0)]
        assert consumer.status().counts["rollback: flushed"] == 1


@DRAFTS
def test_policies_decide_what_a_flush_means(draft: Any) -> None:
    told: list[Any] = []
    with (
        flushing(draft) as server,
        pytest.raises(RollbackRequired, match=r"rolled back to seqno 0 \(flushed\)"),
    ):
        blocking(server.source, told, **options(draft, rollback=RollbackPolicy.FAIL))
    told.clear()
    with (
        flushing(draft) as server,
        Consumer(server.source, **options(draft, rollback=RollbackPolicy.STOP)) as consumer,
    ):
        events = list(consumer.events())
        (left,) = [event for event in events if isinstance(event, RolledBack)]
        assert (left.from_seqno, left.to.seqno, left.refused) == (2, 0, True)
        assert left.reason is RollbackReason.FLUSHED
        assert consumer.position().position(0).seqno == 2  # nothing after the flush was read
    with flushing(draft) as server:
        blocking(server.source, told, **options(draft, rollback=RollbackPolicy.IGNORE))
    assert [one.seqno for one in told] == [1, 2, 3]
