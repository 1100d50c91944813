"""What the listener makes of a query's progress: real queries, and lag by a clock of the test's."""

from __future__ import annotations

import json
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)
from sparkkit import Reading, ended, fill
from waiting import until

from upriver.errors import ConfigError
from upriver.spark.query_metrics import SourceListener
from upriver.testing import TemporaryProducer

VBUCKETS = 4


@pytest.fixture
def listener(spark: SparkSession) -> Iterator[SourceListener]:
    listener = SourceListener()
    spark.streams.addListener(listener)
    yield listener
    spark.streams.removeListener(listener)
    listener.close()


def value(listener: SourceListener, name: str, **labels: str) -> float | None:
    return listener.registry.get_sample_value(f"upriver_spark_{name}", labels)


def test_rows_batches_lag_and_rollbacks_of_a_query_are_told(
    spark: SparkSession, tmp_path: Path, listener: SourceListener
) -> None:
    def told(name: str, **labels: str) -> float | None:
        return value(listener, name, query="orders", **labels)

    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        fill(producer, range(400))
        reading = Reading(spark, producer.source, tmp_path, maxOffsetsPerTrigger=150)
        reading.name = "orders"
        with reading.running() as query:
            until(lambda: told("rows_total") == 400, unless=ended(query))
            # the first one only decides where to begin
            reports = [json.loads(p.sources[0].latestOffset) for p in query.recentProgress[1:4]]
            total = {"vbuckets": VBUCKETS, "seqnos": 400}
            assert reports == [total | {"behind": behind} for behind in (250, 100, 0)]
            assert told("batches_total") == told("batch_seconds_count") == 4
            assert told("lag_seqnos") == told("lag_seconds") == 0

            producer.fail_over(1, 90)
            until(lambda: told("rollbacks_total", cause="failover") == 1, unless=ended(query))
            port = listener.serve(0)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                served = answer.read().decode()
        assert 'upriver_spark_rollbacks_total{cause="failover",query="orders"} 1.0' in served
        assert "upriver_spark_lag_seqnos" in listener.metrics_text()
        with pytest.raises(ConfigError, match="served already"):
            listener.serve(0)


# ---- the same from progress that was made up ---------------------------------------------

ID = "11111111-2222-3333-4444-555555555555"


def progress(
    start: dict[int, str] | None,
    end: dict[int, str] | str,
    behind: int | None = None,
    **more: Any,
) -> QueryProgressEvent:
    """What Spark tells after a batch, between offsets with these lines."""
    return QueryProgressEvent(
        StreamingQueryProgress.fromJson(
            {
                "id": ID,
                "runId": ID,
                "name": None,
                "timestamp": "2026-01-01T00:00:00.000Z",
                "batchId": 1,
                "batchDuration": 1500,
                "durationMs": {"addBatch": 1400, "triggerExecution": 1500},
                "stateOperators": [],
                "sources": [
                    {
                        "description": "a source",
                        "startOffset": start and offset(start),
                        "endOffset": end if isinstance(end, str) else offset(end),
                        "latestOffset": behind is not None and json.dumps({"behind": behind}),
                        "numInputRows": 10,
                        "inputRowsPerSecond": 1.0,
                        "processedRowsPerSecond": 1.0,
                    }
                ],
                "sink": {"description": "a sink", "numOutputRows": 10},
                **more,
            }
        )
    )


def offset(lines: dict[int, str]) -> str:
    at = {str(vbucket): line for vbucket, line in lines.items()}
    source = {"format": 1, "bucket": "default", "bucket_uuid": "", "vbuckets": VBUCKETS}
    return json.dumps({**source, "at": at})


def test_lag_lasts_from_when_there_last_was_none() -> None:
    now = 100.0
    listener = SourceListener(clock=lambda: now)
    lines = {0: "10 a -5"}
    for behind, moment, seconds in (
        (7, 100, 0),
        (9, 103, 3),
        (0, 104, 0),
        (0, 110, 0),
        (2, 112, 2),
    ):
        now = moment
        listener.onQueryProgress(progress(lines, lines, behind))
        assert value(listener, "lag_seqnos", query=ID) == behind
        assert value(listener, "lag_seconds", query=ID) == seconds
    now = 120.0  # nobody has told anything since, and the changes still wait
    assert value(listener, "lag_seconds", query=ID) == 10

    event = QueryTerminatedEvent(uuid.UUID(ID), uuid.UUID(ID), None, None)
    listener.onQueryTerminated(event)
    assert value(listener, "lag_seqnos", query=ID) is None
    assert value(listener, "lag_seconds", query=ID) is None
    assert value(listener, "rows_total", query=ID) == 50


def test_rollbacks_are_told_by_their_cause() -> None:
    listener = SourceListener()
    before = {0: "10 a -5", 1: "10 a -5", 2: "10 a -5", 3: "10 b1 a -5 rollback"}
    after = {0: "8 b1 b@4,a -4 rollback", 1: "20 b1 a rollback", 2: "15 a -5", 3: before[3]}
    listener.onQueryProgress(progress(None, before))
    listener.onQueryProgress(progress(before, after))
    assert value(listener, "rollbacks_total", query=ID, cause="failover") == 1
    assert value(listener, "rollbacks_total", query=ID, cause="refused") == 1


def test_what_is_of_no_batch_or_of_another_source_does_not_count() -> None:
    registry = CollectorRegistry()
    listener = SourceListener(registry)
    lines = {0: "10 a -5"}
    listener.onQueryProgress(progress(lines, lines, durationMs={"triggerExecution": 20}))
    assert value(listener, "batches_total", query=ID) is None
    for text in ("{}", "null", "nonsense", "[]", '{"topic": {"0": 5}}'):
        listener.onQueryProgress(progress(lines, text))
    assert value(listener, "rows_total", query=ID) == 10
