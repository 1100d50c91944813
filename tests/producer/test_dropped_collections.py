"""Documents of dropped collections are not sent, though maintenance has not erased them yet."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

from upriver.consumer import AsyncConsumer, Consumer
from upriver.store import BucketSettings
from upriver.testing import TemporaryProducer
from upriver.wire import canonical

#: Together more than a stream reads in one step.
VALUE = bytes(4096)
MANY = 150


@pytest.fixture
def producer() -> Iterator[TemporaryProducer]:
    """A bucket that erases nothing."""
    settings = BucketSettings(vbuckets=1, maintenance_interval=0)
    with TemporaryProducer(bucket_settings=settings) as producer:
        yield producer


def stored(producer: TemporaryProducer) -> Counter[int]:
    """How many documents of each collection the store has."""
    with producer.bucket.open_reader(0) as reader:
        frames = [frame for chunk in iter(lambda: reader.read(1), None) for frame in [chunk.frames]]
    documents = (canonical.parse(frame) for frame in frames if not canonical.is_event(frame))
    return Counter(document.collection for document in documents)


def filled(producer: TemporaryProducer) -> int:
    """Two collections, one of which has most documents."""
    things = producer.bucket.create_collection(0, "things").id
    producer.write(b"first", b"v")
    for number in range(MANY):
        producer.write(b"k%d" % number, VALUE, 0, things)
    producer.write(b"last", b"v")
    return things


def read(producer: TemporaryProducer) -> Counter[int]:
    with Consumer(producer.source, end="now") as consumer:
        found = Counter(change.collection for change in consumer)
        high = producer.bucket.vbucket_stats(0).high_seqno
        assert consumer.position().position(0).seqno == high
    return found


def test_a_backfill_has_no_documents_of_dropped_collections(producer: TemporaryProducer) -> None:
    things = filled(producer)
    assert read(producer) == {0: 2, things: MANY}
    producer.bucket.drop_collection(things)
    again = producer.bucket.create_collection(0, "things").id
    producer.write(b"k0", b"v", 0, again)
    assert stored(producer) == {0: 2, things: MANY, again: 1}
    assert read(producer) == {0: 2, again: 1}

    async def keys() -> list[bytes]:
        async with AsyncConsumer(producer.source, end="now") as consumer:
            return [change.key async for change in consumer]

    assert asyncio.run(keys()) == [b"first", b"last", b"k0"]
    producer.bucket.compact()
    assert stored(producer) == read(producer) == {0: 2, again: 1}


def test_whoever_reads_on_learns_of_the_drop_alone(producer: TemporaryProducer) -> None:
    things = filled(producer)
    with Consumer(producer.source, end="now") as consumer:
        assert len(list(consumer)) == MANY + 2
        checkpoint = consumer.position()
    producer.write(b"late", VALUE, 0, things)
    producer.bucket.drop_collection(things)
    with Consumer(producer.source, start=checkpoint, end="now") as consumer:
        assert not list(consumer)
        high = producer.bucket.vbucket_stats(0).high_seqno
        assert consumer.position().position(0).seqno == high
