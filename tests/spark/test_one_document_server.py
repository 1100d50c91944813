"""Spark with a server that knows one document's commands and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from document_servers import Document002
from pyspark.sql import SparkSession
from sparkkit import PATIENCE, Reading, documents
from tablekit import documents_of

from upriver.spark import mirror, verify
from upriver.spark.bucket_copy import copy
from upriver.spark.sink.row_edits import FENCE_PREFIX
from upriver.testing import TemporaryProducer

pytestmark = pytest.mark.story


def test_a_server_of_the_oldest_draft_is_read_copied_and_compared(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Document002({0: 3, 2: 2}) as server, TemporaryProducer(vbuckets=4) as target:
        given: dict[str, Any] = {"dialect": "002", "retryTimeout": "20s"}
        reading = Reading(spark, server.source, tmp_path / "query", **given)
        places = [(row.vbucket, row.seqno) for row in reading.read()]
        assert sorted(places) == [(0, 1), (0, 2), (0, 3), (2, 1), (2, 2)]
        server.write(0, b"0:k1", b"again")
        assert [(row.vbucket, row.seqno) for row in reading.read()] == [(0, 4)]
        del reading.batches[reading.forget_commit()]  # it is read again, and has the same rows
        assert [(row.vbucket, row.seqno) for row in reading.read()] == [(0, 4)]

        frame = spark.read.format("dcp").options(**given).load(server.source)
        assert {bytes(row.key): bytes(row.value) for row in frame.collect()} == server.documents()

        table = tmp_path / "table"
        pipeline = mirror(
            spark, source=server.source, table=table, once=True, dialect="002", retry_timeout="20s"
        )
        assert pipeline.wait(PATIENCE)
        assert documents_of(table) == server.documents()
        found = verify(spark, source=server.source, table=str(table), dialect="002")
        assert (found.verdict, found.equal) == ("equal", 5)

        query = copy(
            spark,
            server.source,
            target.source,
            checkpoint=tmp_path / "copy",
            once=True,
            source_options=given,
        )
        assert query.awaitTermination(PATIENCE)
        assert held(target) == server.documents()


def held(producer: TemporaryProducer) -> dict[bytes, bytes]:
    return {
        place[-1]: value
        for place, value in documents(producer.bucket).items()
        if not place[-1].startswith(FENCE_PREFIX)
    }
