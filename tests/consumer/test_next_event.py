"""The way to the next event, without a server: timeouts, and what a group takes away."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

import pytest

from upriver.consumer import Consumer, Position, Revocation
from upriver.consumer import client as client_module
from upriver.consumer.streaming.inbox import Delivery, Failed, Inbox, Nudge
from upriver.errors import StreamEnded
from upriver.model import FailoverLog
from upriver.session.consumer_events import StreamOpened


class Clock:
    """A clock, and a queue whose deliveries take time to come."""

    def __init__(self, *deliveries: tuple[float, Delivery]) -> None:
        self.now = 0.0
        self._coming = [*deliveries]

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def put(self, delivery: Delivery) -> None:
        pass

    def get_nowait(self) -> Delivery:
        return self.get(0.0)

    def get(self, timeout: float) -> Delivery:
        if not self._coming or self._coming[0][0] > self.now + timeout:
            self.now += timeout
            raise queue.Empty
        at, delivery = self._coming.pop(0)
        self.now = max(self.now, at)
        return delivery


class Group:
    """What a consumer asks of its membership."""

    def __init__(self, *revocations: Revocation, leased_from: float = 0.0) -> None:
        self.revocations = list(revocations)
        self.agreed: list[Revocation] = []
        self.hidden: frozenset[int] = frozenset()
        self.clock: Clock | None = None
        self._leased_from = leased_from

    @property
    def may_deliver(self) -> bool:
        return self.clock is None or self.clock.now >= self._leased_from

    def pending(self) -> list[Revocation]:
        pending, self.revocations = self.revocations, []
        return pending

    def begun(self, revocation: Revocation) -> Revocation:
        return revocation

    def agree(self, revocation: Revocation) -> None:
        self.agreed.append(revocation)


def consumer(
    monkeypatch: pytest.MonkeyPatch,
    clock: Clock,
    group: Group | None = None,
    on_revoked: Callable[[Revocation], Any] | None = None,
) -> Consumer:
    """A consumer of two vbuckets that was started, as far as it knows."""
    made: Any = Consumer("couchbase://127.0.0.1/default")
    monkeypatch.setattr(client_module, "time", clock)
    made._deliveries = clock
    made._group, made._on_revoked = group, on_revoked
    made._running = None, Inbox({0: Position(), 1: Position()}, share=group)  # type: ignore[arg-type]
    if group is not None:
        group.clock = clock
    result: Consumer = made
    return result


OPENED = Delivery(StreamOpened(0, FailoverLog.of((7, 0))))


def test_what_the_application_does_not_see_does_not_prolong_the_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(*((float(at), Delivery(Nudge())) for at in range(1, 20, 3)), (30.0, OPENED))
    reading = consumer(monkeypatch, clock)
    assert reading.poll(timeout=10) is None
    assert clock.now == 10
    assert reading.poll(timeout=25) == OPENED.event
    assert clock.now == 30


def test_waiting_for_the_lease_is_part_of_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock((9.0, OPENED))
    reading = consumer(monkeypatch, clock, Group(leased_from=5.0))
    assert reading.poll(timeout=8) is None
    assert clock.now == pytest.approx(8)
    assert reading.poll(timeout=8) == OPENED.event


def test_a_timeout_of_zero_still_looks_into_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock((0.0, Delivery(Nudge())), (0.0, OPENED))
    reading = consumer(monkeypatch, clock)
    assert reading.poll(timeout=0) == OPENED.event
    assert reading.poll(timeout=0) is None


def test_a_revocation_is_agreed_to_although_the_callback_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuses(revocation: Revocation) -> None:
        raise ZeroDivisionError

    taken = Revocation(frozenset({0}))
    group = Group(taken)
    reading = consumer(monkeypatch, Clock(), group, refuses)
    with pytest.raises(ZeroDivisionError):
        reading.poll(timeout=1)
    assert group.agreed == [taken]
    assert reading._inbox.positions().keys() == {1}


def test_a_revocation_is_given_up_before_a_failure_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error = StreamEnded(vbucket=0, reason="over")
    group = Group()
    reading = consumer(monkeypatch, Clock((0.0, Delivery(Failed(error)))), group)
    with pytest.raises(StreamEnded):
        reading.poll()
    taken = Revocation(frozenset({1}))
    group.revocations.append(taken)
    with pytest.raises(StreamEnded):
        reading.poll()
    assert group.agreed == [taken]
