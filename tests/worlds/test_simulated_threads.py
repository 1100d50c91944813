"""Simulated threads take turns as the scheduler says, and a killed one has no effect any more."""

from __future__ import annotations

import asyncio
import queue
import random
from collections.abc import Callable, Iterator

import pytest

from upriver.files.storage import StorageFailed
from worlds.network import Network, NetworkSettings
from worlds.object_store import ObjectStore, SimulatedStorage
from worlds.scheduler import Process, Scheduler
from worlds.threads import (
    SimulatedEvent,
    SimulatedQueue,
    Threads,
    block_on,
    current,
)


class Machine:
    """One process with simulated threads."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(random.Random(1))
        network = Network(self.scheduler, random.Random(1), NetworkSettings(), lambda *_: None)
        self.process = Process("one", self.scheduler, network)
        self.threads = Threads()
        self.lines: list[str] = []

    def start(self, work: Callable[[], object]) -> None:
        self.threads.start(self.process, work)

    def say(self, text: str) -> None:
        self.lines.append(f"{self.scheduler.now:.1f} {text}")

    def run(self, seconds: float = 100.0) -> None:
        self.scheduler.run(lambda: False, before=self.scheduler.now + seconds)


def sleep(seconds: float) -> None:
    thread = current()
    assert thread is not None
    thread.sleep(seconds)


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    yield made
    made.threads.end_all()
    made.process.dispose()


def test_threads_sleep_in_simulated_time(machine: Machine) -> None:
    def work(name: str, seconds: float) -> None:
        for _ in range(2):
            sleep(seconds)
            machine.say(name)

    machine.start(lambda: work("slow", 3.0))
    machine.start(lambda: work("fast", 2.0))
    machine.run()
    assert machine.lines == ["2.0 fast", "3.0 slow", "4.0 fast", "6.0 slow"]


def test_events_and_queues_wake_their_threads(machine: Machine) -> None:
    event, items = SimulatedEvent(), SimulatedQueue(queue.Empty)

    def waits() -> None:
        machine.say(f"event {event.wait(1.0)}")
        machine.say(f"event {event.wait(10.0)}")
        machine.say(f"item {items.get(timeout=10.0)}")
        with pytest.raises(queue.Empty):
            items.get(timeout=1.0)
        machine.say("nothing")

    def gives() -> None:
        sleep(2.0)
        event.set()
        sleep(2.0)
        items.put(7)

    machine.start(waits)
    machine.start(gives)
    machine.run()
    assert machine.lines == ["1.0 event False", "2.0 event True", "4.0 item 7", "5.0 nothing"]


def test_a_coroutine_is_waited_for_no_longer_than_allowed(machine: Machine) -> None:
    async def slow() -> str:
        await asyncio.sleep(3.0)
        return "done"

    def work() -> None:
        machine.say(block_on(machine.process, slow()))
        with pytest.raises(TimeoutError):
            block_on(machine.process, slow(), 1.0)
        machine.say("late")

    machine.start(work)
    machine.run()
    assert machine.lines == ["3.0 done", "4.0 late"]


def test_a_killed_thread_has_no_effect_any_more(machine: Machine) -> None:
    store = ObjectStore(random.Random(1), lambda: machine.scheduler.now)
    storage = SimulatedStorage("memory://table", store=store)

    def work() -> None:
        try:
            sleep(5.0)
        finally:
            storage.put("released", b"")

    machine.start(work)
    machine.run(1.0)
    machine.process.kill()
    machine.run()
    machine.threads.end_all()
    assert not store.content


def test_an_exception_in_a_thread_ends_the_world(machine: Machine) -> None:
    def work() -> None:
        sleep(1.0)
        raise KeyError("wrong")

    machine.start(work)
    with pytest.raises(KeyError):
        machine.run()


def test_a_store_refuses_loses_answers_and_creates_once(machine: Machine) -> None:
    store = ObjectStore(random.Random(3), lambda: machine.scheduler.now)
    storage = SimulatedStorage("memory://table", store=store)
    store.failing = 0.5
    told: list[tuple[int, bool | None]] = []
    unheard: set[int] = set()

    def trace(*words: str) -> None:
        if words[:2] == ("lost answer", "create"):
            unheard.add(int(words[2]))

    store.trace = trace

    def work() -> None:
        for number in range(60):
            try:
                told.append((number, storage.create(f"{number:02}", b"%d" % number)))
            except StorageFailed:
                told.append((number, None))

    machine.start(work)
    machine.run()
    there = {int(path) for path in store.content}
    made = {number for number, answer in told if answer}
    assert made <= there
    assert not [number for number, answer in told if answer is False]  # nobody else writes
    assert unheard & made  # recognised when it was read
    assert unheard - made  # the read failed too
    assert {number for number, answer in told if answer is None} - there


def test_a_listing_has_pages(machine: Machine) -> None:
    """What is created behind the page that was read last is not seen."""
    store = ObjectStore(random.Random(3), lambda: machine.scheduler.now)
    storage = SimulatedStorage("memory://table", store=store)
    for number in range(10, 20):
        storage.put(f"a/{number}", b"")
    storage.put("b/1", b"")
    found: list[str] = []

    def work() -> None:
        for file in storage.under("a").files():
            if not found:
                storage.under("a").put("05", b"")
                storage.under("a").put("99", b"")
            found.append(file.path)

    machine.start(work)
    machine.run()
    assert found == [*map(str, range(10, 20)), "99"]
