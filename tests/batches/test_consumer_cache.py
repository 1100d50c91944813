"""What a worker keeps between its tasks: connections, and no belief that could make rows wrong."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from serverkit import SECRET, users_file
from sparkkit import behind_a_proxy, fill

from upriver.batches import consumer_cache
from upriver.batches.admission import Limits
from upriver.batches.offset_ranges import ReadStep, steps_between
from upriver.batches.offsets import Offset
from upriver.batches.options import ReadOptions
from upriver.batches.stream_driver import Driver
from upriver.batches.task_reader import read_steps
from upriver.consumer import ConsumerSettings
from upriver.errors import AuthenticationFailed, BucketNotFound, ConnectionFailed, UpriverError
from upriver.producer.bootstrap.users import Grant, Role, Users
from upriver.producer.server_settings import ServerSettings
from upriver.store import SetDocument, document_key
from upriver.testing import ChaosProxy, TemporaryProducer

VBUCKETS = 4


@pytest.fixture(autouse=True)
def _nothing_is_kept() -> Iterator[None]:
    yield
    discard()


def discard() -> None:
    """Closes what is kept, as a task with another key would."""
    found = consumer_cache._take(key_for(ReadOptions.parse({"path": "couchbase://127.0.0.1/none"})))
    assert found is None


def key_for(options: ReadOptions) -> consumer_cache.CacheKey:
    return consumer_cache.CacheKey(options.source, options.access, ConsumerSettings())


class Worker:
    """A driver and a worker of Spark in one process, batch after batch."""

    def __init__(self, source: str, **options: str) -> None:
        given = {"path": source, "retryTimeout": "20s", **options}
        self.options = ReadOptions.parse(given)
        self._driver = Driver(self.options)
        self.at: Offset = self._driver.first_offset()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.plan_no_more()
        discard()

    def plan_no_more(self) -> None:
        self._driver.close()

    def planned(self) -> tuple[ReadStep, ...]:
        """The steps of the next batch, which then counts as read."""
        before, self.at = self.at, self._driver.next_offset(self.at, Limits(), patience=60)
        return steps_between(before, self.at)

    def read(self, steps: tuple[ReadStep, ...] | None = None) -> list[dict[str, Any]]:
        chosen = self.planned() if steps is None else steps
        return [row for b in read_steps(self.options, chosen) for row in b.to_pylist()]

    def keys(self) -> set[bytes]:
        return {row["key"] for row in self.read()}


def names(numbers: range) -> set[bytes]:
    return {b"key-%d" % number for number in numbers}


@pytest.fixture
def network() -> Iterator[tuple[TemporaryProducer, ChaosProxy]]:
    with behind_a_proxy(vbuckets=VBUCKETS) as found:
        yield found


def test_the_next_batch_is_read_over_the_same_connection(
    network: tuple[TemporaryProducer, ChaosProxy],
) -> None:
    producer, proxy = network
    with Worker(producer.source) as worker:
        fill(producer, range(20))
        assert worker.keys() == names(range(20))
        before = proxy.counts.connections
        for turn in range(1, 6):
            fill(producer, range(turn * 100, turn * 100 + 20))
            assert worker.keys() == names(range(turn * 100, turn * 100 + 20))
        assert proxy.counts.connections == before


def test_far_more_than_the_window_is_read_over_one_connection() -> None:
    with (
        TemporaryProducer(vbuckets=VBUCKETS) as producer,
        Worker(producer.source, flowControlBuffer="4k") as worker,
    ):
        for turn in range(6):  # each of them more than the window
            fill(producer, range(turn * 100, turn * 100 + 40), b"x" * 500)
            assert worker.keys() == names(range(turn * 100, turn * 100 + 40))


@pytest.mark.parametrize("how", ["restarted", "cut"])
def test_a_connection_that_was_lost_between_batches_is_made_again(
    network: tuple[TemporaryProducer, ChaosProxy], how: str
) -> None:
    producer, proxy = network
    with Worker(producer.source) as worker:
        fill(producer, range(20))
        worker.read()
        if how == "restarted":
            producer.restart()
            proxy.target = (producer.host, producer.port)
        else:
            proxy.cut()
        fill(producer, range(100, 120))
        assert worker.keys() == names(range(100, 120))


def test_who_has_another_password_gets_another_connection(tmp_path: Path) -> None:
    users = users_file(tmp_path, {"ann": (Role.READ_STREAM, Role.READ_DATA)})
    settings = ServerSettings(users=users, authentication_delay=0)
    with (
        TemporaryProducer(vbuckets=VBUCKETS, settings=settings) as producer,
        Worker(producer.source, user="ann", password=SECRET) as worker,
    ):
        fill(producer, range(20))
        assert len(worker.read()) == 20
        fill(producer, range(20, 40))
        steps = worker.planned()
        mine = worker.options
        worker.options = ReadOptions.parse(
            {"path": producer.source, "user": "ann", "password": "guessed"}
        )
        with pytest.raises(AuthenticationFailed):
            worker.read(steps)
        worker.options = mine
        assert len(worker.read(steps)) == 20


def test_a_password_that_was_changed_at_the_server_is_noticed_with_the_next_connection(
    tmp_path: Path,
) -> None:
    users = users_file(tmp_path, {"ann": (Role.READ_STREAM, Role.READ_DATA)})
    settings = ServerSettings(users=users, authentication_delay=0)
    with (
        TemporaryProducer(vbuckets=VBUCKETS, settings=settings) as producer,
        Worker(producer.source, user="ann", password=SECRET) as worker,
    ):
        fill(producer, range(20))
        assert len(worker.read()) == 20
        fill(producer, range(20, 40))
        steps = worker.planned()
        changed = Users()
        changed.add("ann", "another", Grant(Role.READ_STREAM, "default"), iterations=4096)
        changed.save(users)
        producer.restart()
        with pytest.raises(AuthenticationFailed):
            worker.read(steps)


@pytest.mark.parametrize("bucket", ["default", "elsewhere"])
def test_a_bucket_that_is_gone_is_no_bucket_without_rows(
    network: tuple[TemporaryProducer, ChaosProxy], bucket: str
) -> None:
    producer, proxy = network
    with (
        Worker(producer.source, retryTimeout="1s") as worker,
        TemporaryProducer(
            vbuckets=VBUCKETS, bucket=bucket, advertise=(proxy.host, proxy.port)
        ) as another,
    ):
        fill(producer, range(20))
        worker.read()
        fill(producer, range(20, 40))
        steps = worker.planned()
        fill(another, range(40))
        proxy.target = (another.host, another.port)
        proxy.cut()
        if bucket == "default":  # one of the same name, with a history of its own
            with pytest.raises(UpriverError, match="DCP-UNKNOWN-BRANCH"):
                worker.read(steps)
        else:
            with pytest.raises(BucketNotFound):
                worker.read(steps)


def test_a_branch_that_was_left_between_plan_and_task_gives_no_rows() -> None:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer, Worker(producer.source) as worker:
        fill(producer, range(20))
        assert len(worker.read()) == 20
        fill(producer, range(100, 120))
        steps = worker.planned()
        producer.fail_over(1, 7)  # it had 5, and has 10
        rows = worker.read(steps)
        assert {row["vbucket"] for row in rows} == {0, 2, 3}
        again = worker.read()
        assert next(row["op"] for row in again if row["vbucket"] == 1) == "rollback"
        fill(producer, range(200, 220))
        assert worker.keys() == names(range(200, 220))


def test_what_was_purged_between_plan_and_task_is_found_by_the_next_plan() -> None:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer, Worker(producer.source) as worker:
        fill(producer, range(40))
        assert len(worker.read()) == 40
        producer.delete(b"key-0", vbucket=0)
        fill(producer, range(400, 404))
        steps = worker.planned()
        producer.delete(b"key-4", vbucket=0)
        fill(producer, range(404, 408))
        producer.purge()
        assert producer.bucket.vbucket_stats(0).purge_seqno > 10
        assert {row["vbucket"] for row in worker.read(steps)} == {1, 2, 3}
        again = [row for row in worker.read() if row["vbucket"] == 0]
        assert (again[0]["op"], again[0]["seqno"], again[0]["branch"]) == ("rollback", 0, 1)
        assert b"key-0" not in {row["key"] for row in again}


def test_a_collection_that_came_between_two_batches_has_its_name() -> None:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer, Worker(producer.source) as worker:
        fill(producer, range(20))
        worker.read()
        made = producer.bucket.create_collection(0, "orders").id
        steps = worker.planned()
        # another worker reads what tells of the collection
        kept_here, consumer_cache._cached = consumer_cache._cached, None
        worker.read(steps)
        discard()
        consumer_cache._cached = kept_here
        change = SetDocument(1, document_key(b"new", made), b"{}")
        producer.bucket.write_many([change])
        (row,) = worker.read()
        assert (row["scope"], row["collection"]) == ("_default", "orders")


def test_a_reading_that_was_left_is_not_gone_on_with() -> None:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer, Worker(producer.source) as worker:
        fill(producer, range(20))
        steps = worker.planned()
        reading = read_steps(worker.options, steps)
        next(reading)
        cast("Generator[Any, None, None]", reading).close()
        assert consumer_cache._cached is None
        assert len(worker.read(steps)) == 20


def test_a_forked_process_has_nothing_and_takes_nothing_away() -> None:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer, Worker(producer.source) as worker:
        fill(producer, range(20))
        worker.read()
        mine = consumer_cache._cached
        assert mine is not None
        child = os.fork()
        if child == 0:
            os._exit(0 if consumer_cache._cached is None else 1)
        assert os.waitpid(child, 0)[1] == 0
        fill(producer, range(100, 120))
        assert worker.keys() == names(range(100, 120))
        assert consumer_cache._cached is not None
        assert consumer_cache._cached.consumer is mine.consumer


def test_what_nobody_comes_back_for_is_closed() -> None:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer, Worker(producer.source) as worker:
        fill(producer, range(20))
        worker.read()
        found = consumer_cache._cached
        assert found is not None
        found.end.function(*found.end.args)  # as its timer would
        assert consumer_cache._cached is None
        with pytest.raises(RuntimeError):
            found.consumer._start_again({}, {})
        fill(producer, range(100, 120))
        assert worker.keys() == names(range(100, 120))


def test_a_server_that_is_gone_is_given_up_in_time() -> None:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        worker = Worker(producer.source, retryTimeout="1s")
        fill(producer, range(20))
        worker.read()
        fill(producer, range(20, 40))
        steps = worker.planned()
        worker.plan_no_more()
    with pytest.raises(ConnectionFailed):
        worker.read(steps)
