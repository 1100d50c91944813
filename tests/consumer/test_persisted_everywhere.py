"""Readers that see only what every copy has on disk."""

from __future__ import annotations

import asyncio

from upriver.consumer import AsyncConsumer, Consumer, Rows
from upriver.store import SetDocument
from upriver.testing import TemporaryProducer


def source_of(producer: TemporaryProducer) -> str:
    return f"couchbase://{producer.host}:{producer.port}/default"


def fill(producer: TemporaryProducer, keys: range) -> None:
    producer.bucket.write_many([SetDocument(0, b"\0k%d" % n, b"v") for n in keys])


def seqnos_of(event: Rows) -> list[int]:
    return [int(one) for one in event.batch.column("seqno").to_numpy()]


def read_seqnos(consumer: Consumer, count: int) -> list[int]:
    seqnos: list[int] = []
    while len(seqnos) < count:
        event = consumer.poll()
        if isinstance(event, Rows):
            seqnos += seqnos_of(event)
    return seqnos


def test_what_is_persisted_is_handed_out_to_the_end() -> None:
    with TemporaryProducer(vbuckets=4) as producer:
        for vbucket in range(4):
            changes = [SetDocument(vbucket, b"\0k%d" % n, b"v") for n in range(100)]
            producer.bucket.write_many(changes)
        with Consumer(source_of(producer), end="now", persisted_everywhere=0.01) as consumer:
            assert sorted((c.vbucket, c.seqno) for c in consumer) == [
                (vbucket, seqno) for vbucket in range(4) for seqno in range(1, 101)
            ]
            assert consumer.position().position(3).is_consistent


def test_what_is_not_persisted_waits() -> None:
    async def read() -> list[int]:
        seen: list[int] = []
        with TemporaryProducer(vbuckets=1) as producer:
            fill(producer, range(10))
            producer.bucket.hold_persisted_seqnos(held=True)
            fill(producer, range(10, 20))
            async with AsyncConsumer(source_of(producer), persisted_everywhere=0.01) as consumer:
                while len(seen) < 10:
                    event = await consumer.poll()
                    if isinstance(event, Rows):
                        seen += seqnos_of(event)
                assert seen == list(range(1, 11))
                assert consumer.position().position(0).seqno == 10
                producer.bucket.hold_persisted_seqnos(held=False)
                while len(seen) < 20:
                    event = await consumer.poll()
                    if isinstance(event, Rows):
                        seen += seqnos_of(event)
        return seen

    assert asyncio.run(read()) == list(range(1, 21))


def test_what_is_lost_before_it_was_safe_is_never_heard_of() -> None:
    heard: list[object] = []
    with TemporaryProducer(vbuckets=1) as producer:
        fill(producer, range(10))
        with Consumer(
            source_of(producer), persisted_everywhere=0.01, on_rollback=heard.append
        ) as consumer:
            seqnos = read_seqnos(consumer, 10)
            producer.bucket.hold_persisted_seqnos(held=True)
            fill(producer, range(10, 20))
            while consumer.status().received != {0: 20}:
                assert consumer.poll(timeout=0.01) is None
            producer.fail_over(0, 10)  # the replica had just what was safe
            producer.bucket.hold_persisted_seqnos(held=False)
            producer.bucket.write(SetDocument(0, b"\0new", b"v"))
            seqnos += read_seqnos(consumer, 1)
            assert consumer.status().counts["rollback: diverged"] == 1
    assert seqnos == list(range(1, 12))
    assert heard == []
