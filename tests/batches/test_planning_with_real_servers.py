"""Spark's driver and tasks with servers of other ages: every change is read, or the read fails."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
from consumerkit import Conversation
from old_servers import April2014, RealServer, Release302, Release412, Release705, cluster_of

from upriver.batches import stream_driver
from upriver.batches.admission import Limits
from upriver.batches.offset_ranges import steps_between
from upriver.batches.offsets import Offset
from upriver.batches.options import ReadOptions
from upriver.batches.stream_driver import Driver
from upriver.batches.task_reader import read_steps
from upriver.errors import Status, UpriverError
from upriver.model import FailoverLog
from upriver.spark.source.batch_reader import DcpBatchReader
from upriver.spark.source.stream_reader import StepsPartition
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m

ALL = [April2014, Release302, Release412, Release705]


def options_for(server: RealServer, **given: str) -> ReadOptions:
    return ReadOptions.parse({"path": server.source, "retryTimeout": "2s", **given})


def batch(options: ReadOptions) -> list[int]:
    """The seqnos of a batch read, as Spark would have it read."""
    reader = DcpBatchReader(options)
    return [
        row["seqno"]
        for partition in reader.partitions()
        for rows in reader.read(partition)
        for row in rows.to_pylist()
    ]


class Stream:
    """A streaming query without Spark: batch after batch."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.driver = Driver(options)
        self.at: Offset = self.driver.first_offset()

    def next_rows(self) -> list[int]:
        before, self.at = self.at, self.driver.next_offset(self.at, Limits(), patience=60)
        steps = steps_between(before, self.at)
        options = StepsPartition(steps, self.driver.addresses).options(self.options)
        return [row["seqno"] for b in read_steps(options, steps) for row in b.to_pylist()]


@pytest.mark.parametrize("release", ALL)
def test_a_batch_read_has_every_change(release: type[RealServer]) -> None:
    with release({0: 3, 1: 0, 2: 2}) as server:
        assert sorted(batch(options_for(server))) == [1, 1, 2, 2, 3]


@pytest.mark.parametrize("release", ALL)
def test_a_stream_goes_on_from_batch_to_batch(release: type[RealServer]) -> None:
    with release({0: 3}) as server:
        query = Stream(options_for(server))
        assert query.next_rows() == [1, 2, 3]
        server.write(0, 2)
        assert query.next_rows() == [4, 5]
        query.driver.close()


def test_a_vbucket_without_a_history_fails_the_read() -> None:
    with Release412({0: 3, 1: 2}) as server:
        server.logs[1] = FailoverLog(())
        with pytest.raises(UpriverError, match="no failover log of vbucket 1"):
            batch(options_for(server))


def test_a_vbucket_whose_history_is_never_told_fails_the_read() -> None:
    class Busy(Release705):
        def answered(self, talk: Conversation, request: Any) -> bool:
            if isinstance(request, kv.GetFailoverLog) and request.vbucket == 1:
                talk.answer(request, Status.TEMPORARY_FAILURE)
                return True
            return super().answered(talk, request)

    with Busy({0: 3, 1: 2}) as server, pytest.raises(UpriverError, match="the first is vbucket 1"):
        batch(options_for(server))


# ---- rights on one collection ------------------------------------------------------------


def test_rights_on_one_collection_are_enough_for_a_batch() -> None:
    with Release705({0: 3, 1: 1}, only=8) as server:
        assert sorted(batch(options_for(server, collections="_default.c"))) == [1, 1, 2, 3]


def test_rights_on_one_collection_are_enough_for_a_stream() -> None:
    with Release705({0: 3}, only=8) as server:
        query = Stream(options_for(server, collections="_default.c"))
        assert query.next_rows() == [1, 2, 3]
        server.write(0)
        assert query.next_rows() == [4]
        server.write(0)
        assert query.next_rows() == [5]
        query.driver.close()
        assert server.asked_for(m.FailoverLogRequest)


def test_without_a_collection_the_refusal_is_told() -> None:
    with (
        Release705({0: 3}, only=8) as server,
        pytest.raises(UpriverError, match="the high seqnos was refused with NO_ACCESS"),
    ):
        batch(options_for(server))


# ---- the host that was named -------------------------------------------------------------


def test_a_query_goes_on_without_the_host_that_was_named() -> None:
    with ExitStack() as stack:
        first = Release412({0: 3})
        second = stack.enter_context(Release412({0: 3}))
        cluster_of([first, second], [0], rev=1)
        query = Stream(options_for(first, retryTimeout="60s"))
        assert query.next_rows() == [1, 2, 3]
        first.__exit__(None, None, None)
        cluster_of([first, second], [1], rev=2)
        second.write(0, 2)
        assert query.next_rows() == [4, 5]
        query.driver.close()


def test_vbuckets_that_cannot_be_read_are_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_driver, "_UNKNOWN_SECONDS", 0.0)
    with Release412({0: 3, 1: 2}) as server:
        server.states[1] = "dead"
        driver = Driver(options_for(server), patience=0)
        at = driver.first_offset()
        for _ in range(4):
            at = driver.next_offset(at, Limits())
        driver.close()
    assert at.at(0).seqno == 3
    told = [r.getMessage() for r in caplog.records if "cannot be read now" in r.getMessage()]
    assert len(told) == 1
    assert "the first is vbucket 1" in told[0]
