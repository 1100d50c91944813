"""What `verify` finds out, and what it does not judge."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from pyspark.sql import SparkSession
from tablekit import ModelledBucket, caught_up, documents_of

from upriver.cli.commands.repair import repair as repair_command
from upriver.cli.commands.verify import verify as verify_command
from upriver.errors import ConfigError
from upriver.model import VBucketState
from upriver.spark.repair_table import repair
from upriver.spark.verify_table import verify
from upriver.testing import TemporaryProducer

VBUCKETS = 4


@contextmanager
def filled_bucket() -> Iterator[tuple[TemporaryProducer, ModelledBucket]]:
    """A bucket with twenty documents."""
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        bucket = ModelledBucket(producer)
        for number in range(20):
            bucket.write(number % VBUCKETS, b"k%d" % number, b"%d" % number)
        yield producer, bucket


def test_differences_are_found_and_later_changes_are_not_judged(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = tmp_path / "documents"
    with filled_bucket() as (producer, bucket):
        bucket.delete(0, b"k16")
        caught_up(spark, producer, table)
        with pytest.raises(ConfigError, match="its scope is none and here it is _default;"):
            verify(spark, source=producer.source, table=str(table), scope="_default")
        found = verify(spark, source=producer.source, table=str(table))
        assert (found.equal, found.differing, found.changed_later) == (19, 0, 0)
        # later on the producer: a change, a deletion, a new document, and a failover
        bucket.write(1, b"k1", b"later")
        bucket.delete(1, b"k5")
        bucket.write(1, b"new", b"later")
        bucket.fail_over(3, bucket.high(3) - 1)
        # and somebody has a hand in the table
        held = DeltaTable(table)
        held.delete("key = decode('6b30', 'hex')")  # k0
        held.update(
            updates={"value": "decode('ff', 'hex')"}, predicate="key = decode('6b34', 'hex')"
        )
        held.update(updates={"key": "decode('77', 'hex')"}, predicate="key = decode('6b32', 'hex')")
        found = verify(spark, source=producer.source, table=str(table))
        assert found.incomparable == (3,)
        assert found.changed_later == 3
        assert [(one.kind, one.key) for one in found.differences] == [
            ("missing", b"k0"),
            ("different", b"k4"),
            ("missing", b"k2"),
            ("extra", b"w"),
        ]
        assert (found.missing, found.extra, found.different) == (2, 1, 1)
        assert found.equal == 19 - 5 - 2 - 2 - 1


def _doubled(table: DeltaTable, key: bytes = b"k4") -> None:
    query = f"SELECT * FROM held WHERE key = decode('{key.hex()}', 'hex')"
    found = QueryBuilder().register("held", table).execute(query)
    row = pa.table(found)
    assert row.num_rows == 1
    write_deltalake(table, row, mode="append")


_K4 = "key = decode('6b34', 'hex')"

PLANTED: dict[str, Callable[[DeltaTable], object]] = {
    "value": lambda table: table.update(updates={"value": "decode('ff', 'hex')"}, predicate=_K4),
    "cas": lambda table: table.update(updates={"cas": "cas + 1"}, predicate=_K4),
    "seqno": lambda table: table.update(updates={"seqno": "seqno + 1"}, predicate=_K4),
    "missing": lambda table: table.delete(_K4),
    "extra": lambda table: table.update(
        updates={"key": "decode('77', 'hex')"}, predicate="key = decode('6b38', 'hex')"
    ),
    "doubled": _doubled,
}


@pytest.fixture(scope="module")
def mirrored(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[TemporaryProducer, Path]]:
    """A bucket of twenty documents and its mirror, to be copied by those that change it."""
    table = tmp_path_factory.mktemp("mirrored") / "documents"
    with filled_bucket() as (producer, _):
        caught_up(spark, producer, table)
        yield producer, table


@pytest.mark.parametrize("planted", PLANTED)
def test_every_kind_of_difference_is_found(
    spark: SparkSession, mirrored: tuple[TemporaryProducer, Path], tmp_path: Path, planted: str
) -> None:
    producer, original = mirrored
    table = tmp_path / "documents"
    shutil.copytree(original, table)
    PLANTED[planted](DeltaTable(table))
    found = verify(spark, source=producer.source, table=str(table))
    kinds = [(one.kind, one.key) for one in found.differences]
    expected = {
        "missing": [("missing", b"k4")],
        "extra": [("missing", b"k8"), ("extra", b"w")],
        "doubled": [("doubled", b"k4")],
    }
    assert kinds == expected.get(planted, [("different", b"k4")])
    assert found.verdict == ("doubled" if planted == "doubled" else "different")
    assert (found.equal, found.differing) == (19, len(kinds))


def test_where_no_document_can_be_compared_nothing_is_equal(
    spark: SparkSession, tmp_path: Path
) -> None:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        bucket = ModelledBucket(producer)
        bucket.write(0, b"k", b"1")
        caught_up(spark, producer, tmp_path / "documents")
        bucket.write(0, b"k", b"2")
        found = verify(spark, source=producer.source, table=str(tmp_path / "documents"))
    assert (found.equal, found.differing, found.changed_later) == (0, 0, 1)
    assert found.verdict == "nothing compared"


def test_the_commands_say_what_is_wrong_and_repair_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the Spark of this process; tests/cli has the commands as processes of their own."""
    monkeypatch.setattr(SparkSession, "stop", lambda session: None)
    table = tmp_path / "documents"
    with filled_bucket() as (producer, bucket):
        caught_up(spark, producer, table)

        def run(command: click.Command, *words: str) -> Result:
            return CliRunner().invoke(command, [producer.source, str(table), *words])

        DeltaTable(table).delete("key = decode('6b30', 'hex')")  # k0
        differing = run(verify_command, "--json")
        assert differing.exit_code == 1, differing.output
        found = json.loads(differing.stdout)
        assert (found["verdict"], found["missing"], found["equal"]) == ("different", 1, 19)
        assert [one["kind"] for one in found["differences"]] == ["missing"]
        repaired = run(repair_command)
        assert repaired.exit_code == 0, repaired.output
        assert "missing: k0" in repaired.stdout
        assert "repaired: 1 documents written, 0 removed; 19 were equal, 0 ch" in repaired.stdout
        held = QueryBuilder().register("held", DeltaTable(table))
        rows = pa.table(held.execute("SELECT * FROM held WHERE seqno = 2"))
        write_deltalake(table, rows, mode="append")
        doubled = run(verify_command)
        assert doubled.exit_code == 3, doubled.output
        assert f"0 different, {rows.num_rows} doubled" in doubled.stdout
        assert run(repair_command).exit_code == 0
        for number in range(20):
            bucket.write(number % VBUCKETS, b"k%d" % number, b"later")
        nothing = run(verify_command)
        assert nothing.exit_code == 4, nothing.output
        assert "no document could be compared" in nothing.stdout
        assert "nothing compared: 0 documents are equal" in nothing.stdout


def test_a_failover_that_lost_nothing_is_followed_without_a_change(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = tmp_path / "documents"
    with filled_bucket() as (producer, _):
        caught_up(spark, producer, table)
        producer.set_state(1, VBucketState.REPLICA)
        producer.set_state(1, VBucketState.ACTIVE)
        assert verify(spark, source=producer.source, table=str(table)).incomparable == (1,)
        caught_up(spark, producer, table)
        found = verify(spark, source=producer.source, table=str(table))
        assert (found.equal, found.differing, found.incomparable) == (20, 0, ())


def test_what_is_no_mirror_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with (
        TemporaryProducer(vbuckets=VBUCKETS) as producer,
        pytest.raises(ConfigError, match="is no mirror"),
    ):
        verify(spark, source=producer.source, table=str(tmp_path / "nothing"))


# ---- repairing ---------------------------------------------------------------------------


@pytest.mark.story
def test_only_what_differs_is_repaired_and_the_pipeline_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = str(tmp_path / "documents")
    with filled_bucket() as (producer, bucket):
        bucket.delete(0, b"k16")
        caught_up(spark, producer, table)
        held = DeltaTable(table)
        files = set(held.file_uris())
        for kind in ("missing", "extra"):
            PLANTED[kind](held)
        held.update(
            updates={"value": "decode('ff', 'hex')"}, predicate="key = decode('6b35', 'hex')"
        )
        _doubled(DeltaTable(table), b"k1")
        assert set(DeltaTable(table).file_uris()) != files
        bucket.write(2, b"k2", b"later")  # the bucket is written to meanwhile
        bucket.write(2, b"new", b"later")
        with pytest.raises(
            ConfigError, match=r"5 documents of .* differ, more than 4; nothing was"
        ):
            repair(spark, source=producer.source, table=table, most=4)
        with pytest.raises(ConfigError, match="Run upriver repair"):
            caught_up(spark, producer, table)
        done = repair(spark, source=producer.source, table=table)
        assert (done.written, done.removed, done.left) == (4, 1, 0)
        found = done.found
        assert (found.missing, found.extra, found.different, found.doubled) == (2, 1, 1, 1)
        found = verify(spark, source=producer.source, table=table)
        assert (found.verdict, found.equal, found.changed_later) == ("equal", 18, 2)
        bucket.write(1, b"k1", b"newest")
        caught_up(spark, producer, table)
        assert documents_of(table) == bucket.documents()
        bucket.fail_over(1, bucket.high(1) - 1)
        with pytest.raises(
            ConfigError, match=r"1 vbuckets have had a failover .* nothing was chan"
        ):
            repair(spark, source=producer.source, table=table)
        caught_up(spark, producer, table)
        assert documents_of(table) == bucket.documents()
