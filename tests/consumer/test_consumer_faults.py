"""What happens to a reader when servers fail over, restart, vanish, forget, or are slow."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from consumerkit import (
    PATIENCE,
    Conversation,
    Scripted,
    everything,
    fill,
    high_seqnos,
    in_order,
    in_thread,
    marker,
    mutation,
    places,
    streaming,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from waiting import until

from upriver.consumer import (
    Change,
    Checkpoint,
    Consumer,
    ConsumerSettings,
    Rollback,
    RollbackPolicy,
    RolledBack,
    Rows,
)
from upriver.consumer.changes import changes_of
from upriver.errors import ConnectionFailed, RollbackRequired, StatusError
from upriver.model import VBucketState
from upriver.session.consumer_events import RollbackReason
from upriver.testing import ChaosProxy, TemporaryProducer
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.protocol_enums import DialectName

DRAFTS = pytest.mark.parametrize("dialect", ["dcp", "001", "000", "002"])


@pytest.fixture
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=2) as producer:
        yield producer


class Mirror:
    """Documents as changes and rollbacks make them: what an application would keep."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.told: list[Rollback] = []

    def rolled_back(self, rollback: Rollback) -> None:
        self.told.append(rollback)
        self.changes[:] = [
            change
            for change in self.changes
            if change.vbucket != rollback.vbucket or change.seqno <= rollback.to_seqno
        ]

    def documents(self) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        for change in self.changes:
            found.pop(change.key, None)
            if change.op.value == "mutation":
                found[change.key] = change.value
        return found

    def read(self, consumer: Consumer, done: Any) -> None:
        changes = iter(consumer)
        while not done():
            self.changes.append(next(changes))


def truth(producer: TemporaryProducer) -> dict[bytes, bytes]:
    mirror = Mirror()
    mirror.changes = everything(producer.source)
    return mirror.documents()


# ---- rollbacks ---------------------------------------------------------------------------


@DRAFTS
def test_a_reader_that_comes_back_after_a_failover_is_told_before_anything_else(
    producer: TemporaryProducer, dialect: DialectName
) -> None:
    for number in range(3):
        producer.write(b"k%d" % number, b"old", 0)
    with Consumer(producer.source, end="now", dialect=dialect) as consumer:
        mirror = Mirror()
        mirror.changes = list(consumer)
        checkpoint = consumer.position()
    producer.write(b"k3", b"old", 0)
    with Consumer(producer.source, end="now", dialect=dialect, start=checkpoint) as consumer:
        mirror.changes += list(consumer)
        checkpoint = consumer.position()
    producer.fail_over(0, 3)
    producer.write(b"k4", b"new", 0)
    events = []
    with Consumer(
        producer.source,
        end="now",
        dialect=dialect,
        start=checkpoint,
        on_rollback=mirror.rolled_back,
    ) as consumer:
        for event in consumer.events():
            events.append(type(event))
            if isinstance(event, Rows):
                mirror.changes += changes_of(event.batch)
        assert consumer.status().counts["rollback: diverged"] == 1
        resumed = consumer.position()
    (told,) = mirror.told
    assert (told.vbucket, told.from_seqno, told.to_seqno) == (0, 4, 3)
    assert told.reason is RollbackReason.DIVERGED
    assert events.index(RolledBack) < events.index(Rows)
    assert mirror.documents() == truth(producer)
    assert resumed.position(0).log == producer.bucket.failover_log(0)


def read_to_the_end(producer: TemporaryProducer) -> Checkpoint:
    with Consumer(producer.source, end="now") as consumer:
        list(consumer)
        return consumer.position()


def test_who_does_not_want_to_go_back_stops_and_keeps_its_position(
    producer: TemporaryProducer,
) -> None:
    for number in range(4):
        producer.write(b"k%d" % number, b"v", 0)
    checkpoint = read_to_the_end(producer)
    producer.fail_over(0, 2)
    fail = policy(RollbackPolicy.FAIL, start=checkpoint)
    with Consumer(producer.source, settings=fail) as consumer:
        for _ in range(2):  # it stays an error
            with pytest.raises(RollbackRequired) as caught:
                next(iter(consumer))
        assert (caught.value.vbucket, caught.value.reason) == (0, "diverged")
        assert consumer.position().position(0) == checkpoint.position(0)


def policy(chosen: RollbackPolicy, **options: Any) -> ConsumerSettings:
    return ConsumerSettings(rollback=chosen, **options)


def test_who_does_not_care_is_not_told(producer: TemporaryProducer) -> None:
    for number in range(4):
        producer.write(b"k%d" % number, b"v", 0)
    checkpoint = read_to_the_end(producer)
    producer.fail_over(0, 2)
    producer.write(b"k9", b"new", 0)
    told: list[Rollback] = []
    ignore = policy(RollbackPolicy.IGNORE, start=checkpoint, end="now")
    with Consumer(producer.source, settings=ignore, on_rollback=told.append) as consumer:
        events = list(consumer.events())
        assert consumer.position().position(0).seqno == 3
    assert told == []
    assert not any(isinstance(event, RolledBack) for event in events)


@DRAFTS
def test_failovers_while_it_reads(producer: TemporaryProducer, dialect: DialectName) -> None:
    mirror = Mirror()
    with Consumer(
        producer.source, dialect=dialect, on_rollback=mirror.rolled_back, retry_first=0.01
    ) as consumer:
        for number in range(4):
            producer.write(b"a%d" % number, b"1", 0)
        mirror.read(consumer, lambda: len(mirror.changes) == 4)
        producer.fail_over(0, 2)
        producer.write(b"b", b"2", 0)
        producer.fail_over(0, 1)  # and another one at once
        last = producer.write(b"c", b"3", 0)
        mirror.read(
            consumer,
            lambda: bool(mirror.changes) and mirror.changes[-1].key == b"c",
        )
        assert mirror.changes[-1].seqno == last.seqno
        until(lambda: consumer.status().is_whole)
        assert mirror.documents() == truth(producer)
    assert mirror.told
    assert all(told.to_seqno <= 2 for told in mirror.told)


def test_a_purge_sends_a_reader_back_to_the_beginning(producer: TemporaryProducer) -> None:
    for key in (b"a", b"b", b"c"):
        producer.write(key, b"1", 0)
    checkpoint = read_to_the_end(producer)
    producer.delete(b"a", 0)
    producer.write(b"b", b"2", 0)
    producer.purge()
    mirror = Mirror()
    with Consumer(
        producer.source, end="now", start=checkpoint, on_rollback=mirror.rolled_back
    ) as consumer:
        mirror.changes += list(consumer)
    (told,) = mirror.told
    assert (told.from_seqno, told.to_seqno, told.reason) == (3, 0, RollbackReason.PURGED)
    assert mirror.documents() == {b"b": b"2", b"c": b"1"}


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 4)), min_size=1, max_size=4))
def test_documents_come_out_right_whatever_was_lost(
    producer: TemporaryProducer, rounds: list[tuple[int, int]]
) -> None:
    producer.bucket.flush()
    mirror = Mirror()
    start: Any = "beginning"
    for number, (writes, lost) in enumerate(rounds):
        for write in range(writes):
            producer.write(b"k%d" % (write % 3), b"%d-%d" % (number, write), 0)
        with Consumer(
            producer.source, end="now", start=start, on_rollback=mirror.rolled_back
        ) as consumer:
            mirror.changes += list(islice(consumer, max(0, writes - lost % 2)))
            start = consumer.position()
        producer.fail_over(0, max(0, high_seqnos(producer)[0] - lost))
    with Consumer(
        producer.source, end="now", start=start, on_rollback=mirror.rolled_back
    ) as consumer:
        mirror.changes += list(consumer)
    assert mirror.documents() == truth(producer)


# ---- servers that go and come ------------------------------------------------------------


def follow(consumer: Consumer, count: int) -> list[Change]:
    return list(islice(consumer, count))


@DRAFTS
def test_a_restart_loses_nothing_and_repeats_nothing(
    producer: TemporaryProducer, dialect: DialectName
) -> None:
    fill(producer, 20)
    with Consumer(producer.source, dialect=dialect, retry_first=0.01, retry_most=0.1) as consumer:
        read = follow(consumer, 13)
        producer.restart()
        fill(producer, 20, start=20)
        read += follow(consumer, 27)
        producer.restart()
        fill(producer, 10, start=40)
        read += follow(consumer, 10)
        assert consumer.status().counts["connections lost"] >= 1
    assert in_order(read) == {vb: list(range(1, 26)) for vb in range(2)}


def test_killed_connections_are_replaced(producer: TemporaryProducer) -> None:
    with Consumer(producer.source, retry_first=0.01, retry_most=0.1) as consumer:
        read: list[Change] = []
        for part in range(5):
            fill(producer, 10, start=10 * part)
            read += follow(consumer, 10)
            producer.kill_connections()
        until(lambda: consumer.status().counts.get("connections lost", 0) >= 1)
        fill(producer, 2, start=50)
        read += follow(consumer, 2)
    assert in_order(read) == {vb: list(range(1, 27)) for vb in range(2)}


def test_a_vbucket_that_becomes_active_later_is_read_then(producer: TemporaryProducer) -> None:
    producer.write(b"k", b"v", 1)
    producer.set_state(1, VBucketState.PENDING)
    with Consumer(producer.source, retry_first=0.01, retry_most=0.05) as consumer:
        until(lambda: consumer.status().vbuckets == {0: True, 1: False})
        assert not consumer.status().is_whole
        producer.set_state(1, VBucketState.ACTIVE)
        assert next(iter(consumer)).key == b"k"
        until(lambda: consumer.status().is_whole)


def test_a_stream_that_ends_because_of_its_state_is_opened_again(
    producer: TemporaryProducer,
) -> None:
    with Consumer(producer.source, retry_first=0.01, retry_most=0.05) as consumer:
        producer.write(b"a", b"v", 1)
        assert next(iter(consumer)).key == b"a"
        producer.set_state(1, VBucketState.DEAD)
        until(lambda: consumer.status().counts.get("stream ended: state changed", 0) > 0)
        producer.set_state(1, VBucketState.ACTIVE)
        producer.write(b"b", b"v", 1)
        assert next(iter(consumer)).key == b"b"
        assert "connections lost" not in consumer.status().counts


def test_a_reader_may_wait_for_a_server_that_comes_later() -> None:
    with ChaosProxy() as proxy:
        source = f"couchbase://{proxy.host}:{proxy.port}/default"
        with pytest.raises(ConnectionFailed):
            Consumer(source).start()
        waiting = in_thread(
            lambda: everything(source, wait_at_start=PATIENCE, retry_first=0.01, retry_most=0.05)
        )
        with TemporaryProducer(vbuckets=2, advertise=(proxy.host, proxy.port)) as late:
            fill(late, 2)
            proxy.target = (late.host, late.port)
            assert len(waiting.result(PATIENCE)) == 2


def test_where_nobody_listens_that_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as place:
        port = place.getsockname()[1]
    with pytest.raises(ConnectionFailed, match=r"cannot be reached.*is a server running"):
        Consumer(f"couchbase://127.0.0.1:{port}/default").start()


def test_who_has_no_patience_gives_up(producer: TemporaryProducer) -> None:
    fill(producer, 2)
    with Consumer(
        producer.source, retry_first=0.01, retry_most=0.02, give_up_after=0.2
    ) as consumer:
        assert len(follow(consumer, 2)) == 2
        producer.stop()
        with pytest.raises(ConnectionFailed, match="cannot be reached"):
            next(iter(consumer))
        with pytest.raises(ConnectionFailed):
            consumer.poll()


def test_who_waits_for_a_vbucket_gives_up_as_well(producer: TemporaryProducer) -> None:
    producer.set_state(1, VBucketState.DEAD)
    with (
        Consumer(producer.source, retry_first=0.01, retry_most=0.02, give_up_after=0.2) as consumer,
        pytest.raises(StatusError, match="vbucket 1 was refused with NOT_MY_VBUCKET"),
    ):
        next(iter(consumer))


# ---- slow applications, silent servers ---------------------------------------------------


def held(consumer: Consumer) -> int:
    """Counted bytes that were received and are not given back."""
    return sum(connection.held for connection in consumer._engine._nodes.connections.values())


def test_a_slow_application_holds_the_server_back_and_keeps_its_connection(
    producer: TemporaryProducer,
) -> None:
    fill(producer, 400, size=1000)
    buffer, largest = 20_000, 1200
    with Consumer(producer.source, end="now", buffer=buffer, noop_interval=2) as consumer:
        read = follow(consumer, 1)
        time.sleep(5)  # the application does nothing for longer than a silent peer is kept
        assert 0 < held(consumer) <= buffer + largest
        for change in consumer:
            read.append(change)
            assert held(consumer) <= buffer + largest
        counts = consumer.status().counts
    assert sorted(places(read)) == sorted(places(everything(producer.source)))
    assert "connections lost" not in counts


def test_a_server_that_falls_silent_is_left() -> None:
    start = marker(0, 9, opaque=0, vbucket=0)
    first = streaming(start, mutation(1, opaque=0, vbucket=0))
    rest = streaming(start, mutation(5, opaque=0, vbucket=0))

    def script(talk: Conversation, request: Any) -> bool:
        """Nothing follows what a request is answered with."""
        if isinstance(request, m.StreamRequest) and request.start:
            assert (request.start, request.snapshot_end) == (1, 9)
            return rest(talk, request)
        return first(talk, request)

    with Scripted(script, vbuckets=1) as server:
        with Consumer(server.source, noop_interval=0.1, retry_first=0.01) as consumer:
            changes = iter(consumer)
            assert [next(changes).seqno, next(changes).seqno] == [1, 5]
            assert consumer.status().counts["connections lost"] >= 1
        assert server.connections >= 2


def test_a_connection_that_is_lost_before_it_carries_anything_is_replaced() -> None:
    first = [True]

    def script(talk: Conversation, request: Any) -> bool:
        if isinstance(request, kv.GetClusterConfig) and first:
            first.clear()
            talk.answer(request, value=server.map)
            talk.hang_up()
            return True
        return streaming(marker(0, 9, opaque=0, vbucket=0), mutation(1, opaque=0, vbucket=0))(
            talk, request
        )

    server: Scripted
    with (
        Scripted(script, vbuckets=1) as server,
        Consumer(server.source, retry_first=0.01) as consumer,
    ):
        assert next(iter(consumer)).seqno == 1
