"""Spark's driver and tasks with servers that know one document's commands and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from document_servers import (
    DOCUMENTS,
    Document000,
    Document001,
    Document002,
    Document004,
    OneDocument,
    Unknown,
)

from upriver.batches.admission import Limits
from upriver.batches.offset_ranges import steps_between
from upriver.batches.offsets import Offset
from upriver.batches.options import ReadOptions
from upriver.batches.stream_driver import Driver
from upriver.batches.task_reader import StepsRead, read_steps
from upriver.errors import ConfigError, UpriverError
from upriver.model import NO_END
from upriver.spark.source.batch_reader import DcpBatchReader
from upriver.wire import messages as m

DIALECT = {Document002: "002", Document000: "000", Document001: "001", Document004: "dcp"}
OLD = [Document002, Document000, Document001]
every = pytest.mark.parametrize("kind", DOCUMENTS, ids=lambda kind: kind.document)
old = pytest.mark.parametrize("kind", OLD, ids=lambda kind: kind.document)


def options_for(server: OneDocument, **given: str) -> ReadOptions:
    asked = {"path": server.source, "dialect": DIALECT[type(server)], "retryTimeout": "20s"}
    return ReadOptions.parse(asked | given)


class Query:
    """A streaming query without Spark: batch after batch, with its rows by key."""

    def __init__(self, options: ReadOptions) -> None:
        self.driver = Driver(options)
        self.at: Offset = self.driver.first_offset()
        self.read = StepsRead()

    def rows(self, limits: Limits | None = None, patience: float = 60.0) -> list[dict[str, Any]]:
        before = self.at
        self.at = self.driver.next_offset(before, limits or Limits(), patience=patience)
        self.read = StepsRead()
        steps = steps_between(before, self.at)
        found = read_steps(self.driver.reading(), steps, self.read)
        return [row for batch in found for row in batch.to_pylist()]

    def places(self, **options: Any) -> list[tuple[str, int, int]]:
        return sorted((row["op"], row["vbucket"], row["seqno"]) for row in self.rows(**options))


@contextmanager
def query(server: OneDocument, **given: str) -> Iterator[Query]:
    made = Query(options_for(server, **given))
    try:
        yield made
    finally:
        made.driver.close()


def mutations(vbucket: int, *seqnos: int) -> list[tuple[str, int, int]]:
    return [("mutation", vbucket, seqno) for seqno in seqnos]


# ---- a batch, and what follows it --------------------------------------------------------


@every
def test_a_query_has_every_change_once(kind: type[OneDocument]) -> None:
    with kind({0: 3, 2: 2}) as server, query(server) as stream:
        assert stream.places() == [*mutations(0, 1, 2, 3), *mutations(2, 1, 2)]
        server.write(0, b"0:k1", b"again")
        server.write(2, b"2:k2", None)
        assert stream.places() == [("deletion", 2, 3), *mutations(0, 4)]
        assert stream.rows(patience=0) == []


@old
@pytest.mark.parametrize("unknown", ["hangs up", "refuses"])
def test_the_draft_is_found_out(kind: type[OneDocument], unknown: Unknown) -> None:
    with kind({0: 2}, unknown=unknown) as server, query(server, dialect="auto") as stream:
        assert stream.places() == mutations(0, 1, 2)


@old
def test_a_server_that_keeps_silent_is_read_in_the_draft_that_is_named(
    kind: type[OneDocument],
) -> None:
    given = {"connectTimeout": "500ms", "requestTimeout": "500ms"}
    with kind({0: 2}, unknown="keeps silent") as server, query(server, **given) as stream:
        assert stream.places() == mutations(0, 1, 2)


@every
def test_only_the_vbuckets_that_were_named_are_read(kind: type[OneDocument]) -> None:
    with kind({0: 3, 1: 1, 5: 2}) as server, query(server, vbuckets="1,5") as stream:
        assert stream.places() == [*mutations(1, 1), *mutations(5, 1, 2)]
        assert {request.vbucket for request in server.asked_for(m.StreamRequest)} == {1, 5}


@every
def test_a_batch_read_has_what_has_arrived(kind: type[OneDocument]) -> None:
    with kind({0: 3, 1: 0, 2: 2}) as server:
        reader = DcpBatchReader(options_for(server).for_batch())
        found = [
            (row["vbucket"], row["seqno"])
            for partition in reader.partitions()
            for batch in reader.read(partition)
            for row in batch.to_pylist()
        ]
        assert sorted(found) == [(0, 1), (0, 2), (0, 3), (2, 1), (2, 2)]


@every
def test_limits_divide_what_has_arrived(kind: type[OneDocument]) -> None:
    with kind({0: 7}) as server, query(server) as stream:
        found = [stream.places(limits=Limits(rows=3)) for _ in range(3)]
        assert found == [mutations(0, 1, 2, 3), mutations(0, 4, 5, 6), mutations(0, 7)]


@every
def test_a_query_from_now_on_has_only_what_comes(kind: type[OneDocument]) -> None:
    with kind({0: 3, 1: 0}) as server, query(server, startingOffsets="latest") as stream:
        server.write(0, b"new")
        server.write(1, b"first")
        assert stream.places() == [*mutations(0, 4), *mutations(1, 1)]


# ---- where a stream begins, and what is claimed ------------------------------------------


@old
def test_tasks_begin_exactly_where_the_last_batch_ended(kind: type[OneDocument]) -> None:
    with kind({0: 5}) as server:
        server.fail_over(0, 5, 9)  # the branch begins at 5: the drafts' requests name that
        with query(server) as stream:
            stream.rows()
            server.write(0, b"new")
            server.asked.clear()
            assert stream.places() == mutations(0, 6)
            asked = server.asked_for(m.StreamRequest)
        assert {(r.start, r.vbuuid, r.high_seqno) for r in asked} == {(5, 9, 5)} | {
            (r.start, r.vbuuid, r.high_seqno) for r in asked if not r.start
        }
        assert (5, 9, 5) in {(r.start, r.vbuuid, r.high_seqno) for r in asked}


@old
def test_an_end_that_is_no_snapshots_claims_no_bound(kind: type[OneDocument]) -> None:
    with kind({0: 6}) as server, query(server) as stream:
        stream.rows(limits=Limits(rows=4))
        assert stream.read.snapshot_ends == {0: NO_END}
        stream.rows()
        progress = stream.at.at(0)
        assert [(b.seqno, b.bound) for b in progress.boundaries] == [(4, NO_END)]
        assert (progress.request.seqno, progress.request.snapshot.end) == (4, 4)


# ---- failovers ---------------------------------------------------------------------------


@every
def test_a_failover_reads_the_vbucket_again_from_its_beginning(kind: type[OneDocument]) -> None:
    with kind({0: 5, 1: 2}) as server, query(server) as stream:
        stream.rows()
        server.fail_over(0, 3, 9)
        server.write(0, b"new")
        found = stream.places()
        rows = [*mutations(0, 1, 2, 3, 4), ("rollback", 0, 0)]
        assert found == rows
        server.write(0, b"more")
        assert stream.places() == mutations(0, 5)


@every
def test_a_failover_while_a_query_was_not_there(kind: type[OneDocument]) -> None:
    with kind({0: 5}) as server:
        with query(server) as stream:
            stream.rows()
            stored = stream.at.to_dict()
        server.fail_over(0, 3, 9)
        with query(server) as stream:
            found = stream.driver.offset_of(stored)
            assert found is not None
            stream.at = found
            assert stream.places() == [*mutations(0, 1, 2, 3), ("rollback", 0, 0)]


@every
def test_a_batch_is_replayed_on_its_branch_only(kind: type[OneDocument]) -> None:
    with kind({0: 5}) as server, query(server) as stream:
        stream.rows()
        assert stream.driver.newest_branches([0]) == {0: 7}
        server.fail_over(0, 5, 9)
        assert stream.driver.newest_branches([0]) == {0: 9}
        assert steps_between(None, stream.at, {0: 9}) == ()


# ---- what cannot be ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["collections", "scope", "xattrs"])
@pytest.mark.parametrize("dialect", ["001", "000", "002"])
def test_what_a_draft_does_not_have_is_refused(name: str, dialect: str) -> None:
    value = {"collections": "a.b", "scope": "a", "xattrs": "true"}[name]
    with pytest.raises(ConfigError, match=f"dialect is {dialect}, a draft .* leave {name} out"):
        ReadOptions.parse({"path": "couchbase://a/b", "dialect": dialect, name: value})


def test_a_draft_is_one_of_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match="dialect: '003' is wrong; expected: auto, dcp, 001"):
        ReadOptions.parse({"path": "couchbase://a/b", "dialect": "003"})


def test_values_that_a_draft_always_sends_are_left_out_of_rows() -> None:
    with Document000({0: 1}) as server, query(server, noValue="true") as stream:
        (row,) = stream.rows()
        assert row["value"] is None


@pytest.mark.parametrize("kind", [Document000, Document001])
def test_a_flush_ends_a_query(kind: type[OneDocument]) -> None:
    with kind({0: 3}) as server, query(server) as stream:
        stream.rows()
        server.flush(0)
        with pytest.raises(UpriverError, match="has flushed vbucket 0"):
            stream.rows()
