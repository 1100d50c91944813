"""What a relay reads from the bytes that pass is what the dialect reads from them."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import FORMS, message_of

from examples import examples
from upriver.cluster.replication_relay import ReplicationRelay
from upriver.errors import ConnectionFailed, Status
from upriver.wire import frameinfo as fi
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp
from upriver.wire.protocol_enums import Command

pytestmark = pytest.mark.story

DIALECT = Dcp(collections=True)
_forms = [layout for dialect, layout in FORMS if dialect == DIALECT]
#: What the relay looks for, and everything else that the dialect has.
_watched = (m.StreamEnd, m.CloseStream, m.AddStream, m.AddStreamResponse)
packets = st.one_of(
    st.one_of(*(message_of(x, DIALECT) for x in _forms if x.message in _watched)),
    st.sampled_from(_forms).flatmap(lambda layout: message_of(layout, DIALECT)),
    st.builds(
        m.PlainResponse,
        command=st.sampled_from([Command.ADD_STREAM, Command.CLOSE_STREAM, Command.STREAM_END]),
        status=st.sampled_from([Status.EXISTS, Status.NOT_FOUND, Status.NOT_MY_VBUCKET]),
        opaque=st.integers(0, 2**32 - 1),
    ),
    st.builds(
        m.CloseStream,
        vbucket=st.integers(0, 2**16 - 1),
        frames=st.builds(lambda number: (fi.StreamId(number),), st.integers(0, 2**16 - 1)),
    ),
    st.builds(
        m.StreamEnd,
        vbucket=st.integers(0, 2**16 - 1),
        frames=st.builds(lambda number: (fi.StreamId(number),), st.integers(0, 2**16 - 1)),
    ),
).map(DIALECT.encode)


class Line:
    """One end of a relay: gives some packets once, and takes note of what is sent to it."""

    def __init__(self, *given: bytes) -> None:
        self._given = [list(given)]
        self.sent = b""

    async def packets(self) -> list[bytes]:
        if not self._given:
            raise ConnectionFailed("was lost", "the test is over")
        return self._given.pop()

    async def send(self, data: bytes) -> None:
        self.sent += data

    def close(self) -> None: ...


def relayed(producer: Line, consumer: Line) -> list[int]:
    """The vbuckets whose stream is over, after all packets have passed."""
    over: list[int] = []
    relay = ReplicationRelay(producer, consumer, over.append)  # type: ignore[arg-type]

    async def run() -> None:
        try:
            async with asyncio.timeout(30):
                await asyncio.gather(relay._down(), relay._up(), return_exceptions=True)
        finally:
            relay.close()

    asyncio.run(run())
    return over


_relaxed = settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow])


@_relaxed
@given(st.lists(packets, min_size=1, max_size=6))
def test_everything_of_the_producer_passes_and_ends_are_heard(given: list[bytes]) -> None:
    consumer = Line()
    over = relayed(Line(*given), consumer)
    assert consumer.sent == b"".join(given)
    messages = [DIALECT.decode(packet) for packet in given]
    assert over == [x.vbucket for x in messages if isinstance(x, m.StreamEnd)]


@_relaxed
@given(st.lists(packets, min_size=1, max_size=6))
def test_of_the_consumer_all_passes_but_answers_to_the_relay(given: list[bytes]) -> None:
    producer = Line()
    over = relayed(producer, Line(*given))
    passed, closed = [], []
    for packet in given:
        message = DIALECT.decode(packet)
        if isinstance(message, m.CloseStream):
            closed.append(message.vbucket)
        asked = (Command.ADD_STREAM, Command.CLOSE_STREAM)
        if not (isinstance(message, m.Response) and message.command in asked):
            passed.append(packet)
    assert producer.sent == b"".join(passed)
    assert over == closed
