"""The asyncio client: the same reading as the blocking one, on a loop of the application's."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from consumerkit import (
    PATIENCE,
    Scripted,
    everything,
    fill,
    high_seqnos,
    in_order,
    marker,
    mutation,
    places,
    streaming,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from upriver.consumer import (
    AsyncConsumer,
    Change,
    Checkpoint,
    ConsumerSettings,
    FileCheckpoint,
    Rollback,
    RollbackPolicy,
    Rows,
    StreamFinished,
    StreamOpened,
)
from upriver.errors import ConfigError, ConnectionFailed, RollbackRequired, StreamRuleBroken
from upriver.testing import TemporaryProducer

_T = TypeVar("_T")


@pytest.fixture(scope="module")
def shared() -> Iterator[TemporaryProducer]:
    """A server with some documents that no test changes."""
    with TemporaryProducer(vbuckets=4) as producer:
        fill(producer, 40)
        producer.delete(b"key-5", 1)
        yield producer


@pytest.fixture
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=2) as producer:
        yield producer


def run(coroutine: Coroutine[Any, Any, _T]) -> _T:
    return asyncio.run(asyncio.wait_for(coroutine, PATIENCE))


async def everything_async(source: str, **options: Any) -> list[Change]:
    options.setdefault("end", "now")
    async with AsyncConsumer(source, **options) as consumer:
        return [change async for change in consumer]


async def take(consumer: AsyncConsumer, count: int) -> list[Change]:
    found: list[Change] = []
    if count:
        async for change in consumer:
            found.append(change)
            if len(found) == count:
                break
    return found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dialect": "001"},
        {"dialect": "000"},
        {"dialect": "002"},
        {"values": False},
        {"xattrs": True},
        {"compression": True},
        {"vbuckets": frozenset({1})},
    ],
)
def test_both_clients_read_the_same(shared: TemporaryProducer, options: dict[str, Any]) -> None:
    found = run(everything_async(shared.source, **options))
    expected = everything(shared.source, **options)
    assert set(found) == set(expected)
    assert in_order(found) == in_order(expected)


def test_batches_and_events(shared: TemporaryProducer) -> None:
    async def read() -> None:
        async with AsyncConsumer(shared.source, end="now") as consumer:
            assert sum([batch.num_rows async for batch in consumer.batches()]) == 40
            assert consumer.finished
            assert await consumer.poll() is None
            assert consumer.status().rows == 40
            assert await consumer.high_seqnos() == high_seqnos(shared)
            assert consumer.collections.names(0) == ("_default", "_default")
        async with AsyncConsumer(shared.source, end="now") as consumer:
            kinds = {type(event) async for event in consumer.events()}
        assert kinds == {StreamOpened, Rows, StreamFinished}

    run(read())


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(0, 45), max_size=3))
def test_a_reader_that_stops_anywhere_goes_on_exactly_there(
    shared: TemporaryProducer, cuts: list[int]
) -> None:
    async def read() -> list[Change]:
        text = Checkpoint(bucket="default", vbuckets=4, positions={}).to_json()
        found: list[Change] = []
        for cut in [*cuts, 1000]:
            start = Checkpoint.from_json(text)
            async with AsyncConsumer(shared.source, end="now", start=start) as consumer:
                found += await take(consumer, cut)
                text = consumer.position().to_json()
        return found

    assert in_order(run(read())) == in_order(everything(shared.source))


def test_a_loop_that_is_left_can_be_entered_again(shared: TemporaryProducer) -> None:
    async def read() -> list[Change]:
        found: list[Change] = []
        async with AsyncConsumer(shared.source, end="now") as consumer:
            for _ in range(3):
                found += await take(consumer, 5)
            rest = [batch async for batch in consumer.batches()]
            assert len(found) + sum(batch.num_rows for batch in rest) == 40
        return found

    assert len(run(read())) == 15


def test_a_checkpoint_file_remembers(tmp_path: Path, producer: TemporaryProducer) -> None:
    async def read() -> list[bytes]:
        with FileCheckpoint(tmp_path / "here.json") as store:
            async with AsyncConsumer(producer.source, end="now", checkpoint=store) as consumer:
                keys = [change.key async for change in consumer]
                await consumer.save()
        return keys

    fill(producer, 4)
    assert len(run(read())) == 4
    fill(producer, 2, start=4)
    assert set(run(read())) == {b"key-4", b"key-5"}
    assert run(read()) == []


def test_failovers_and_restarts_while_it_reads(producer: TemporaryProducer) -> None:
    async def read() -> None:
        told: list[Rollback] = []
        async with AsyncConsumer(
            producer.source, on_rollback=told.append, retry_first=0.01, retry_most=0.05
        ) as consumer:
            for number in range(4):
                producer.write(b"a%d" % number, b"1", 0)
            assert len(await take(consumer, 4)) == 4
            producer.fail_over(0, 2)
            last = producer.write(b"b", b"2", 0)
            while (await take(consumer, 1))[0].key != b"b":
                pass
            assert told[0].vbucket == 0
            assert told[0].to_seqno <= 2
            assert consumer.position().position(0).seqno == last.seqno
            await asyncio.to_thread(producer.restart)
            last = producer.write(b"c", b"3", 0)
            assert places(await take(consumer, 1)) == [(0, last.seqno)]
            producer.kill_connections()
            last = producer.write(b"d", b"4", 0)
            assert places(await take(consumer, 1)) == [(0, last.seqno)]
            assert consumer.status().counts["connections lost"] >= 1

    run(read())


def test_who_does_not_want_to_go_back_fails(producer: TemporaryProducer) -> None:
    async def read() -> None:
        producer.write(b"a", b"1", 0)
        async with AsyncConsumer(producer.source, end="now") as consumer:
            await take(consumer, 10)
            checkpoint = consumer.position()
        producer.fail_over(0, 0)
        chosen = ConsumerSettings(start=checkpoint, rollback=RollbackPolicy.FAIL)
        async with AsyncConsumer(producer.source, settings=chosen) as consumer:
            for _ in range(2):
                with pytest.raises(RollbackRequired):
                    await take(consumer, 1)

    run(read())


def test_closing_ends_a_loop_in_another_task(producer: TemporaryProducer) -> None:
    async def read() -> None:
        fill(producer, 4)
        consumer = await AsyncConsumer(producer.source).start()
        seen = asyncio.Semaphore(0)

        async def loop() -> int:
            count = 0
            async for _ in consumer:
                count += 1
                seen.release()
            return count

        reading = asyncio.create_task(loop())
        for _ in range(4):
            await seen.acquire()
        await consumer.close()
        await consumer.close()
        assert await reading == 4
        assert await consumer.poll() is None
        assert not consumer.finished

    run(read())


def test_a_cancelled_task_leaves_nothing_open(producer: TemporaryProducer) -> None:
    async def read() -> None:
        reading = asyncio.create_task(everything_async(producer.source, end="never"))
        await asyncio.sleep(0)
        reading.cancel()  # while it connects
        with pytest.raises(asyncio.CancelledError):
            await reading
        fill(producer, 2)
        async with AsyncConsumer(producer.source) as consumer:
            await take(consumer, 2)
            waiting = asyncio.create_task(take(consumer, 1))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            fill(producer, 1, start=2)
            assert len(await take(consumer, 1)) == 1  # and it can still be read

    run(read())


def test_outside_of_its_block_there_is_nothing_to_read() -> None:
    async def use() -> None:
        consumer = AsyncConsumer("couchbase://127.0.0.1:1/default")
        with pytest.raises(RuntimeError, match="in an async with block"):
            await consumer.poll()
        with pytest.raises(RuntimeError, match="in an async with block"):
            consumer.position()
        await consumer.close()

    run(use())


def test_errors_come_where_the_blocking_client_has_them(producer: TemporaryProducer) -> None:
    async def use() -> None:
        with pytest.raises(ConfigError):
            await everything_async(producer.source, vbuckets=frozenset({9}))
        with pytest.raises(ConnectionFailed):
            await everything_async("couchbase://127.0.0.1:1/default")
        lie = streaming(marker(0, 9, opaque=0, vbucket=0), mutation(10, opaque=0, vbucket=0))
        with Scripted(lie, vbuckets=1) as server, pytest.raises(StreamRuleBroken):
            await everything_async(server.source, retry_first=0.001, retry_most=0.005)

    run(use())


def test_a_slow_application_is_waited_for(producer: TemporaryProducer) -> None:
    fill(producer, 200, size=1000)

    async def read() -> list[Change]:
        found: list[Change] = []
        async with AsyncConsumer(producer.source, end="now", buffer=20_000) as consumer:
            async for change in consumer:
                found.append(change)
                held = sum(c.held for c in consumer._engine._nodes.connections.values())
                assert held <= 20_000 + 1200
                if len(found) % 20 == 0:
                    await asyncio.sleep(0)
        return found

    assert in_order(run(read())) == {vb: list(range(1, 101)) for vb in range(2)}
