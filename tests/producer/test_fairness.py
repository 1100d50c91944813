"""Nobody waits for a stranger: whatever one client does, another is answered in between.

What counts is the order of answers, never the time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from serverkit import users_file
from talk import Talk
from waiting import until

from upriver.errors import Status, StoreRefusal
from upriver.producer.bootstrap import password_checks
from upriver.producer.bootstrap.users import Role
from upriver.producer.connections import thread_pools
from upriver.producer.connections.connection_scheduler import (
    TURN_PACKETS,
    ConnectionScheduler,
    Load,
)
from upriver.producer.connections.thread_pools import ThreadPools
from upriver.producer.keyvalue import BackgroundWork, Blocking
from upriver.producer.keyvalue.dispatch import _HANDLERS
from upriver.producer.keyvalue.request_context import Call
from upriver.producer.server_settings import ServerSettings
from upriver.store import SetDocument
from upriver.testing import MemoryProducer, TemporaryProducer
from upriver.testing.memory_producer import MemoryLink
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp
from upriver.wire.framing import Framer
from upriver.wire.protocol_enums import Command, Feature, OpenFlag

DCP = Dcp()
MANY = 4000


@pytest.fixture
def producer() -> Iterator[MemoryProducer]:
    with MemoryProducer(vbuckets=64) as producer:
        producer.bucket.write(SetDocument(0, b"\0known", b"{}"))
        yield producer


def answers(link: MemoryLink) -> list[bytes]:
    return list(Framer().feed(link.receive()))


FLOODS = {
    "gets": (kv.Get(key=b"known"), MANY),
    "HELLO": (kv.Hello(agent="x" * 200, features=(Feature.JSON,)), MANY),
    "SCRAM": (kv.SaslAuth(mechanism="SCRAM-SHA512", payload=b"n,,n=who,r=nonce"), MANY),
    "seqnos": (kv.GetAllSeqnos(), MANY),
    "statistics": (kv.Stat(group="vbucket-details"), 40),
    "manifest": (kv.GetManifest(), MANY),
    "sets": (kv.Set(key=b"own"), MANY),
    "malformed": (kv.Get(key=b""), MANY),
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_request_is_answered_before_a_flood_that_came_first(
    producer: MemoryProducer, name: str
) -> None:
    request, count = FLOODS[name]
    flooding, other = producer.connect(), producer.connect()
    flood = DCP.encode(request) if name != "malformed" else bytes(24).replace(b"\0", b"\x80", 1)
    flooding.send(flood * count)
    other.send(DCP.encode(kv.Get(key=b"known", opaque=7)))
    while not other.unread:
        assert producer.step(), "the other client was never answered"
    (answer,) = answers(other)
    assert DCP.decode(answer).opaque == 7
    answered = len(answers(flooding))
    producer.settle()
    while flooding.unread:  # and the flood is answered too, to the last request
        answered += len(answers(flooding))
        producer.settle()
    lines = 64 * 9 + 1 if name == "statistics" else 1
    assert answered == count * lines


def test_one_long_question_is_answered_in_steps(producer: MemoryProducer) -> None:
    """A single request is divided as well, not only many of them."""
    flooding, other = producer.connect(), producer.connect()
    flooding.send(DCP.encode(kv.Observe(keys=((0, b"known"),) * 10_000)) * 8)
    other.send(DCP.encode(kv.Get(key=b"known")))
    while not other.unread:
        assert producer.step()
    assert len(answers(flooding)) < 8


def test_those_who_have_much_to_do_take_turns(producer: MemoryProducer) -> None:
    links = [producer.connect() for _ in range(5)]
    for link in links:
        link.send(DCP.encode(kv.Noop()) * (20 * TURN_PACKETS))
    for _ in range(6):
        producer.step()
    assert all(answers(link) for link in links)


class _Clock:
    """A loop of which a test moves the time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._ready: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, call: Callable[..., object], *arguments: Any) -> None:
        self._ready.append((call, arguments))

    def iterate(self) -> None:
        ready, self._ready = self._ready, []
        for call, arguments in ready:
            call(*arguments)


class _Timed:
    """A worker whose every turn takes some time, and which may ask for more in the middle of it."""

    queued, load, heavy_until = False, Load.NEW, 0.0

    def __init__(self, clock: _Clock, seconds: float, *, asks: bool = False) -> None:
        self._clock, self._seconds, self._asks = clock, seconds, asks
        self.scheduler: ConnectionScheduler | None = None
        self.turns = 0

    def work(self, until: float) -> bool:
        self.turns += 1
        self._clock.now += self._seconds
        if self._asks and self.scheduler is not None:
            self.scheduler.ask(self)
        return not self._asks

    def failed(self) -> None: ...


def _scheduler(clock: _Clock) -> ConnectionScheduler:
    return ConnectionScheduler(cast("asyncio.AbstractEventLoop", clock), used=clock.time)


@pytest.mark.parametrize("asks", [False, True], ids=["has more", "asks again"])
@pytest.mark.parametrize("seconds", [0.001, 0.04])
def test_a_small_request_waits_for_one_turn_of_others_and_not_for_one_of_each(
    seconds: float, asks: bool
) -> None:
    """A large document is read in one piece: that is a long turn, with nothing left to do."""
    clock = _Clock()
    turns = _scheduler(clock)
    heavy = [_Timed(clock, seconds, asks=asks) for _ in range(50)]
    light = _Timed(clock, 0.0001, asks=True)
    turns.ask(light)
    clock.iterate()
    clock.iterate()
    for worker in heavy:
        worker.scheduler = turns
        turns.ask(worker)
    for expected in range(2, 200):
        before = sum(worker.turns for worker in heavy)
        turns.ask(light)
        while light.turns < expected:
            clock.iterate()
        assert (sum(worker.turns for worker in heavy) - before) * seconds <= 0.1
    assert all(worker.turns for worker in heavy)  # and none of them starves


class _Hasty:
    """A worker whose turns fail."""

    queued, load, heavy_until = False, Load.NEW, 0.0
    told = 0

    def work(self, until: float) -> bool:
        raise RuntimeError("a fault")

    def failed(self) -> None:
        self.told += 1


def test_a_turn_that_fails_costs_its_own_connection_alone(producer: MemoryProducer) -> None:
    with producer._loop.running():
        turns = ConnectionScheduler(producer._loop)
        worker = _Hasty()
        turns.ask(worker)
    producer.settle()
    assert worker.told == 1
    link = producer.connect()
    link.send(DCP.encode(kv.Noop()))
    producer.settle()
    assert len(answers(link)) == 1


def test_everything_is_worked_on_that_a_client_sent_before_it_left() -> None:
    with TemporaryProducer(vbuckets=1) as server:
        with Talk(server) as leaving:
            sets = [kv.Set(key=b"k%d" % n, value=b"{}", quiet=True) for n in range(20_000)]
            leaving.send(*sets)
        until(lambda: server.bucket.vbucket_stats(0).items == 20_000)


# ---- threads -----------------------------------------------------------------------------


def test_work_of_one_class_does_not_wait_for_another() -> None:
    threads, release = ThreadPools(), threading.Event()
    try:
        held = [threads.submit(BackgroundWork.COMPACTING, release.wait) for _ in range(20)]
        held += [threads.submit(BackgroundWork.SEARCHING, release.wait) for _ in range(20)]
        for work in (
            BackgroundWork.HASHING,
            BackgroundWork.EDITING,
            BackgroundWork.ADMINISTERING,
            BackgroundWork.REPLICATING,
        ):
            assert threads.submit(work, lambda: "done").result(60) == "done"
        assert not any(future.done() for future in held)
    finally:
        release.set()
        threads.close()


def test_what_waits_in_a_class_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_pools, "MOST_WAITING", 3)
    threads, release = ThreadPools(), threading.Event()
    try:
        for _ in range(3):
            threads.submit(BackgroundWork.SEARCHING, release.wait)
        with pytest.raises(StoreRefusal, match="too much searching is waiting") as refused:
            threads.submit(BackgroundWork.SEARCHING, release.wait)
        assert refused.value.status is Status.TEMPORARY_FAILURE
    finally:
        release.set()
        threads.close()


@pytest.fixture
def guarded(tmp_path: Path) -> ServerSettings:
    """Of a server with users, so that it hashes passwords."""
    return ServerSettings(users=users_file(tmp_path, {"a": (Role.READ_DATA,)}))


def test_a_client_is_told_to_come_back_where_too_much_waits(
    monkeypatch: pytest.MonkeyPatch, guarded: ServerSettings
) -> None:
    monkeypatch.setattr(thread_pools, "MOST_WAITING", 0)
    with TemporaryProducer(vbuckets=1) as server, Talk(server) as talk:
        assert talk.ask(kv.Compact(vbucket=0)).status is Status.TEMPORARY_FAILURE
        assert talk.ask(kv.Noop()).status is Status.SUCCESS
    with TemporaryProducer(vbuckets=1, settings=guarded) as server, Talk(server) as talk:
        guess = kv.SaslAuth(mechanism="PLAIN", payload=b"\0a\0b")
        for _ in range(2 * password_checks.MOST_OF_ADDRESS):  # which checked nothing
            assert talk.ask(guess).status is Status.TEMPORARY_FAILURE
        assert talk.ask(kv.Noop()).status is Status.SUCCESS
        monkeypatch.undo()
        assert talk.ask(guess).status is Status.AUTH_ERROR


# ---- answers that fail late --------------------------------------------------------------


def _broken(call: Call, request: Any) -> Any:
    raise RuntimeError("a fault")


@pytest.mark.parametrize("late", [False, True], ids=["at once", "in a thread"])
def test_a_fault_of_ours_is_answered(monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    def in_thread(call: Call, request: Any) -> Any:
        return Blocking(BackgroundWork.EDITING, lambda: _broken(call, request))

    monkeypatch.setitem(_HANDLERS, kv.GetVBucket, in_thread if late else _broken)
    with TemporaryProducer(vbuckets=1) as server, Talk(server) as talk:
        assert talk.ask(kv.GetVBucket(vbucket=0)).status is Status.INTERNAL
        assert talk.ask(kv.Noop()).status is Status.SUCCESS


def test_a_fault_while_authenticating_closes_the_connection_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, guarded: ServerSettings
) -> None:
    with TemporaryProducer(vbuckets=1, settings=guarded) as server, Talk(server) as talk:
        monkeypatch.setattr(server.producer.node, "exchange", lambda client: _broken)
        talk.send(kv.SaslAuth(mechanism="PLAIN", payload=b"\0a\0b"))
        assert talk.is_closed()
    assert "a late answer failed" in caplog.text


def test_a_fault_while_answering_a_write_closes_the_connection_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with TemporaryProducer(vbuckets=1) as server, Talk(server) as talk:
        assert talk.ask(kv.Noop()).status is Status.SUCCESS
        monkeypatch.setattr("upriver.producer.connections.deferred_responses.set_answer", _broken)
        talk.send(kv.Set(key=b"known"))
        assert talk.is_closed()
    assert "failed" in caplog.text


# ---- nothing ticks -----------------------------------------------------------------------


def timers(producer: MemoryProducer) -> list[str]:
    """What the loop of a producer will do by itself."""
    calls = [call for _, _, call in producer._loop._timers if not call[0].cancelled()]
    return sorted({callback.__qualname__ for _, callback, _, _ in calls})


def test_idle_streams_have_no_timer(producer: MemoryProducer) -> None:
    producer.advance(2)
    before = timers(producer)
    links = [producer.connect() for _ in range(4)]
    for number, link in enumerate(links):
        requests = [
            m.StreamRequest(vbucket=vbucket, start=0, end=2**64 - 1, opaque=vbucket + 1)
            for vbucket in range(64)
        ]
        opened = m.Open(name=f"idle{number}", flags=OpenFlag.PRODUCER)
        link.send(b"".join(map(DCP.encode, [opened, *requests])))
    producer.settle()
    for link in links:
        link.receive()
    producer.advance(2)  # by then it is known that all was sent
    assert timers(producer) == before


def test_a_noop_is_sent_when_it_is_due_and_not_before(producer: MemoryProducer) -> None:
    link = producer.connect()
    link.send(DCP.encode(m.Open(name="noops", flags=OpenFlag.PRODUCER)))
    for key, value in (("enable_noop", "true"), ("set_noop_interval", "20")):
        link.send(DCP.encode(m.Control(key=key, value=value)))
    producer.settle()
    link.receive()
    producer.advance(19.9)
    assert not link.unread
    producer.advance(0.2)
    (asked,) = answers(link)
    noop = DCP.decode(asked)
    assert isinstance(noop, m.StreamNoop)
    producer.advance(60)
    assert not link.unread  # one at a time
    link.send(DCP.encode(m.PlainResponse(command=Command.STREAM_NOOP, opaque=noop.opaque)))
    producer.settle()
    producer.advance(0.1)
    (again,) = answers(link)
    assert DCP.decode(again) == replace(noop, opaque=noop.opaque + 1)
