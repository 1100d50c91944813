"""Streams that the driver keeps open: small batches come with their changes, and are the same."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from sparkkit import behind_a_proxy, documents, fill, update

from upriver.batches import consumer_cache, read_ahead
from upriver.batches.admission import Limits
from upriver.batches.offset_ranges import steps_between
from upriver.batches.offsets import Offset, SourceIdentity, VBucketProgress
from upriver.batches.options import ReadOptions
from upriver.batches.read_ahead import ArrivedChanges, ArrivedSeqnos
from upriver.batches.stream_driver import Driver
from upriver.batches.task_reader import read_steps
from upriver.model import FailoverLog, Snapshot
from upriver.session.consumer_events import Step
from upriver.testing import TemporaryProducer

VBUCKETS = 8
LOG = FailoverLog.of((0xA, 0))


class Query:
    """A driver that reads ahead and its tasks, batch after batch, without Spark."""

    def __init__(self, source: str, **options: str) -> None:
        given = {"path": source, "retryTimeout": "20s", "longPoll": "5s", **options}
        self.options = ReadOptions.parse(given)
        self.driver = Driver(self.options, patience=1.0, reads_ahead=True)
        self.at: Offset = self.driver.first_offset()
        self.rows: list[dict[str, Any]] = []
        self.ahead = 0

    def __enter__(self) -> Query:
        return self

    def __exit__(self, *_: object) -> None:
        self.driver.close()
        consumer_cache.close_cached()

    def batch(self, patience: float = 60.0, limits: Limits | None = None) -> list[dict[str, Any]]:
        before = self.at
        self.at = self.driver.next_offset(before, limits or Limits(), patience=patience)
        arrived = self.driver.arrived(self.at) if self.at is not before else None
        self.ahead += arrived is not None
        rows = self.read(before, arrived)
        self.rows += rows
        if arrived is not None:  # as the batch is read if it is replayed
            assert sorted(map(repr, self.read(before, None))) == sorted(map(repr, rows))
        return rows

    def read(self, before: Offset, arrived: ArrivedChanges | None) -> list[dict[str, Any]]:
        sent: ArrivedChanges | None = pickle.loads(pickle.dumps(arrived))
        batches = read_steps(self.options, steps_between(before, self.at), arrived=sent)
        return [row for batch in batches for row in batch.to_pylist()]

    def until_read(self, producer: TemporaryProducer) -> None:
        """Reads up to the end of the bucket."""
        for vbucket in range(VBUCKETS):
            while self.at.at(vbucket).seqno < producer.bucket.vbucket_stats(vbucket).high_seqno:
                self.batch()

    def until_ahead(self, producer: TemporaryProducer) -> None:
        """Writes and reads until streams are open that bring what is written."""
        before = self.ahead
        for turn in range(1000):
            fill(producer, range(90_000 + 10 * turn, 90_003 + 10 * turn))
            self.until_read(producer)
            if self.ahead > before:
                return
            self.batch(patience=0.1)
        raise AssertionError("nothing is read ahead")

    def table(self) -> dict[bytes, bytes]:
        """The documents that the rows amount to, without rollbacks."""
        newest: dict[bytes, tuple[int, bytes | None]] = {}
        for row in self.rows:
            assert row["op"] != "rollback"
            if row["seqno"] > newest.get(row["key"], (0, None))[0]:
                newest[row["key"]] = row["seqno"], row["value"]
        return {key: value for key, (_, value) in newest.items() if value is not None}

    def assert_whole(self, producer: TemporaryProducer) -> None:
        wanted = {place[-1]: value for place, value in documents(producer.bucket).items()}
        assert self.table() == wanted
        seqnos = [(row["vbucket"], row["seqno"]) for row in self.rows]
        assert len(seqnos) == len(set(seqnos))


@pytest.fixture
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        yield producer


def test_small_batches_come_with_their_changes(producer: TemporaryProducer) -> None:
    fill(producer, range(50))
    with Query(producer.source) as query:
        query.until_ahead(producer)
        before = query.ahead
        for turn in range(20):
            fill(producer, range(1000 + 10 * turn, 1007 + 10 * turn))
            update(producer, turn % VBUCKETS, 2)
            query.until_read(producer)
        assert query.ahead >= before + 20
        query.assert_whole(producer)


def test_a_bucket_that_is_empty_at_first_is_read_ahead_too(producer: TemporaryProducer) -> None:
    with Query(producer.source) as query:
        query.batch(patience=0.1)
        query.until_ahead(producer)
        query.assert_whole(producer)


def test_what_does_not_arrive_on_open_streams_is_asked_for(
    producer: TemporaryProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a busy machine: ``processAllAvailable`` counts on hearing of all that was written."""
    with Query(producer.source) as query:
        query.until_ahead(producer)
        monkeypatch.setattr(read_ahead.ReadAhead, "_receive", lambda ahead, timeout: None)
        fill(producer, range(30))
        for _ in range(30):
            if not query.batch(patience=0.0):
                break
        query.assert_whole(producer)


def test_a_limit_leaves_the_rest_for_the_next_batch(producer: TemporaryProducer) -> None:
    fill(producer, range(20))
    with Query(producer.source) as query:
        query.until_ahead(producer)
        before = query.ahead
        update(producer, 3, 2)
        fill(producer, range(2000, 2040))
        while len(query.rows) < query.at.source.vbuckets * 1000:
            if not query.batch(patience=0.5, limits=Limits(rows=4)):
                break
        assert query.ahead > before + 2
        query.assert_whole(producer)


def test_more_than_a_small_batch_is_left_to_tasks(producer: TemporaryProducer) -> None:
    fill(producer, range(20))
    with Query(producer.source, readAhead="50") as query:
        query.until_ahead(producer)
        fill(producer, range(3000, 3400))
        query.until_read(producer)
        assert not query.driver._ahead.is_open  # type: ignore[union-attr]
        query.assert_whole(producer)


def test_large_documents_are_left_to_tasks(producer: TemporaryProducer) -> None:
    fill(producer, range(20))
    with Query(producer.source) as query:
        query.until_ahead(producer)
        fill(producer, range(3000, 3006), b"x" * 500_000)
        query.until_read(producer)
        assert not query.driver._ahead.is_open  # type: ignore[union-attr]
        query.assert_whole(producer)


@pytest.mark.parametrize("how", ["restarted", "cut"])
def test_a_connection_that_is_lost_costs_only_time(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_ahead, "_FIRST_PAUSE", 0.0)
    with behind_a_proxy(vbuckets=VBUCKETS) as (producer, proxy):
        fill(producer, range(20))
        with Query(producer.source) as query:
            query.until_ahead(producer)
            for turn in range(3):
                fill(producer, range(4000 + 10 * turn, 4005 + 10 * turn))
                if how == "restarted":
                    producer.restart()
                    proxy.target = (producer.host, producer.port)
                else:
                    proxy.cut()
                fill(producer, range(5000 + 10 * turn, 5005 + 10 * turn))
                query.until_read(producer)
            query.until_ahead(producer)
            query.assert_whole(producer)


def test_a_failover_ends_it_and_is_planned_as_ever(
    producer: TemporaryProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_ahead, "_FIRST_PAUSE", 0.0)
    fill(producer, range(100))
    with Query(producer.source) as query:
        query.until_ahead(producer)
        high = producer.bucket.vbucket_stats(1).high_seqno
        producer.fail_over(1, high - 3)
        update(producer, 1, 2)
        while not any(row["op"] == "rollback" for row in query.rows):
            query.batch()
        (rollback,) = (row for row in query.rows if row["op"] == "rollback")
        assert rollback["vbucket"] == 1
        assert rollback["seqno"] <= high - 3
        query.rows.clear()
        query.until_ahead(producer)
        assert {row["branch"] for row in query.rows if row["vbucket"] == 1} <= {1}


def test_a_collection_that_begins_is_restated_by_tasks(
    producer: TemporaryProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_ahead, "_FIRST_PAUSE", 0.0)
    fill(producer, range(50))
    producer.create_collection("shop.orders")
    with Query(producer.source, onRollback="restate") as query:
        for _ in range(3):
            query.until_ahead(producer)
            query.rows.clear()
            producer.drop_collection("shop.orders")
            producer.create_collection("shop.orders")
            for vbucket in range(VBUCKETS):
                producer.write(b"order", b"{}", vbucket, "shop.orders")
            query.until_read(producer)
            restated = [row["vbucket"] for row in query.rows if row["op"] == "restated"]
            assert sorted(restated) == list(range(VBUCKETS))


@pytest.mark.parametrize("options", [{"readAhead": "0"}, {"minPartitions": "2"}])
def test_who_wants_tasks_to_read_has_them_read(
    producer: TemporaryProducer, options: dict[str, str]
) -> None:
    with Query(producer.source, **options) as query:
        for turn in range(5):
            fill(producer, range(10 * turn, 10 * turn + 3))
            query.until_read(producer)
            query.batch(patience=0.1)
        assert not query.ahead
        query.assert_whole(producer)


# ---- how far streams have come -----------------------------------------------------------


def offset(seqno: int, log: FailoverLog = LOG) -> Offset:
    return Offset(SourceIdentity("b", "u", 1), {0: VBucketProgress(seqno=seqno, log=log)})


def step(seqno: int, end: int) -> Step:
    return Step(0, 1, seqno, Snapshot(1, end))


def arrived_from(seqno: int, floor: int) -> ArrivedSeqnos:
    seqnos = ArrivedSeqnos({0: (seqno, LOG)})
    assert seqnos.opened(0, LOG)
    seqnos.sampled({0: floor})
    return seqnos


def highs(seqnos: ArrivedSeqnos, at: Offset) -> dict[int, int] | None:
    facts = seqnos.facts(at)
    return facts if facts is None else {vb: fact.high_seqno for vb, fact in facts.items()}


def test_a_plan_goes_up_to_the_last_whole_snapshot() -> None:
    seqnos = arrived_from(5, floor=5)
    seqnos.arrived(step(7, end=9))
    assert highs(seqnos, offset(5)) == {}
    seqnos.arrived(step(9, end=9))
    seqnos.arrived(step(11, end=12))
    assert highs(seqnos, offset(5)) == {0: 9}
    assert highs(seqnos, offset(9)) == {}


def test_what_tasks_may_have_seen_must_have_arrived() -> None:
    seqnos = arrived_from(5, floor=12)
    seqnos.arrived(step(9, end=9))
    assert highs(seqnos, offset(5)) == {}
    seqnos.sampled({0: 8})  # a sample of another branch lowers nothing
    assert highs(seqnos, offset(5)) == {}
    seqnos.arrived(step(12, end=12))
    assert highs(seqnos, offset(5)) == {0: 12}
    seqnos.is_stale = True
    assert highs(seqnos, offset(5)) is None


def test_what_was_there_at_the_last_sample_is_late_until_it_has_arrived() -> None:
    seqnos = arrived_from(5, floor=9)
    before = seqnos.is_late
    seqnos.arrived(step(9, end=9))
    assert (before, seqnos.is_late) == (True, False)


def test_nothing_is_planned_from_another_branch_or_an_earlier_place() -> None:
    seqnos = arrived_from(5, floor=5)
    seqnos.arrived(step(9, end=9))
    assert highs(seqnos, offset(5, LOG.branch(0xB, 5))) is None
    assert highs(seqnos, offset(4)) is None


def test_a_stream_is_used_once_and_on_the_branch_that_is_expected() -> None:
    seqnos = ArrivedSeqnos({0: (5, LOG), 1: (5, LOG)})
    assert not seqnos.opened(0, LOG.branch(0xB, 5))
    assert seqnos.opened(1, LOG)
    assert not seqnos.opened(1, LOG)
