"""Files that tasks write for each group: what they hold, and whose files count."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from upriver.spark.tables import grouped_files
from upriver.spark.tables.grouped_files import write_grouped


def groups_in(directory: Path) -> dict[str, list[int]]:
    """The numbers that each directory's files hold."""
    found: dict[str, list[int]] = {}
    for file in sorted(directory.rglob("*.parquet")):
        numbers = pq.ParquetFile(file).read().column("n").to_pylist()
        found.setdefault(file.parent.name, []).extend(numbers)
    return {group: sorted(numbers) for group, numbers in found.items()}


def batch(*rows: tuple[int, int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"n": n, "g": g} for n, g in rows])


def test_every_row_is_in_the_files_of_its_group(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(1000).select(
        f.col("id").alias("n"),
        (f.col("id") % 7 - 1).cast("int").alias("g"),
        f.when(f.col("id") % 2 == 0, f.col("id").cast("string")).alias("text"),
        f.timestamp_micros(f.col("id")).alias("at"),
    )
    grouped_files.register(spark)
    write_grouped(rows.repartition(3), "g", tmp_path)
    assert groups_in(tmp_path) == {f"g={g}": list(range(g + 1, 1000, 7)) for g in range(-1, 6)}
    assert {path.name for path in tmp_path.iterdir()} == {f"g={g}" for g in range(-1, 6)}
    back = spark.read.parquet(str(tmp_path))
    wanted = sorted(map(tuple, rows.select("n", "text", "at", "g").collect()))
    assert sorted(map(tuple, back.select("n", "text", "at", "g").collect())) == wanted


def test_files_of_attempts_that_do_not_count_are_no_data(tmp_path: Path) -> None:
    writer = grouped_files.GroupedWriter("g", tmp_path)
    lost = writer.write(iter([batch((1, 0), (2, 1))]))
    counted = writer.write(iter([batch((1, 0), (2, 1), (3, 1))]))
    assert lost != counted
    writer.commit([counted])
    assert groups_in(tmp_path) == {"g=0": [1], "g=1": [2, 3]}


def test_a_failed_job_leaves_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    writer = grouped_files.GroupedWriter("g", directory)
    writer.abort([writer.write(iter([batch((1, 0))])), None])
    assert not directory.exists()


def test_gathered_rows_are_written_before_they_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grouped_files, "_MOST_GATHERED", 1)
    writer = grouped_files.GroupedWriter("g", tmp_path)
    parts = [batch((1, 5), (2, 6)), batch((3, 5)), batch((4, 6), (5, 5), (6, 5))]
    writer.commit([writer.write(iter(parts))])
    assert groups_in(tmp_path) == {"g=5": [1, 3, 5, 6], "g=6": [2, 4]}
    (file,) = (tmp_path / "g=5").iterdir()
    assert pq.ParquetFile(file).num_row_groups == 3
