"""Nothing waits for ever: faults of ours, and servers that are silent where they must not be."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from consumerkit import (
    LOG,
    PATIENCE,
    Conversation,
    Scripted,
    everything,
    fill,
    in_thread,
    marker,
    mutation,
    places,
    streaming,
)
from waiting import until

from upriver.consumer import Consumer
from upriver.consumer.streaming.engine import Engine
from upriver.consumer.streaming.event_dispatch import EventDispatch
from upriver.errors import ConfigError, ConnectionFailed, InternalError, Status
from upriver.session.consumer_session import ConsumerSession
from upriver.session.inbound_row_checks import RowCheck
from upriver.testing import TemporaryProducer
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.dialects import Draft000
from upriver.wire.header import HEADER_SIZE

QUICK: dict[str, Any] = {
    "retry_first": 0.001,
    "retry_most": 0.005,
    "connect_timeout": 5.0,
    "answer_timeout": 0.3,
}
ROWS = (
    marker(0, 5, opaque=0, vbucket=0),
    *(mutation(seqno, opaque=0, vbucket=0) for seqno in range(1, 6)),
)


@pytest.fixture
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=2) as running:
        fill(running, 10)
        yield running


# ---- faults of ours ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "name"),
    [
        (EventDispatch, "on_events"),
        (EventDispatch, "_note"),
        (Engine, "_renew_map"),
        (Engine, "_place"),
        (RowCheck, "check_until"),
        (ConsumerSession, "_handle"),
        (ConsumerSession, "_accepted"),
    ],
)
def test_a_fault_of_ours_ends_the_reading_with_that_error(
    producer: TemporaryProducer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    where: type,
    name: str,
) -> None:
    def faulty(*_: object, **__: object) -> None:
        raise ZeroDivisionError(f"in {name}")

    options = {**QUICK, "answer_timeout": PATIENCE}
    with caplog.at_level(logging.CRITICAL), Consumer(producer.source, **options) as consumer:
        until(lambda: consumer.status().is_whole)
        monkeypatch.setattr(where, name, faulty)
        reading = in_thread(lambda: list(consumer))
        producer.kill_connections()
        with pytest.raises(InternalError, match=f"in {name}"):
            reading.result(PATIENCE)


def test_an_error_with_a_name_keeps_it(
    producer: TemporaryProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> None:
        raise ConfigError("the network 'external' has no addresses")

    options = {**QUICK, "answer_timeout": PATIENCE}
    with Consumer(producer.source, **options) as consumer:
        until(lambda: consumer.status().is_whole)
        monkeypatch.setattr(EventDispatch, "_note", refuses)
        reading = in_thread(lambda: list(consumer))
        producer.kill_connections()
        with pytest.raises(ConfigError, match="has no addresses"):
            reading.result(PATIENCE)


# ---- servers that say less than they should ----------------------------------------------


def test_a_server_that_told_of_more_than_it_has_is_asked_again() -> None:
    """The end of the reading is a seqno that will never come."""
    told = [2**51 + 5]

    def script(talk: Conversation, request: Any) -> bool:
        if isinstance(request, kv.GetAllSeqnos):
            seqno = told.pop() if told else 5
            talk.send(kv.AllSeqnosResponse(opaque=request.opaque, seqnos=((0, seqno),)))
            return True
        return streaming(*ROWS)(talk, request)

    with Scripted(script, vbuckets=1) as server:
        found = everything(server.source, **QUICK)
    assert places(found) == [(0, seqno) for seqno in range(1, 6)]


@pytest.mark.parametrize("option", ["start", "end"])
def test_a_vbucket_that_no_node_tells_of_is_not_left_out_without_a_word(option: str) -> None:
    def script(talk: Conversation, request: Any) -> bool:
        if isinstance(request, kv.GetAllSeqnos):
            talk.send(kv.AllSeqnosResponse(opaque=request.opaque, seqnos=((0, 5),)))
            return True
        return False

    with (
        Scripted(script, vbuckets=2) as server,
        pytest.raises(ConnectionFailed, match="has vbucket 1 of default on no node"),
    ):
        everything(server.source, **QUICK, **{option: "now"})


def test_a_stream_at_its_end_that_is_never_ended_is_over() -> None:
    with Scripted(streaming(*ROWS), vbuckets=1) as server:
        assert len(everything(server.source, end={0: 5}, **QUICK)) == 5


def test_a_stream_that_is_forgotten_before_its_end_is_asked_for_again() -> None:
    def script(talk: Conversation, request: Any) -> bool:
        if not isinstance(request, m.StreamRequest):
            return False
        if request.start == 0:
            return streaming(*ROWS[:3])(talk, request)
        assert request.start == 2
        return streaming(ROWS[0], *ROWS[3:], m.StreamEnd(vbucket=0))(talk, request)

    with Scripted(script, vbuckets=1) as server, Consumer(server.source, end="now", **QUICK) as c:
        assert places(c) == [(0, seqno) for seqno in range(1, 6)]
        assert c.status().counts["connections lost"] == 1


def test_a_seqno_that_is_still_to_come_is_waited_for() -> None:
    talks: list[tuple[Conversation, Any]] = []
    asked = threading.Semaphore(0)

    def script(talk: Conversation, request: Any) -> bool:
        if isinstance(request, kv.GetAllSeqnos):
            asked.release()
        if not isinstance(request, m.StreamRequest):
            return False
        talks.append((talk, request))
        return streaming(*ROWS)(talk, request)

    with (
        Scripted(script, vbuckets=1) as server,
        Consumer(server.source, end={0: 6}, **QUICK) as consumer,
    ):
        changes = iter(consumer)
        assert [next(changes).seqno for _ in range(5)] == [1, 2, 3, 4, 5]
        last = in_thread(lambda: [change.seqno for change in changes])
        for _ in range(2):
            assert asked.acquire(timeout=PATIENCE)
        assert not last.done()
        ((talk, request),) = talks
        more = [marker(6, 6, opaque=request.opaque, vbucket=0)]
        more += [mutation(6, opaque=request.opaque, vbucket=0)]
        talk.send(*more, m.StreamEnd(vbucket=0, opaque=request.opaque))
        assert last.result(PATIENCE) == [6]


def noops(talk: Conversation, stop: threading.Event) -> None:
    """Signs of life, as fast as a server can give them."""
    try:
        while not stop.wait(0.05):
            talk.send(m.StreamNoop(opaque=9))
    except OSError:
        pass


def test_signs_of_life_inside_a_packet_that_never_ends_are_none() -> None:
    """A length that is wrong swallows everything behind it, noops too."""
    lies, stop = [1], threading.Event()

    def script(talk: Conversation, request: Any) -> bool:
        if not isinstance(request, m.StreamRequest):
            return False
        if not lies:
            return streaming(*ROWS, m.StreamEnd(vbucket=0))(talk, request)
        lies.pop()
        talk.send(m.StreamAccepted(opaque=request.opaque, failover_log=LOG.entries))
        packet = bytearray(talk.dialect.encode(mutation(1, opaque=request.opaque, vbucket=0)))
        packet[8:12] = (15 * 1024 * 1024).to_bytes(4)
        talk.socket.sendall(packet[: HEADER_SIZE + 10])
        threading.Thread(target=noops, args=(talk, stop)).start()
        return True

    try:
        with Scripted(script, vbuckets=1) as server:
            options = {**QUICK, "answer_timeout": PATIENCE, "noop_interval": 0.5}
            assert len(everything(server.source, **options)) == 5
            assert server.connections >= 2
    finally:
        stop.set()


def test_a_server_of_an_old_draft_that_falls_silent_is_left() -> None:
    """The old drafts have no noops, so a reader asks for a sign of life itself.

    Only the connection that falls silent does: what comes next is answered.
    """
    silent = threading.Event()
    fell: list[Conversation] = []

    def script(talk: Conversation, request: Any) -> bool:
        if isinstance(request, kv.Hello | kv.GetClusterConfig):
            talk.answer(request, Status.UNKNOWN_COMMAND)
            return True
        if isinstance(request, m.StreamRequest):
            talk.send(m.StreamAccepted(opaque=request.opaque))
            return True
        if silent.is_set() and not fell:
            fell.append(talk)
        return talk in fell and isinstance(request, m.FailoverLogRequest)

    with (
        Scripted(script, vbuckets=1, dialect=Draft000()) as server,
        Consumer(
            server.source,
            dialect="000",
            vbuckets=frozenset({0}),
            **{**QUICK, "answer_timeout": PATIENCE, "noop_interval": 0.5},
        ) as consumer,
    ):
        until(lambda: consumer.status().is_whole)
        before = server.connections
        silent.set()
        until(lambda: server.connections > before)
        until(lambda: consumer.status().is_whole)
