"""The commands that keep tables, as processes of their own."""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake
from running import Running, ended, running
from waiting import until

from upriver import spark
from upriver.batches.offset_ranges import SMALL_BATCH
from upriver.cli.commands.mirror import mirror
from upriver.cli.commands.report import report
from upriver.errors import ConfigError
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
        made = ended("mirror", large.source, table, "--once", *QUICK, **named)
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
    made = ended("mirror", producer.source, table, "--config", settings, *QUICK)
    assert made.returncode == 0, made.stderr
    assert "log" not in made.stderr, "what Java says while it starts"
    assert "WARN" not in made.stderr
    told = json.loads(made.stdout)
    assert (told["state"], told["changes"], told["batches"]) == ("done", 30, 2)
    compared = ended("verify", producer.source, table, *QUICK)
    assert compared.returncode == 0, compared.stderr
    assert "WARN" not in compared.stderr
    assert compared.stdout.startswith("equal: 30 documents are equal, 0 missing")
    compacted = ended("compact", table)
    assert compacted.returncode == 0, compacted.stderr
    assert "2 files are 1 now" in compacted.stdout
    DeltaTable(table).delete("seqno = 1 AND vbucket = 0")
    refused = ended("mirror", producer.source, table, "--once", *QUICK)
    assert refused.returncode == 1
    assert "was written by another program" in refused.stderr
    page = tmp_path / "page.html"
    assert ended("report", table, "-o", page).returncode == 0
    assert "How the pipeline went" in page.read_text()


def waits_until(process: Running, look: Callable[[], object]) -> None:
    def has_ended() -> str:
        return "" if process.process.poll() is None else f"it has ended: {process.err.read()}"

    until(look, unless=has_ended)


@pytest.mark.parametrize(
    ("command", "number", "group", "status"),
    [
        ("changelog", signal.SIGTERM, False, 0),
        pytest.param("mirror", signal.SIGTERM, True, 0, marks=pytest.mark.story),
        ("history", signal.SIGTERM, True, 0),
        ("changelog", signal.SIGINT, True, 130),
    ],
)
def test_a_pipeline_runs_until_it_is_stopped(
    producer: TemporaryProducer,
    tmp_path: Path,
    command: str,
    number: signal.Signals,
    group: bool,
    status: int,
) -> None:
    """Service managers and terminals send signals to all processes of a group."""
    table = tmp_path / "table"
    # two tasks are done by Spark, not by the process itself
    options = ("--option", "minPartitions=2", "--quiet", *QUICK)
    with running(command, producer.source, table, *options, start_new_session=group) as process:
        waits_until(process, (table / "_upriver" / "progress.jsonl").exists)
        found, out, err = process.stop(number, group=group)
    assert (found, err) == (status, "")
    assert out.startswith("stopped: 30 changes in 1 batch and ")
    assert len(out.splitlines()) == 1
    assert DeltaTable(table).count() == 30


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_copy_runs_until_its_group_is_stopped(
    producer: TemporaryProducer, tmp_path: Path, number: signal.Signals
) -> None:
    with TemporaryProducer(vbuckets=4) as target:
        words = (producer.source, target.source, "--checkpoint", tmp_path / "positions")
        with running("copy", *words, "--quiet", *QUICK, start_new_session=True) as process:
            waits_until(process, (tmp_path / "positions" / "commits" / "0").exists)
            status, out, err = process.stop(number, group=True)
    assert (status, err) == (130 if number == signal.SIGINT else 0, "")
    assert re.fullmatch(r"copied: \d+ changes in .* s\n", out)


@pytest.mark.parametrize("command", ["mirror", "changelog", "history"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_pipeline_without_spark_ends_with_one_line(
    tmp_path: Path, command: str, number: signal.Signals
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        source = f"couchbase://127.0.0.1:{silent.getsockname()[1]}/default"
        words = (source, tmp_path / "table", "--quiet")
        with running(command, *words, start_new_session=True) as process:
            client, _ = silent.accept()
            with client:
                status, out, err = process.stop(number, group=True)
    expected = 130 if number == signal.SIGINT else -number
    assert (status, out, err) == (expected, "", "interrupted: nothing was finished\n")


def test_ctrl_c_while_spark_starts_ends_with_one_line(
    producer: TemporaryProducer, tmp_path: Path
) -> None:
    table = tmp_path / "documents"
    made = ended("mirror", producer.source, table, "--once", *QUICK)
    assert made.returncode == 0, made.stderr
    with running("verify", producer.source, table, *QUICK) as process:
        waits_until(process, lambda: descendants_named("java", process.process.pid))
        status, out, err = process.stop(signal.SIGINT)
    said = "interrupted: the comparison was not finished; nothing was changed\n"
    assert (status, out, err) == (130, "", said)


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
    no_java = {"JAVA_HOME": str(tmp_path), "PATH": ""}  # nor is any needed to say so
    asked = ended("verify", "couchbase://127.0.0.1:1/default", tmp_path / "none", **no_java)
    assert asked.returncode == 2
    assert "is no mirror" in asked.stderr
    assert ended("compact", tmp_path).returncode == 1
    assert ended("report", tmp_path).returncode == 1


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

    def no_spark() -> NoReturn:
        pytest.fail("Spark was started for a table that cannot be used")

    for start in (spark.mirror, spark.changelog):
        with pytest.raises(ConfigError, match="cannot be a directory"):
            start(no_spark, source=producer.source, table=file, once=True)
        with pytest.raises(ConfigError, match="no pipeline of ours has made"):
            start(no_spark, source=producer.source, table=foreign, once=True)
    for compare in (spark.verify, spark.repair):
        with pytest.raises(ConfigError, match=f"{foreign} is no mirror"):
            compare(no_spark, source=producer.source, table=str(foreign))
    assert DeltaTable(foreign).version() == 0
    assert sorted(path.name for path in foreign.iterdir() if path.is_dir()) == ["_delta_log"]
