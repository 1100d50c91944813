"""A bucket of which a model knows what it must hold, and looks into the tables made from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession
from waiting import until

from upriver.errors import UpriverError
from upriver.spark.executors import executors_of
from upriver.spark.pipelines import changelog, mirror
from upriver.tables.pipeline import Pipeline
from upriver.tables.pipeline_settings import PipelineSettings
from upriver.tables.pipeline_start import place_of, start_pipeline
from upriver.testing import TemporaryProducer

#: Seconds after which a pipeline is taken for stuck; never reached when all is well.
PATIENCE = 600.0

Documents = dict[bytes, bytes]
T = TypeVar("T")


class Crash(Exception):
    """What a test makes happen between two steps."""


class ModelledBucket:
    """A producer's bucket, and every change that it has had."""

    def __init__(self, producer: TemporaryProducer) -> None:
        self.producer = producer
        self._history: dict[int, list[tuple[int, bytes, bytes | None]]] = {}

    def write(self, vbucket: int, key: bytes, value: bytes) -> int:
        seqno = self.producer.write(key, value, vbucket).seqno
        self._history.setdefault(vbucket, []).append((seqno, key, value))
        return seqno

    def delete(self, vbucket: int, key: bytes) -> int:
        seqno = self.producer.delete(key, vbucket).seqno
        self._history.setdefault(vbucket, []).append((seqno, key, None))
        return seqno

    def fail_over(self, vbucket: int, seqno: int) -> None:
        kept = self.producer.fail_over(vbucket, seqno)
        history = self._history.get(vbucket, [])
        self._history[vbucket] = [change for change in history if change[0] <= kept]

    def high(self, vbucket: int) -> int:
        history = self._history.get(vbucket)
        return history[-1][0] if history else 0

    def has(self, vbucket: int, key: bytes) -> bool:
        newest = [value for _, name, value in self._history.get(vbucket, ()) if name == key]
        return bool(newest) and newest[-1] is not None

    def changes_of(self, vbucket: int, key: bytes) -> dict[int, bytes | None]:
        """By seqno the values that a document has had; None where it was deleted."""
        changes = self._history.get(vbucket, ())
        return {seqno: value for seqno, name, value in changes if name == key}

    def documents(self) -> Documents:
        newest = {
            key: value for changes in self._history.values() for _, key, value in sorted(changes)
        }
        return {key: value for key, value in newest.items() if value is not None}


def rows_of(table: Path | str, options: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """The rows as deltalake reads them, which knows deletion vectors."""
    found = DeltaTable(str(table), storage_options=options)
    read = QueryBuilder().register("held", found).execute("SELECT * FROM held")
    return pa.table(read).to_pylist()


def documents_of(table: Path | str, options: dict[str, str] | None = None) -> Documents:
    """What a mirror holds; a document must not be there twice."""
    rows = rows_of(table, options)
    found = {row["key"]: row["value"] for row in rows}
    assert len(found) == len(rows)
    return found


def require_history(
    table: Path | str, bucket: ModelledBucket, *, complete: bool = False
) -> list[dict[str, Any]]:
    """A history's rows: versions that the bucket had, without gap or overlap, up to what it has.

    A ``complete`` one has all of them.
    """
    rows = rows_of(table)
    for (vbucket, _, _, key), versions in _by_document(rows).items():
        changes = bucket.changes_of(vbucket, key)
        for row in versions:
            begin, end = row["_valid_from_seqno"], row["_valid_to_seqno"]
            assert row["value"] is not None
            assert changes.get(begin) == row["value"], "the bucket has never had this version"
            ends = [seqno for seqno in changes if seqno > begin]
            assert (end in ends) if end is not None else not ends
            assert end is None or end == min(ends) or not complete
            if row["_ended_by"] == "deletion":
                assert changes[end] is None
        if complete:
            values = {seqno for seqno, value in changes.items() if value is not None}
            assert values == {row["seqno"] for row in versions}
    current = {row["key"]: row["value"] for row in current_versions(rows)}
    assert current == bucket.documents()
    return rows


def _by_document(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: row["seqno"]):
        name = tuple(row[part] for part in ("vbucket", "scope", "collection", "key"))
        found.setdefault(name, []).append(row)
    return found


def current_versions(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The current rows of a history, in which versions must follow each other."""
    for versions in _by_document(rows).values():
        for row, after in zip(versions, [*versions[1:], None], strict=True):
            end = row["_valid_to_seqno"]
            assert row["seqno"] == row["_valid_from_seqno"]
            if row["_ended_by"] is None:
                assert (end, row["_valid_to"], after) == (None, None, None)
                continue
            assert row["seqno"] <= end
            assert row["_valid_from"] <= row["_valid_to"]
            if row["_ended_by"] == "mutation":
                assert after is not None
                assert (end, row["_valid_to"]) == (after["seqno"], after["_valid_from"])
            else:
                assert row["_ended_by"] in ("deletion", "dropped")
                assert after is None or after["seqno"] > end
    return [row for row in rows if row["_valid_to_seqno"] is None]


def caught_up(
    spark: SparkSession, producer: TemporaryProducer, table: Path | str, **more: Any
) -> None:
    """Runs a mirror once."""
    pipeline = mirror(spark, source=producer.source, table=table, once=True, **more)
    assert pipeline.wait(PATIENCE)


def crashed(
    spark: SparkSession, producer: TemporaryProducer, table: Path | str, step: str, **more: Any
) -> str:
    """Runs a mirror once that dies after a step; returns what it said."""

    def die(done: str) -> None:
        if done == step:
            raise Crash(f"died after {step}")

    settings = PipelineSettings.parse("mirror", producer.source, {"once": True, **more})
    place = place_of(table, settings)
    with pytest.raises((Crash, UpriverError)) as failure:
        start_pipeline(executors_of(spark), settings, place, on_step=die).wait(PATIENCE)
    return str(failure.value)


@contextmanager
def running_mirror(
    spark: SparkSession, producer: TemporaryProducer, table: Path | str, **more: Any
) -> Iterator[Pipeline]:
    """A mirror that runs until the block ends."""
    pipeline = mirror(spark, source=producer.source, table=table, **more)
    try:
        yield pipeline
    finally:
        pipeline.stop()


@contextmanager
def running_changelog(
    spark: SparkSession, producer: TemporaryProducer, table: Path | str, **more: Any
) -> Iterator[Pipeline]:
    """A change log that runs until the block ends."""
    pipeline = changelog(spark, source=producer.source, table=table, **more)
    try:
        yield pipeline
    finally:
        pipeline.stop()


def becomes(pipeline: Pipeline, look: Callable[[], T], wanted: T) -> None:
    """Waits until something is as it should be, while a pipeline runs."""
    until(
        lambda: look() == wanted,
        unless=lambda: pipeline.wait(0) and "the pipeline has ended",
        what=lambda: f"it stays {look()}",
    )


def becomes_equal(pipeline: Pipeline, bucket: ModelledBucket, table: Path) -> None:
    """Waits until a running mirror has what the bucket has."""
    becomes(pipeline, lambda: documents_of(table), bucket.documents())
