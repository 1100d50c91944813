"""The commands that keep tables, as processes of their own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from running import finished, running

from upriver.cli.commands.mirror import mirror
from upriver.cli.commands.report import report
from upriver.errors import ConfigError
from upriver.spark.source.offset_ranges import SMALL_BATCH
from upriver.testing import TemporaryProducer

#: Spark on a small machine.
QUICK = ("--master", "local[2]")


@pytest.fixture(scope="module")
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=4) as producer:
        for number in range(30):
            producer.write(b"k%d" % number, b'{"n":%d}' % number)
        yield producer


def test_a_worker_that_does_not_start_is_started_again(tmp_path: Path) -> None:
    """As on a machine that is so busy that Spark gives a worker up."""
    python, tried = tmp_path / "python", tmp_path / "tried"
    python.write_text(
        f'#!/bin/sh\n[ -e {tried} ] || {{ touch {tried}; exit 1; }}\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o700)
    table = tmp_path / "documents"
    with TemporaryProducer(vbuckets=4) as large:  # fewer changes would be read without Spark
        for number in range(SMALL_BATCH + 1):
            large.write(b"k%d" % number, b"{}")
        named = {"PYSPARK_PYTHON": str(python)}
        made = finished("mirror", large.source, table, "--once", *QUICK, **named)
    assert made.returncode == 0, made.stderr
    assert tried.exists()
    assert DeltaTable(table).count() == SMALL_BATCH + 1


def test_a_mirror_is_made_verified_compacted_and_reported(
    producer: TemporaryProducer, tmp_path: Path
) -> None:
    table = tmp_path / "documents"
    settings = tmp_path / "mirror.toml"
    settings.write_text(
        "once = true\nmax-batch = 20\njson = true\n"
        '[options]\nlongPoll = "100ms"\n'
        '[conf]\n"spark.driver.memory" = "1g"\n'
    )
    made = finished("mirror", producer.source, table, "--config", settings, *QUICK)
    assert made.returncode == 0, made.stderr
    assert "log" not in made.stderr, "what Java says while it starts"
    assert "WARN" not in made.stderr
    told = json.loads(made.stdout)
    assert (told["state"], told["changes"], told["batches"]) == ("done", 30, 2)
    compared = finished("verify", producer.source, table, *QUICK)
    assert compared.returncode == 0, compared.stderr
    assert "WARN" not in compared.stderr
    assert compared.stdout.startswith("equal: 30 documents are equal, 0 missing")
    compacted = finished("compact", table)
    assert compacted.returncode == 0, compacted.stderr
    assert "2 files are 1 now" in compacted.stdout
    DeltaTable(table).delete("seqno = 1 AND vbucket = 0")
    differing = finished("verify", producer.source, table, "--json", *QUICK)
    assert differing.returncode == 1, differing.stderr
    found = json.loads(differing.stdout)
    assert (found["verdict"], found["missing"], found["equal"]) == ("different", 1, 29)
    repaired = finished("repair", producer.source, table, *QUICK)
    assert repaired.returncode == 0, repaired.stderr
    assert "missing: k" in repaired.stdout
    assert "repaired: 1 documents written, 0 removed; 29 were equal, 0 changed" in repaired.stdout
    assert [one["kind"] for one in found["differences"]] == ["missing"]
    held = QueryBuilder().register("held", DeltaTable(table))
    rows = pa.table(held.execute("SELECT * FROM held WHERE seqno = 2"))
    write_deltalake(table, rows, mode="append")
    doubled = finished("verify", producer.source, table, *QUICK)
    assert doubled.returncode == 3, doubled.stderr
    assert (
        f"doubled: 26 documents are equal, 0 missing, 0 extra, 0 different, {rows.num_rows} "
        in (doubled.stdout)
    )
    refused = finished("mirror", producer.source, table, "--once", *QUICK)
    assert refused.returncode == 1
    assert "was written by another program" in refused.stderr
    page = tmp_path / "page.html"
    assert finished("report", table, "-o", page).returncode == 0
    assert "How the pipeline went" in page.read_text()


def test_a_comparison_of_nothing_has_a_status_of_its_own(tmp_path: Path) -> None:
    table = tmp_path / "documents"
    with TemporaryProducer(vbuckets=4) as producer:
        producer.write(b"k", b"at first")
        made = finished("mirror", producer.source, table, "--once", *QUICK)
        assert made.returncode == 0, made.stderr
        producer.write(b"k", b"later")
        compared = finished("verify", producer.source, table, *QUICK)
    assert compared.returncode == 4, compared.stderr
    assert "no document could be compared" in compared.stdout
    assert "nothing compared: 0 documents are equal" in compared.stdout


def test_a_change_log_runs_until_it_is_stopped(producer: TemporaryProducer, tmp_path: Path) -> None:
    table = tmp_path / "changes"
    with running("changelog", producer.source, table, *QUICK) as process:
        while not (table / "_upriver" / "progress.jsonl").exists():
            # the guard of `running` ends a process that hangs
            with suppress(subprocess.TimeoutExpired):
                process.process.wait(0.05)
            assert process.process.poll() is None, process.err.read()
        status, out, err = process.stop(signal.SIGTERM)
    assert status == 0, err
    assert out.startswith("stopped: 30 changes in 1 batches")
    assert DeltaTable(table).count() == 30


def test_ctrl_c_while_spark_starts_ends_with_one_line(
    producer: TemporaryProducer, tmp_path: Path
) -> None:
    with running("verify", producer.source, tmp_path / "none", *QUICK) as process:
        while not descendants_named("java", process.process.pid):
            with suppress(subprocess.TimeoutExpired):
                process.process.wait(0.05)
            assert process.process.poll() is None, process.err.read()
        status, out, err = process.stop(signal.SIGINT)
    assert (status, out, err) == (130, "", "interrupted: nothing was finished\n")


def descendants_named(name: str, parent: int) -> list[int]:
    """The processes of this name that a process or one of its children has started."""
    found = []
    for task in Path(f"/proc/{parent}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, task.read_text().split()):
                if Path(f"/proc/{child}/comm").read_text().strip() == name:
                    found.append(child)
                found += descendants_named(name, child)
    return found


def test_questions_without_an_answer_have_a_status_of_their_own(tmp_path: Path) -> None:
    asked = finished("verify", "couchbase://127.0.0.1:1/default", tmp_path / "none", *QUICK)
    assert asked.returncode == 2
    assert "is no mirror" in asked.stderr
    assert finished("compact", tmp_path).returncode == 1
    assert finished("report", tmp_path).returncode == 1


def test_configuration_files_hold_no_secrets_and_nothing_unknown(tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    for text, said in (
        ('[options]\npassword = "x"\n', "UPRIVER_PASSWORD"),
        ("unheard-of = 1\n", "unheard-of is not an option of mirror"),
        ("options = 1\n", "a table of names and values"),
        ("= nonsense", "is not TOML"),
    ):
        file.write_text(text)
        ran = CliRunner().invoke(mirror, ["couchbase://h/b", "t", "--config", str(file)])
        assert isinstance(ran.exception, ConfigError)
        assert said in str(ran.exception)


def test_a_report_of_nothing_is_refused(tmp_path: Path) -> None:
    ran = CliRunner().invoke(report, [str(tmp_path)])
    assert isinstance(ran.exception, ConfigError)


def test_a_file_or_a_foreign_table_where_a_table_should_be(
    producer: TemporaryProducer, tmp_path: Path
) -> None:
    file, foreign = tmp_path / "file", tmp_path / "foreign"
    file.write_text("")
    write_deltalake(foreign, pa.table({"a": [1]}))
    code = f"""
import sys
from upriver.errors import ConfigError
from upriver.spark import changelog, mirror, session, verify
spark = session(master="local[1]")
for start in (mirror, changelog):
    for table in ({str(file)!r}, {str(foreign)!r}):
        try:
            start(spark, source={producer.source!r}, table=table, once=True).wait()
        except ConfigError as problem:
            print(problem)
try:
    verify(spark, source={producer.source!r}, table={str(foreign)!r})
except ConfigError as problem:
    print(problem)
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    )
    for start in range(2):
        assert "cannot be a directory" in ran.stdout.splitlines()[2 * start]
        assert "no pipeline of ours has made" in ran.stdout.splitlines()[2 * start + 1]
    assert f"{foreign} is no mirror" in ran.stdout.splitlines()[4]
    assert DeltaTable(foreign).version() == 0
    assert sorted(path.name for path in foreign.iterdir() if path.is_dir()) == ["_delta_log"]
