"""An application closes the stream of one vbucket, and reads on in the others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from consumerkit import DIALECTS, PATIENCE, Conversation, drain, fill, places
from draft_servers import DraftServer, change, opening
from waiting import until

from upriver.consumer import AsyncConsumer, Consumer, MemoryCheckpoint, StreamFinished
from upriver.errors import ConfigError
from upriver.model import NO_END, StreamEndReason
from upriver.session.consumer_events import Event
from upriver.testing import TemporaryProducer
from upriver.wire import messages as m

DRAFTS = pytest.mark.parametrize("draft", ["dcp", "001", "000", "002"])


@pytest.fixture
def producer() -> Iterator[TemporaryProducer]:
    """Vbuckets 0 and 1 have three changes each."""
    with TemporaryProducer(vbuckets=2) as producer:
        fill(producer, 6)
        yield producer


def streamed(producer: TemporaryProducer) -> set[int]:
    """The vbuckets with a stream at the server."""
    connections = producer.producer.server.view().connections
    return {stream.vbucket for one in connections for stream in one.streams}


@DRAFTS
def test_one_vbucket_is_closed_and_the_others_are_read_on(
    producer: TemporaryProducer, draft: Any
) -> None:
    store = MemoryCheckpoint()
    with Consumer(producer.source, dialect=draft, checkpoint=store) as consumer:
        changes = iter(consumer)
        assert len([next(changes) for _ in range(6)]) == 6
        consumer.close_stream(0)
        consumer.close_stream(0)  # once is enough
        fill(producer, 4, start=6)
        assert places([next(changes), next(changes)]) == [(1, 4), (1, 5)]
        until(lambda: streamed(producer) == {1})
        assert consumer.status().vbuckets == {1: True}
        consumer.save()
        consumer.close_stream(1)
        assert list(changes) == []  # the loop ends
        assert consumer.finished
        position = consumer.position()
    saved = store.load()
    assert saved == position
    assert {vbucket: position.position(vbucket).seqno for vbucket in (0, 1)} == {0: 3, 1: 5}
    with Consumer(producer.source, dialect=draft, start=position, end={0: 5, 1: 5}) as consumer:
        assert places(consumer) == [(0, 4), (0, 5)]


@DRAFTS
def test_the_asyncio_client_closes_one_as_well(producer: TemporaryProducer, draft: Any) -> None:
    async def read() -> None:
        async with AsyncConsumer(producer.source, dialect=draft) as consumer:
            changes = aiter(consumer)
            assert len([await anext(changes) for _ in range(6)]) == 6
            await consumer.close_stream(0)
            await asyncio.to_thread(fill, producer, 4, start=6)
            assert places([await anext(changes), await anext(changes)]) == [(1, 4), (1, 5)]
            await consumer.close_stream(1)
            assert [change async for change in changes] == []
            assert consumer.position().position(0).seqno == 3

    asyncio.run(asyncio.wait_for(read(), PATIENCE))


def test_what_waits_to_be_read_of_a_closed_vbucket_is_not_handed_out(
    producer: TemporaryProducer,
) -> None:
    with Consumer(producer.source, end="now") as consumer:
        first = next(iter(consumer))
        consumer.close_stream(first.vbucket)
        rest = [change for batch in consumer.batches() for change in batch.to_pylist()]
        assert {change["vbucket"] for change in rest} == {1 - first.vbucket}
        assert len(rest) == 3
        assert consumer.finished
        assert consumer.position().position(first.vbucket).seqno == 1
    with Consumer(producer.source, end="now") as consumer:
        changes = iter(consumer)
        first = next(changes)
        consumer.close_stream(1 - first.vbucket)
        assert {change.vbucket for change in changes} == {first.vbucket}
        assert consumer.position().position(1 - first.vbucket).seqno == 0


def test_the_end_of_a_closed_stream_is_an_event(producer: TemporaryProducer) -> None:
    with Consumer(producer.source) as consumer:
        drain(consumer)
        fill(producer, 2, start=6)
        until(lambda: consumer.status().received == {0: 4, 1: 4})
        consumer.close_stream(1)
        events: list[Event] = []
        while not events or not isinstance(events[-1], StreamFinished):
            event = consumer.poll()
            assert event is not None
            events.append(event)
        (ended,) = (event for event in events if isinstance(event, StreamFinished))
        assert (ended.vbucket, ended.reason) == (1, StreamEndReason.CLOSED)
        assert ended.position.seqno == 3  # of what was handed out


def test_what_cannot_be_closed_is_named(producer: TemporaryProducer, tmp_path: Any) -> None:
    with Consumer(producer.source, vbuckets=frozenset({1})) as consumer:
        for vbucket in (0, 2, -1):
            with pytest.raises(ConfigError, match=f"vbucket {vbucket} is not read"):
                consumer.close_stream(vbucket)
    with pytest.raises(RuntimeError, match="closed"):
        consumer.close_stream(1)
    with pytest.raises(RuntimeError, match="not running"):
        Consumer(producer.source).close_stream(0)
    with (
        Consumer(producer.source, group="g", members=tmp_path) as member,
        pytest.raises(ConfigError, match="member of a group"),
    ):
        member.close_stream(0)


#: How each draft is told, as it lies on the wire: Close Stream, and the answer to a mutation.
TOLD = {
    "002": (None, "02000000 {0:08x} 00000001 02"),
    "000": (None, "81560000 00000007 00000000 {0:08x} 0000000000000000"),
    "001": (
        "80520000 00000000 00000000 {0:08x} 0000000000000000",
        "81570000 00000007 00000000 {0:08x} 0000000000000000",
    ),
}


@pytest.mark.parametrize("draft", TOLD)
def test_each_draft_tells_the_server_as_it_can(draft: Any) -> None:
    """Of a server that knows one document only, and goes on until it is told."""
    dialect = DIALECTS[draft]
    talks: list[tuple[Conversation, m.StreamRequest]] = []

    def play(talk: Conversation, request: m.StreamRequest) -> None:
        talks.append((talk, request))
        talk.send(*opening(dialect, request), change(request, 1))

    with (
        DraftServer(dialect, play) as server,
        Consumer(
            server.source, dialect=draft, vbuckets=frozenset({0}), end={0: NO_END}
        ) as consumer,
    ):
        assert next(iter(consumer)).seqno == 1
        talk, request = talks[0]
        consumer.close_stream(0)
        close, refusal = TOLD[draft]
        if close is not None:
            until(lambda: bytes.fromhex(close.format(request.opaque)) in server.heard)
        talk.send(change(request, 2))
        until(lambda: bytes.fromhex(refusal.format(request.opaque)) in server.heard)
        assert list(consumer) == []
        assert len(server.requests()) == 1
