"""A pipeline does what is small in its own process, and starts Spark only for more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
from sparkkit import fill, update
from tablekit import PATIENCE, documents_of, rows_of

from upriver.batches.offset_ranges import SMALL_BATCH
from upriver.errors import ConfigError
from upriver.spark import pipelines
from upriver.spark.pipelines import changelog, history, mirror
from upriver.tables.executors import Executors, ThisProcess
from upriver.testing import TemporaryProducer

VBUCKETS = 4


class SparkIsStarted(Exception):
    """Somebody wants a session."""


def start_spark() -> NoReturn:
    raise SparkIsStarted


class CountingExecutors(ThisProcess):
    """Executors that count their tasks."""

    def __init__(self) -> None:
        self.tasks: list[Any] = []

    def run(self, tasks: Sequence[Any]) -> list[Any]:
        self.tasks += tasks
        return super().run(tasks)


@pytest.fixture
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        yield producer


@pytest.fixture
def executors(monkeypatch: pytest.MonkeyPatch) -> CountingExecutors:
    found = CountingExecutors()

    def executors_of(spark: object) -> Executors:
        return found

    monkeypatch.setattr(pipelines, "executors_of", executors_of)
    return found


def test_few_changes_are_mirrored_without_spark(
    producer: TemporaryProducer, tmp_path: Path
) -> None:
    table = tmp_path / "documents"
    fill(producer, range(100))
    for turn in range(3):
        mirror(start_spark, source=producer.source, table=table, once=True).wait(PATIENCE)
        update(producer, turn, 5)
    assert len(documents_of(table)) == 100


def test_many_changes_start_spark(producer: TemporaryProducer, tmp_path: Path) -> None:
    fill(producer, range(SMALL_BATCH))
    with pytest.raises(SparkIsStarted):
        mirror(start_spark, source=producer.source, table=tmp_path / "documents", once=True)


def test_a_schema_by_hand_is_read_without_spark(
    producer: TemporaryProducer, tmp_path: Path
) -> None:
    table = tmp_path / "documents"
    fill(producer, range(3))
    options: Any = {"value_schema": "number int", "once": True}
    assert mirror(start_spark, source=producer.source, table=table, **options).wait(PATIENCE)
    assert len(rows_of(table)) == 3
    with pytest.raises(ConfigError, match=r"number has the type intt.* did you mean int\?"):
        mirror(start_spark, source="couchbase://nowhere/b", table=table, value_schema="number intt")


def test_a_pipeline_that_goes_on_starts_spark(producer: TemporaryProducer, tmp_path: Path) -> None:
    with pytest.raises(SparkIsStarted):
        mirror(start_spark, source=producer.source, table=tmp_path / "documents")


@pytest.mark.parametrize(
    ("count", "options", "here"),
    [(100, {}, True), (SMALL_BATCH, {}, False), (100, {"min_partitions": 2}, False)],
)
def test_only_small_batches_are_done_here(
    producer: TemporaryProducer,
    tmp_path: Path,
    executors: CountingExecutors,
    count: int,
    options: dict[str, Any],
    here: bool,
) -> None:
    table = tmp_path / "documents"
    fill(producer, range(count))
    mirror(start_spark_not, source=producer.source, table=table, once=True, **options).wait(
        PATIENCE
    )
    assert len(documents_of(table)) == count
    assert (not executors.tasks) == here


def test_what_a_failover_undid_is_restored_by_executors(
    producer: TemporaryProducer, tmp_path: Path, executors: CountingExecutors
) -> None:
    table = tmp_path / "documents"
    fill(producer, range(100))
    mirror(start_spark_not, source=producer.source, table=table, once=True).wait(PATIENCE)
    fill(producer, range(100, 120))
    mirror(start_spark_not, source=producer.source, table=table, once=True).wait(PATIENCE)
    assert not executors.tasks
    producer.fail_over(1, producer.bucket.vbucket_stats(1).high_seqno - 5)
    mirror(start_spark_not, source=producer.source, table=table, once=True).wait(PATIENCE)
    assert executors.tasks
    assert len(documents_of(table)) == 115


def test_a_run_that_ends_does_not_wait_for_its_next_trigger(
    producer: TemporaryProducer, tmp_path: Path, executors: CountingExecutors
) -> None:
    fill(producer, range(20))
    pipeline = mirror(
        start_spark_not,
        source=producer.source,
        table=tmp_path / "documents",
        once=True,
        trigger="1h",
    )
    assert pipeline.wait(PATIENCE)


@pytest.mark.parametrize("kind", [mirror, history, changelog])
def test_a_failover_that_lost_nothing_has_nothing_read_again(
    producer: TemporaryProducer, tmp_path: Path, executors: CountingExecutors, kind: Any
) -> None:
    table = tmp_path / "documents"
    fill(producer, range(100))
    kind(start_spark_not, source=producer.source, table=table, once=True).wait(PATIENCE)
    for vbucket in range(VBUCKETS):
        producer.fail_over(vbucket, producer.bucket.vbucket_stats(vbucket).high_seqno)
    fill(producer, range(100, 103))
    pipeline = kind(start_spark_not, source=producer.source, table=table, once=True)
    assert pipeline.wait(PATIENCE)
    assert (pipeline.status().rows, pipeline.status().rollbacks) == (3, 0)
    assert len(rows_of(table)) == 103


def start_spark_not() -> Any:
    """The executors of these tests need no session."""
    return None
