"""The blocking client against a real server: what it reads, from where to where, what it saves."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from consumerkit import drain, everything, fill, high_seqnos, in_order, in_thread, places
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from waiting import until

from upriver.consumer import (
    Checkpoint,
    Consumer,
    ConsumerSettings,
    FileCheckpoint,
    MemoryCheckpoint,
    Position,
    Rows,
    StreamOpened,
    SystemHappened,
)
from upriver.errors import ConfigError
from upriver.model import Datatype, Op
from upriver.store import SetDocument, document_key
from upriver.testing import TemporaryProducer
from upriver.wire import messages as m
from upriver.wire import values
from upriver.wire.columns import SCHEMA
from upriver.wire.protocol_enums import DialectName

DRAFTS = pytest.mark.parametrize("dialect", ["dcp", "001", "000", "002"])
SECOND = 10**9


@pytest.fixture(scope="module")
def shared() -> Iterator[TemporaryProducer]:
    """A server with some documents that no test changes."""
    with TemporaryProducer(vbuckets=4) as producer:
        fill(producer, 40)
        producer.delete(b"key-5", 1)
        yield producer


@pytest.fixture
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=4) as producer:
        yield producer


# ---- what is read ------------------------------------------------------------------------


def test_a_change_has_everything_that_was_written() -> None:
    now = time.time_ns()
    with TemporaryProducer(vbuckets=4, wall=lambda: now) as producer:
        bucket = producer.bucket
        applied = bucket.write(
            SetDocument(2, document_key(b"a"), b'{"n":1}', 7, 60, int(Datatype.JSON))
        )
        bucket.write(SetDocument(2, document_key(b"b"), b"1"))
        producer.delete(b"b", 2)
        now += 3600 * SECOND
        bucket.expire()
        gone, expired = everything(producer.source)
        assert (gone.op, gone.key, gone.seqno, gone.rev) == (Op.DELETION, b"b", 3, 2)
        assert gone.expiry == (now - 3600 * SECOND) // SECOND  # when it was deleted
        assert (expired.op, expired.key, expired.rev) == (Op.EXPIRATION, b"a", 2)
        bucket.write(SetDocument(2, document_key(b"a"), b'{"n":2}', 7, 60, int(Datatype.JSON)))
        change = everything(producer.source)[-1]
    assert (change.op, change.vbucket, change.seqno, change.rev) == (Op.MUTATION, 2, 5, 3)
    assert (change.key, change.value, change.flags) == (b"a", b'{"n":2}', 7)
    assert change.expiry == now // SECOND + 60
    assert (change.datatype, change.collection) == (Datatype.JSON, 0)
    assert change.json() == {"n": 2}
    assert change.cas > applied.cas
    assert abs(change.time.timestamp() - now / SECOND) < 1


def test_extended_attributes_come_if_asked_for(producer: TemporaryProducer) -> None:
    value = values.join_xattrs({"_sync": b"1", "mine": b'{"x":2}'}, b'{"a":1}')
    kind = int(Datatype.XATTR | Datatype.JSON)
    producer.bucket.write(SetDocument(0, document_key(b"k"), value, datatype=kind))
    (plain,) = everything(producer.source)
    assert (plain.body, plain.xattrs, plain.json()) == (b'{"a":1}', {}, {"a": 1})
    (full,) = everything(producer.source, xattrs=True)
    assert full.xattrs == {"_sync": 1, "mine": {"x": 2}}
    assert full.json() == {"a": 1}


def test_values_travel_compressed_and_are_handed_out_as_one_likes(
    producer: TemporaryProducer,
) -> None:
    producer.write(b"long", b"x" * 5000, 0)
    producer.write(b"short", b"y", 0)
    unpacked = everything(producer.source, compression=True)
    assert [(c.value, c.datatype) for c in unpacked] == [(b"x" * 5000, 0), (b"y", 0)]
    packed = everything(producer.source, compression=True, decompress=False)
    assert packed[0].datatype == Datatype.SNAPPY
    assert len(packed[0].value) < 1000
    assert packed[0].body == b"x" * 5000
    assert (packed[1].value, packed[1].datatype) == (b"y", 0)
    with Consumer(producer.source, end="now", compression=True) as consumer:
        (batch,) = consumer.batches()
    assert batch.schema == SCHEMA
    assert batch.column("value").to_pylist() == [b"x" * 5000, b"y"]


def test_documents_can_come_without_their_bodies(producer: TemporaryProducer) -> None:
    producer.write(b"k", b"value", 0)
    (change,) = everything(producer.source, values=False)
    assert (change.key, change.value, change.seqno) == (b"k", b"", 1)


def test_collections_are_chosen_by_name_or_by_scope(producer: TemporaryProducer) -> None:
    bucket = producer.bucket
    shop = bucket.create_scope("shop").id
    orders = bucket.create_collection(shop, "orders").id
    people = bucket.create_collection(shop, "people").id
    for number, collection in enumerate((0, orders, people)):
        producer.write(b"in-%d" % number, b"v", 0, collection)
    source = producer.source
    assert {c.key for c in everything(source)} == {b"in-0", b"in-1", b"in-2"}
    (order,) = everything(source, collections=("shop.orders",))
    assert (order.key, order.collection) == (b"in-1", orders)
    assert {c.key for c in everything(source, scope="shop")} == {b"in-1", b"in-2"}
    both = everything(source, collections=("_default", "shop.people"))
    assert {c.key for c in both} == {b"in-0", b"in-2"}
    with Consumer(source, end="now") as consumer:
        named = {consumer.collections.names(c.collection) for c in consumer}
    assert named == {("_default", "_default"), ("shop", "orders"), ("shop", "people")}
    with pytest.raises(ConfigError, match=r"did you mean 'shop\.orders'"):
        everything(source, collections=("shop.order",))


def test_a_position_behind_what_is_filtered_out_is_saved(producer: TemporaryProducer) -> None:
    orders = producer.bucket.create_collection(0, "orders").id
    producer.write(b"a", b"v", 0, orders)
    producer.write(b"b", b"v", 0)
    with Consumer(producer.source, end="now", collections=("orders",)) as consumer:
        assert [c.key for c in consumer] == [b"a"]
        assert consumer.position().position(0).seqno == high_seqnos(producer)[0]


def test_what_happens_to_collections_comes_as_events(producer: TemporaryProducer) -> None:
    things = producer.bucket.create_collection(0, "things").id
    producer.write(b"k", b"v", 0, things)
    with Consumer(producer.source, vbuckets=frozenset({0})) as consumer:
        told: list[Any] = []
        while not any(isinstance(event, Rows) for event in told):
            told.append(consumer.poll())
        producer.bucket.drop_collection(things)
        while not isinstance(getattr(told[-1], "event", None), m.CollectionDropped):
            told.append(consumer.poll())
        happened = [event.event for event in told if isinstance(event, SystemHappened)]
        assert isinstance(happened[0], m.CollectionCreated)
        assert (happened[0].name, happened[0].collection) == ("things", things)
        assert consumer.collections.names(things) == ("_default", "things")
        assert consumer.position().position(0).manifest_uid >= happened[0].manifest_uid
    assert any(isinstance(event, StreamOpened) for event in told)


def test_batches_are_columns(shared: TemporaryProducer) -> None:
    with Consumer(shared.source, end="now") as consumer:
        table = pa.Table.from_batches(list(consumer.batches()))
        rows = consumer.status().rows
    assert table.schema == SCHEMA
    assert table.num_rows == rows == 40
    one_by_one = everything(shared.source)
    found = zip(table["vbucket"].to_pylist(), table["seqno"].to_pylist(), strict=True)
    assert sorted(found) == sorted(places(one_by_one))


@DRAFTS
def test_every_draft_reads_the_same(shared: TemporaryProducer, dialect: DialectName) -> None:
    changes = everything(shared.source, dialect=dialect)
    assert in_order(changes) == in_order(everything(shared.source))
    assert {c.key for c in changes if c.op is Op.DELETION} == {b"key-5"}
    with Consumer(shared.source, end="now", dialect=dialect) as consumer:
        first = [next(iter(consumer))]
        text = consumer.position().to_json()
    with Consumer(
        shared.source, end="now", dialect=dialect, start=Checkpoint.from_json(text)
    ) as consumer:
        rest = list(consumer)
        assert all(consumer.position().position(vb).is_consistent for vb in range(4))
    assert sorted(places(first + rest)) == sorted(places(changes))


# ---- from where to where -----------------------------------------------------------------


def test_some_vbuckets_only(shared: TemporaryProducer) -> None:
    assert set(in_order(everything(shared.source, vbuckets=frozenset({1, 3})))) == {1, 3}
    with pytest.raises(ConfigError, match="no vbucket 4: the bucket has the vbuckets 0 to 3"):
        everything(shared.source, vbuckets=frozenset({4}))


def test_from_now_on(producer: TemporaryProducer) -> None:
    fill(producer, 8)
    with Consumer(producer.source, start="now") as consumer:
        applied = producer.write(b"new", b"v", 2)
        change = next(iter(consumer))
        assert (change.key, change.seqno) == (b"new", applied.seqno)


def test_until_seqnos_of_ones_own(shared: TemporaryProducer) -> None:
    changes = everything(shared.source, end={0: 3, 2: 5})
    assert set(in_order(changes)) == {0, 2}  # whole snapshots, so perhaps more than was asked
    assert max(in_order(changes)[0]) >= 3
    with pytest.raises(ConfigError, match="no vbucket to read"):
        everything(shared.source, end={0: 3}, vbuckets=frozenset({1}))


def test_from_positions_of_ones_own(shared: TemporaryProducer) -> None:
    with Consumer(shared.source, end="now") as consumer:
        list(consumer)
        position = consumer.position().position(0)
    rest = everything(shared.source, start={0: position})
    assert set(in_order(rest)) == {1, 2, 3}


def test_an_empty_bucket_is_at_its_end_at_once(producer: TemporaryProducer) -> None:
    with Consumer(producer.source, end="now") as consumer:
        assert list(consumer) == []
        assert consumer.finished
        assert consumer.status().seqnos == dict.fromkeys(range(4), 0)
        assert consumer.poll() is None


def test_never_means_that_later_changes_come(producer: TemporaryProducer) -> None:
    with Consumer(producer.source) as consumer:
        assert consumer.poll(timeout=0) is None or not consumer.finished
        changes = iter(consumer)
        for number in range(5):
            producer.write(b"k", b"%d" % number, 1)
            assert next(changes).value == b"%d" % number
        until(lambda: consumer.status().is_whole)
        assert consumer.status().seqnos[1] == 5
        assert consumer.high_seqnos() == high_seqnos(producer)


def test_a_nonsensical_start_or_end_is_refused(shared: TemporaryProducer) -> None:
    with pytest.raises(ConfigError, match="start is 'yesterday'; give 'beginning'"):
        everything(shared.source, start="yesterday")
    with pytest.raises(ConfigError, match="end is 'tomorrow'; give 'never'"):
        everything(shared.source, end="tomorrow")
    with pytest.raises(TypeError, match="settings or single options"):
        Consumer(shared.source, settings=ConsumerSettings(), end="now")


# ---- where it is -------------------------------------------------------------------------


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(0, 45), max_size=3), st.sampled_from(["dcp", "dcp", "001", "000"]))
def test_a_reader_that_stops_anywhere_goes_on_exactly_there(
    shared: TemporaryProducer, cuts: list[int], dialect: DialectName
) -> None:
    text = Checkpoint(bucket="default", vbuckets=4, positions={}).to_json()
    read: list[Any] = []
    for cut in [*cuts, 1000]:
        start = Checkpoint.from_json(text)
        with Consumer(shared.source, end="now", start=start, dialect=dialect) as consumer:
            for _, change in zip(range(cut), consumer, strict=False):
                read.append(change)
            text = consumer.position().to_json()
    assert in_order(read) == in_order(everything(shared.source))
    assert len(read) == 40


def test_batches_count_as_read_once_they_are_handed_out(shared: TemporaryProducer) -> None:
    with Consumer(shared.source, end="now") as consumer:
        batches = consumer.batches()
        first = next(batches)
        checkpoint = consumer.position()
    with Consumer(shared.source, end="now", start=checkpoint) as consumer:
        rest = list(consumer.batches())
    assert sum(batch.num_rows for batch in [first, *rest]) == 40


def test_a_loop_that_is_left_can_be_entered_again(shared: TemporaryProducer) -> None:
    read = []
    with Consumer(shared.source, end="now") as consumer:
        while not consumer.finished:
            for change in consumer:
                read.append(change)
                if len(read) % 3 == 0:
                    break
    assert in_order(read) == in_order(everything(shared.source))


def test_what_a_loop_left_comes_as_a_batch_too(shared: TemporaryProducer) -> None:
    with Consumer(shared.source, end="now") as consumer:
        first = next(iter(consumer))
        seqnos = [first.seqno]
        rest = list(consumer.batches())
        assert len(seqnos) + sum(batch.num_rows for batch in rest) == 40
        assert consumer.position().position(first.vbucket).seqno == 10 + (first.vbucket == 1)


def test_a_checkpoint_file_remembers(tmp_path: Path, producer: TemporaryProducer) -> None:
    path = tmp_path / "here.json"
    fill(producer, 12)
    with (
        FileCheckpoint(path) as store,
        Consumer(producer.source, end="now", checkpoint=store) as consumer,
    ):
        assert len(list(consumer)) == 12
        consumer.save()
    assert json.loads(path.read_text())["bucket"] == "default"
    fill(producer, 3, start=12)
    with (
        FileCheckpoint(path) as store,
        Consumer(producer.source, end="now", checkpoint=store) as consumer,
    ):
        assert {c.key for c in consumer} == {b"key-12", b"key-13", b"key-14"}
        consumer.save()


def test_without_a_store_nothing_can_be_saved(shared: TemporaryProducer) -> None:
    with (
        Consumer(shared.source, end="now") as consumer,
        pytest.raises(ValueError, match="no checkpoint store"),
    ):
        consumer.save()


def test_a_checkpoint_of_another_bucket_is_refused(shared: TemporaryProducer) -> None:
    with Consumer(shared.source, end="now") as consumer:
        list(consumer)
        checkpoint = consumer.position()
    for other in (
        replace(checkpoint, bucket="other"),
        replace(checkpoint, bucket_uuid="other"),
        replace(checkpoint, vbuckets=8),
    ):
        with pytest.raises(ConfigError):
            everything(shared.source, checkpoint=MemoryCheckpoint(other))


def test_status_may_be_asked_from_elsewhere_while_changes_are_read(
    producer: TemporaryProducer,
) -> None:
    fill(producer, 4000)
    stop = threading.Event()

    with Consumer(producer.source, end="now") as consumer:

        def watch() -> int:
            asked = 0
            while not stop.is_set():
                consumer.status()
                asked += 1
            return asked

        watching = in_thread(watch)
        read = []
        for change in consumer:
            read.append(change)
            if len(read) % 50 == 0:
                known = consumer.position()
                for vbucket, seqnos in in_order(read).items():
                    assert known.position(vbucket).seqno == seqnos[-1]
        stop.set()
        assert watching.result() > 0
    assert len(read) == 4000


# ---- life --------------------------------------------------------------------------------


def test_outside_of_its_block_there_is_nothing_to_read() -> None:
    consumer = Consumer("couchbase://127.0.0.1:1/default")
    for use in (consumer.poll, consumer.position, consumer.status, consumer.high_seqnos):
        with pytest.raises(RuntimeError, match="in a with block"):
            use()
    with pytest.raises(RuntimeError, match="in a with block"):
        next(iter(consumer))
    consumer.close()  # which does nothing


def test_closing_twice_is_fine_and_ends_the_reading(producer: TemporaryProducer) -> None:
    fill(producer, 8)
    consumer = Consumer(producer.source).start()
    first = next(iter(consumer))
    consumer.close()
    consumer.close()
    assert consumer.poll() is None
    assert not consumer.finished
    assert consumer.position().position(first.vbucket).seqno == first.seqno
    with pytest.raises(RuntimeError, match="closed"):
        consumer.status()


def test_closing_wakes_up_who_waits_in_another_thread(producer: TemporaryProducer) -> None:
    fill(producer, 4)
    consumer = Consumer(producer.source).start()
    seen = threading.Semaphore(0)

    def read() -> int:
        count = 0
        for _ in consumer:
            count += 1
            seen.release()
        return count

    reading = in_thread(read)
    for _ in range(4):
        seen.acquire()
    consumer.close()
    assert reading.result(30) == 4


def test_closing_while_it_iterates(producer: TemporaryProducer) -> None:
    fill(producer, 400)
    with Consumer(producer.source) as consumer:
        read = []
        for change in consumer:
            read.append(change)
            consumer.close()
    # what was handed out as one batch may still come; the loop ends
    assert 1 <= len(read) <= 400


def test_an_error_in_the_loop_closes_everything(producer: TemporaryProducer) -> None:
    fill(producer, 4)
    before = threading.active_count()

    def fail() -> None:
        with Consumer(producer.source) as consumer:
            for _ in consumer:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert threading.active_count() == before
    until(lambda: not producer.producer.server.connections)


def test_a_poll_waits_no_longer_than_it_is_told(shared: TemporaryProducer) -> None:
    with Consumer(shared.source) as consumer:
        while consumer.status().rows < 40:
            consumer.poll()
        while consumer.poll(timeout=0.01) is not None:
            pass
        assert not consumer.finished


def test_what_is_filtered_out_does_not_prolong_a_poll(producer: TemporaryProducer) -> None:
    producer.bucket.create_collection(0, "orders")
    wanted, enough = threading.Event(), time.monotonic() + 60

    def write_others() -> None:
        while not wanted.wait(0.02) and time.monotonic() < enough:
            producer.write(b"other", b"v", 0)  # the server tells of its seqno alone

    with Consumer(producer.source, collections=("orders",)) as consumer:
        drain(consumer)
        writer = in_thread(write_others)
        until(lambda: consumer.status().received[0] > 3)
        assert consumer.poll(timeout=0.5) is None
        assert not writer.done()
        wanted.set()
        writer.result()


def test_a_poll_of_no_time_returns_what_has_come(producer: TemporaryProducer) -> None:
    orders = producer.bucket.create_collection(0, "orders").id
    with Consumer(producer.source, collections=("orders",)) as consumer:
        drain(consumer)
        producer.write(b"other", b"v", 0)
        producer.write(b"order", b"v", 0, orders)
        end = high_seqnos(producer)[0]
        until(lambda: consumer.status().received[0] == end)
        event = consumer.poll(timeout=0)
        assert isinstance(event, Rows)
        assert event.batch["key"].to_pylist() == [b"order"]
        assert consumer.poll(timeout=0) is None


def test_positions_are_those_of_whole_numbers(shared: TemporaryProducer) -> None:
    with Consumer(shared.source, end="now") as consumer:
        list(consumer)
        position = consumer.position().position(0)
    assert isinstance(position, Position)
    assert position.is_consistent
    assert position.log == shared.bucket.failover_log(0)


def test_positions_of_vbuckets_that_are_not_read_are_kept() -> None:
    with TemporaryProducer(vbuckets=4) as producer:
        fill(producer, 40)
        store = MemoryCheckpoint()
        with Consumer(producer.source, end="now", checkpoint=store) as consumer:
            list(consumer)
            consumer.save()
        whole = store.load()
        fill(producer, 40, start=40)
        with Consumer(
            producer.source, end="now", checkpoint=store, vbuckets=frozenset({1})
        ) as consumer:
            list(consumer)
            consumer.save()
        saved = store.load()
    assert whole is not None
    assert saved is not None
    assert saved.position(1).seqno > whole.position(1).seqno
    assert all(saved.position(vb) == whole.position(vb) for vb in (0, 2, 3))


def test_the_loss_of_a_node_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with (
        TemporaryProducer(vbuckets=4) as producer,
        caplog.at_level(logging.WARNING, "upriver.consumer"),
        Consumer(producer.source, retry_first=0.001, retry_most=0.01) as consumer,
    ):
        changes = iter(consumer)
        for number in range(2):
            producer.write(b"key:%d" % number, b"{}")
            assert next(changes).key == b"key:%d" % number
            producer.restart()  # many attempts fail meanwhile
        producer.write(b"last", b"{}")
        assert next(changes).key == b"last"
        assert len([one for one in caplog.records if "was lost" in one.message]) == 2
        assert [one.message for one in caplog.records if "was lost" not in one.message] == []
