"""A Spark session that is ready for the source, without any set-up by its user."""

from __future__ import annotations

import importlib
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from sparkkit import PATIENCE, fill

from upriver.errors import ConfigError
from upriver.spark.runtime.find_java import ensure_java_home
from upriver.spark.runtime.internals import worker_python
from upriver.testing import TemporaryProducer

sessions = importlib.import_module("upriver.spark.session")

SOCKETS = "spark.python.unix.domain.socket.enabled"
MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
PARTITIONS = "spark.sql.shuffle.partitions"


def test_a_spark_without_python_sources_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    monkeypatch.setattr("pyspark.__version__", "3.5.9")
    for begin in (sessions.session, lambda: sessions.register(spark)):
        with pytest.raises(ConfigError, match=r"Spark 3\.5 has no Python data sources: .* 4\.0 to"):
            begin()


@pytest.mark.parametrize(
    ("master", "partitions"),
    [
        ("local", "1"),
        ("local[3]", "3"),
        ("local[3, 4]", "3"),
        ("local[*]", str(os.cpu_count())),
        ("local-cluster[2,3,1024]", "6"),
    ],
)
def test_one_machine_gets_as_many_shuffle_partitions_as_it_has_cores(
    master: str, partitions: str
) -> None:
    chosen = sessions.settings({"spark.master": master})
    assert chosen[PARTITIONS] == partitions
    assert chosen[MANAGER].endswith(".FileSystemBasedCheckpointFileManager")
    assert chosen["spark.ui.enabled"] == "false"


@pytest.mark.parametrize(
    "config", [{}, {"spark.master": "spark://h:7077"}, {"spark.master": "yarn"}]
)
def test_a_cluster_gets_only_what_holds_anywhere(config: dict[str, str]) -> None:
    assert sessions.settings(config) == {SOCKETS: "true", **config}


@pytest.mark.parametrize(
    ("master", "retried"),
    [
        ("local", "local[1,4]"),
        ("local[3]", "local[3,4]"),
        ("local[*]", "local[*,4]"),
        ("local[3, 2]", "local[3, 2]"),
        ("local-cluster[2,3,1024]", "local-cluster[2,3,1024]"),
        ("spark://h:7077", "spark://h:7077"),
    ],
)
def test_tasks_of_a_local_master_are_tried_again_unless_it_says_how_often(
    master: str, retried: str
) -> None:
    assert sessions.retrying(master) == retried


def test_what_the_caller_configures_wins() -> None:
    config = {"spark.master": "local[2]", PARTITIONS: "7", "spark.ui.enabled": "true"}
    chosen = sessions.settings(config)
    assert {name: chosen[name] for name in config} == config


def test_checkpoints_on_another_file_system_keep_sparks_own_manager() -> None:
    config = {"spark.master": "local[2]", "spark.hadoop.fs.defaultFS": "hdfs://name:8020"}
    assert MANAGER not in sessions.settings(config)


# ---- the workers' interpreter ----------------------------------------------------------------


def told_by(script: str, path: str) -> list[str]:
    code = "import os, sys; print(sys.prefix, os.environ['PYTHONPATH'], *sys.argv[1:], sep='\\n')"
    answer = subprocess.run(
        [script, "-c", code, "a b", "*", '"'],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return answer.stdout.splitlines()


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        (
            "/s/pyspark.zip:/mine:/s/py4j-0.10.9.9-src.zip:/j/core.jar:/with a space",
            "/mine:/with a space",
        ),
        ("/s/pyspark.zip", ""),
        ("/lib/*:/other", "/lib/*:/other"),
        ("", ""),
    ],
)
def test_workers_are_this_interpreter_without_sparks_archives(
    path: str, kept: str, tmp_path: Path
) -> None:
    script = worker_python(tmp_path / "a place" / "b")
    assert told_by(script, path) == [sys.prefix, kept, "a b", "*", '"']


def test_the_script_is_written_once_and_repaired_if_it_was_changed(tmp_path: Path) -> None:
    script = Path(worker_python(tmp_path))
    first = script.stat()
    assert worker_python(tmp_path) == str(script)
    assert script.stat().st_ino == first.st_ino
    content = script.read_text()
    script.write_text("#!/bin/sh\nexit 1\n")
    assert worker_python(tmp_path) == str(script)
    assert script.read_text() == content
    assert list(tmp_path.iterdir()) == [script]


def test_a_directory_that_others_may_write_to_is_not_used(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    script = worker_python(tmp_path)
    assert not list(tmp_path.iterdir())
    assert told_by(script, "/s/pyspark.zip:/mine")[:2] == [sys.prefix, "/mine"]


def test_a_place_that_cannot_be_written_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    script = worker_python(tmp_path / "file")
    assert told_by(script, "/mine")[:2] == [sys.prefix, "/mine"]


# ---- a real session --------------------------------------------------------------------------


def test_a_new_session_has_our_settings(spark: SparkSession) -> None:
    assert spark.conf.get(SOCKETS) == "true"
    assert spark.conf.get(PARTITIONS) == "2"
    assert str(spark.conf.get(MANAGER)).endswith(".FileSystemBasedCheckpointFileManager")
    assert spark.sparkContext.uiWebUrl is None


def test_workers_start_without_sparks_archives(spark: SparkSession) -> None:
    def look(_: int) -> tuple[str, list[str], str]:
        import pyspark

        return sys.prefix, sys.path, pyspark.__file__

    prefix, path, module = spark.sparkContext.parallelize([0], 1).map(look).first()
    assert prefix == sys.prefix
    assert not [entry for entry in path if entry.endswith(("pyspark.zip", ".jar"))]
    assert ".zip" not in module


def test_starting_leaves_the_environment_as_it_was(spark: SparkSession) -> None:
    assert "spark-python-" in spark.sparkContext.pythonExec
    assert "PYSPARK_PYTHON" not in os.environ


def test_a_session_that_runs_is_taken_and_told_what_it_cannot_change(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    spark.conf.set(PARTITIONS, "5")
    try:
        with caplog.at_level(logging.WARNING, "upriver.spark"):
            again = sessions.start(
                master="local[7]",
                config={"spark.executor.memory": "3g", "spark.sql.ansi.enabled": False},
            )
        assert again is spark
        assert spark.conf.get(PARTITIONS) == "5"
        assert spark.conf.get("spark.sql.ansi.enabled") == "false"
    finally:
        spark.conf.set(PARTITIONS, "2")
        spark.conf.unset("spark.sql.ansi.enabled")
    (record,) = caplog.records
    assert "spark.executor.memory=3g" in record.getMessage()
    assert "spark.master=local[7]" in record.getMessage()
    assert "unix" not in record.getMessage().lower()


PLAIN = """
import sys
from pyspark.sql import SparkSession
from upriver.spark import mirror, register

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
mirror(spark, source=sys.argv[1], table=sys.argv[2], once=True).wait()
register(spark)
register(spark)
print(spark.read.format("dcp").load(sys.argv[1]).count())
print(spark.read.format("upriver-table").load(sys.argv[2]).count())
spark.stop()
"""


def test_a_plain_session_in_an_environment_that_is_not_activated(tmp_path: Path) -> None:
    """The ``python3`` on the path has neither Upriver nor what it needs."""
    environment = {
        **{name: text for name, text in os.environ.items() if not name.startswith("PYSPARK")},
        "PATH": "/usr/bin:/bin",
        "JAVA_HOME": str(ensure_java_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with TemporaryProducer(vbuckets=2) as producer:
        fill(producer, range(20))
        answer = subprocess.run(
            [sys.executable, "-c", PLAIN, producer.source, str(tmp_path / "table")],
            capture_output=True,
            text=True,
            env=environment,
            timeout=PATIENCE,
        )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.split() == ["20", "20"]
    assert "replaced" not in answer.stderr


STOPPED = """
import sys
from upriver.errors import ConfigError
from upriver.spark import mirror, session
from upriver.store import SetDocument, document_key
from upriver.testing import TemporaryProducer

with TemporaryProducer(vbuckets=1) as producer:
    spark = session(master="local[1]")
    running = mirror(spark, source=producer.source, table=sys.argv[1], trigger=5)
    spark.stop()
    keys = (document_key(b"%d" % number) for number in range(20_000))
    producer.bucket.write_many([SetDocument(0, key, b"{}") for key in keys])
    for use in (running.wait, lambda: mirror(spark, source=producer.source, table=sys.argv[2])):
        try:
            use()
        except ConfigError as problem:
            print(problem)
"""


def test_a_session_that_was_stopped_is_named(tmp_path: Path) -> None:
    tables = [str(tmp_path / name) for name in ("before", "after")]
    answer = subprocess.run(
        [sys.executable, "-c", STOPPED, *tables], capture_output=True, text=True, timeout=PATIENCE
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines() == [
        "the Spark session was stopped while a pipeline used it: stop the pipeline first",
        "the Spark session is stopped: give one that runs",
    ]


# ---- what Spark finds by itself --------------------------------------------------------------


def in_a_new_python(code: str) -> str:
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return answer.stdout.strip()


def test_the_package_that_spark_looks_for_imports_nothing() -> None:
    code = "import sys, pyspark_dcp; print({'pyspark', 'upriver', 'pyarrow'} & set(sys.modules))"
    assert in_a_new_python(code) == "set()"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("None", "False"),
        ("types.SimpleNamespace()", "False"),
        ("types.SimpleNamespace(DcpDataSource=int)", "True"),
    ],
)
def test_a_source_that_cannot_be_loaded_does_not_hide_the_others(source: str, found: Any) -> None:
    code = (
        "import sys, types, pyspark_dcp\n"
        f"sys.modules['upriver.spark.data_source'] = {source}\n"
        "print(hasattr(pyspark_dcp, 'DefaultSource'), hasattr(pyspark_dcp, 'other'))"
    )
    assert in_a_new_python(code) == f"{found} False"
