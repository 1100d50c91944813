"""The only node that a source names dies: whoever reads goes on through the nodes of the map."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from localcluster import LocalCluster
from waiting import until

from upriver.batches.consumer_cache import close_cached
from upriver.batches.options import ReadOptions, WriteOptions
from upriver.batches.stream_driver import Driver
from upriver.spark.collection_sync import CollectionSync
from upriver.spark.source.batch_reader import DcpBatchReader
from upriver.tables.executors import ThisProcess
from upriver.tables.pipeline import Pipeline
from upriver.tables.pipeline_settings import PipelineSettings
from upriver.tables.pipeline_start import place_of, start_pipeline
from upriver.testing import TemporaryProducer

VBUCKETS = 8
DOCUMENTS = 40
#: The node that sources name.
NAMED = "n1"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path / "c", nodes=3, replicas=1, vbuckets=VBUCKETS) as cluster:
        yield cluster


def named(cluster: LocalCluster) -> str:
    """A connection string with one node of the cluster."""
    return str(cluster.address(NAMED))


def write(cluster: LocalCluster, numbers: range) -> None:
    for number in numbers:
        cluster.write(b"k%d" % number, b"v")


def dies(cluster: LocalCluster) -> None:
    """The named node ends for good, and replicas take its place."""
    cluster.kill(NAMED)
    cluster.fail_over(NAMED)


@contextmanager
def running(kind: str, source: str, table: Path, **options: Any) -> Iterator[Pipeline]:
    settings = PipelineSettings.parse(kind, source, options)
    pipeline = start_pipeline(ThisProcess(), settings, place_of(table, settings))
    try:
        yield pipeline
    finally:
        pipeline.stop()


def keys(table: Path) -> set[bytes]:
    if not DeltaTable.is_deltatable(str(table)):
        return set()
    held = QueryBuilder().register("held", DeltaTable(table))
    return {row["key"] for row in pa.table(held.execute("SELECT key FROM held")).to_pylist()}


def has(pipeline: Pipeline, table: Path, count: int) -> bool:
    assert not pipeline.wait(0), "the pipeline has ended"
    return keys(table) >= {b"k%d" % number for number in range(count)}


@pytest.mark.story
@pytest.mark.parametrize("kind", ["mirror", "changelog", "history"])
def test_a_pipeline_goes_on(cluster: LocalCluster, tmp_path: Path, kind: str) -> None:
    write(cluster, range(DOCUMENTS))
    table = tmp_path / "table"
    with running(kind, named(cluster), table) as pipeline:
        until(lambda: has(pipeline, table, DOCUMENTS))
        dies(cluster)
        close_cached()  # as workers close their connections when they have nothing to do
        write(cluster, range(2 * DOCUMENTS))  # some of the first may have had no copy yet
        until(lambda: has(pipeline, table, 2 * DOCUMENTS))


def test_a_copy_follows_the_collections_of_both_sides(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    with TemporaryProducer(vbuckets=2) as other:
        there, here = {"path": named(cluster)}, {"path": other.source}
        for reading, writing in ((there, here), (here, there)):
            read, write = ReadOptions.parse(reading), WriteOptions.parse(writing)
            follower = CollectionSync(read, write, None, lambda name: None)
            follower.look()
            if cluster.state.node(NAMED) in cluster.state.members:
                first = follower
        dies(cluster)
        first.look()
        follower.look()


def test_what_a_table_is_compared_with_is_read(cluster: LocalCluster) -> None:
    """`verify` and `repair` plan their frames in other processes, which are told only texts."""
    settings = PipelineSettings.parse("mirror", named(cluster), {})
    driver = Driver(settings.read)
    driver.identity()
    known = settings.knowing(driver.addresses)
    driver.close()
    dies(cluster)
    write(cluster, range(DOCUMENTS))
    text = {"connectionString": known.source["connectionString"], "retryTimeout": "60s"}
    reader = DcpBatchReader(ReadOptions.parse(text).for_batch())
    read = [
        row for share in reader.partitions() for rows in reader.read(share) for row in rows["key"]
    ]
    assert len(read) == DOCUMENTS
