"""What breaks when Spark changes what is not its public interface: each test says what is lost."""

from __future__ import annotations

import inspect
import os
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pyarrow as pa
import pyspark
import pytest
from packaging.requirements import Requirement
from pyspark import TaskContext, daemon, java_gateway
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from upriver.errors import ConfigError
from upriver.files.storage import StorageFailed
from upriver.spark.executors import SparkExecutors
from upriver.spark.runtime.internals import (
    CONNECT,
    PUSHDOWN_WORKER,
    arrow_schema_of,
    find_archives,
    is_remote,
    java_ignores_sigterm,
    local_checkpoint_manager,
    micro_batch,
    set_worker_python,
    task_errors,
    transform_with_state,
)
from upriver.spark.runtime.spark_versions import has_filter_classes, installed
from upriver.spark.session import register

#: The logger of Java's class that registers formats.
DATA_SOURCES = "org.apache.spark.sql.execution.datasources.DataSourceManager"
PYPROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())


def test_the_installed_spark_is_within_the_bounds_and_they_have_an_upper_one() -> None:
    extra = map(Requirement, PYPROJECT["project"]["optional-dependencies"]["spark"])
    [spark] = [line for line in extra if line.name == "pyspark"]
    assert version("pyspark") in spark.specifier
    assert {one.operator for one in spark.specifier} == {">=", "<"}


# ---- the tasks of a stream -------------------------------------------------------------------


def test_the_tasks_of_a_stream_are_told_their_query_and_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Otherwise every stream into a bucket fails: find out how Spark names both now."""
    told = udf(lambda _: " ".join(map(str, micro_batch())), "string", useArrow=False)
    source = tmp_path / "source"
    source.mkdir()
    frame = spark.readStream.schema("a string").option("maxFilesPerTrigger", 1).json(str(source))
    sink = frame.select(told("a").alias("told")).writeStream.format("memory").queryName("told")
    for name in ("first", "second"):
        (source / f"{name}.json").write_text('{"a": "b"}')
    query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    found = {row.told for row in spark.sql("SELECT told FROM told").collect()}
    assert found == {f"{query.id} 0", f"{query.id} 1"}


@pytest.mark.parametrize(
    ("told", "missing"),
    [
        ({"sql.streaming.queryId": "q"}, "streaming.sql.batchId"),
        ({"streaming.sql.batchId": "7"}, "sql.streaming.queryId"),
        ({}, "sql.streaming.queryId and streaming.sql.batchId"),
    ],
)
def test_a_task_that_is_not_told_its_query_and_batch_says_so(
    told: dict[str, str], missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Context:
        def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - Spark's name
            return told.get(name)

    monkeypatch.setattr(TaskContext, "get", lambda: Context())
    with pytest.raises(ConfigError, match=f"does not tell the tasks of this stream {missing}, so"):
        micro_batch()


def test_there_is_no_micro_batch_outside_of_a_task() -> None:
    with pytest.raises(ConfigError, match="does not tell the tasks of this stream"):
        micro_batch()


def test_the_schema_of_a_stream_becomes_one_of_arrow() -> None:
    """Otherwise no stream of Spark 4.0, which hands over rows, is written into a bucket."""
    schema = StructType().add("key", BinaryType()).add("value", StringType())
    schema.add("at", StructType().add("seqno", LongType()))
    at = pa.struct([pa.field("seqno", pa.int64())])
    wanted = [("key", pa.binary()), ("value", pa.string()), ("at", at)]
    assert arrow_schema_of(schema).equals(pa.schema([pa.field(*one) for one in wanted]))


def test_the_error_of_a_task_is_found_in_the_text_of_sparks(spark: SparkSession) -> None:
    """Otherwise a pipeline fails with a traceback of Java, and tries no failed store again."""

    class Failing:
        def run(self) -> None:
            raise StorageFailed("the disk is full")

    with pytest.raises(StorageFailed, match=r"^the disk is full$"):
        SparkExecutors(spark).run([Failing()])

    def fail(_: int) -> None:
        raise ConfigError("the option is wrong")

    with pytest.raises(Exception, match="the option is wrong") as caught:
        spark.sparkContext.parallelize([0], 1).map(fail).collect()
    assert ("ConfigError", "the option is wrong") in task_errors(caught.value)


# ---- names in Spark --------------------------------------------------------------------------


def test_the_class_for_checkpoints_on_a_local_disk_exists() -> None:
    """Without it no streaming query of a local session starts: leave Spark's own manager then."""
    file = f"{local_checkpoint_manager().replace('.', '/')}.class"
    [jar] = (Path(pyspark.__file__).parent / "jars").glob("spark-sql_*.jar")
    with ZipFile(jar) as classes:
        assert file in classes.namelist()


@pytest.mark.skipif(not has_filter_classes(), reason="Spark 4.0 pushes no filters down")
def test_the_module_that_marks_push_down_exists() -> None:
    """Without it filters are no longer pushed down: reads are right, but read everything."""
    assert find_spec(PUSHDOWN_WORKER) is not None


def test_a_source_in_python_is_still_told_of_filters_only(spark: SparkSession) -> None:
    """Otherwise columns or limits reach a source: let the option `columns` choose itself then."""
    package = "org.apache.spark.sql.execution.datasources.v2.python"
    jvm: Any = spark.sparkContext._jvm
    found = jvm.org.apache.spark.util.Utils.classForName(
        f"{package}.PythonScanBuilder", True, True
    ).getInterfaces()
    names = {one.getSimpleName() for one in found}
    assert names == ({"SupportsPushDownFilters"} if has_filter_classes() else {"ScanBuilder"})


def test_sessions_of_spark_connect_are_of_its_package(spark: SparkSession) -> None:
    """Otherwise a remote session is asked for a SparkContext, which it does not have."""
    # not imported, for which it needs pandas
    module = f"{CONNECT.replace('.', '/')}/session.py"
    assert "\nclass SparkSession:" in (Path(pyspark.__file__).parents[1] / module).read_text()
    assert not is_remote(spark)


def test_a_source_that_replaces_another_is_not_logged(spark: SparkSession) -> None:
    """Otherwise each start of a streaming query prints a warning for each of our formats."""
    with warnings_of(spark, DATA_SOURCES) as written:
        for _ in range(2):
            register(spark)
        java: Any = spark._jvm
        java.org.apache.logging.log4j.LogManager.getLogger(DATA_SOURCES).warn("others stay")
    assert written.toString().splitlines() == ["others stay"]


@contextmanager
def warnings_of(spark: SparkSession, logger: str) -> Iterator[Any]:
    """What a logger of Java's process writes meanwhile."""
    java: Any = spark._jvm
    log4j = java.org.apache.logging.log4j
    root = log4j.LogManager.getContext(False).getConfiguration().getRootLogger()
    before = log4j.LogManager.getLogger(logger).getLevel()
    written = java.java.io.StringWriter()
    layout = log4j.core.layout.PatternLayout.createDefaultLayout()
    appender = log4j.core.appender.WriterAppender.createAppender(
        layout, None, written, "written", False, True
    )
    appender.start()
    root.addAppender(appender, None, None)
    log4j.core.config.Configurator.setLevel(logger, log4j.Level.WARN)
    try:
        yield written
    finally:
        log4j.core.config.Configurator.setLevel(logger, before)
        root.removeAppender("written")


@pytest.mark.skipif(installed() < (4, 1), reason="Spark 4.0 has no state for rows in Python")
def test_rows_get_a_state_without_pandas(spark: SparkSession) -> None:
    """Otherwise `retract` does not start: take Spark's own then, and ask for pandas."""
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Counts(StatefulProcessor):
        def init(self, handle: Any) -> None:
            pass

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
            yield from rows

        def close(self) -> None:
            pass

    rows = spark.readStream.format("rate").load()
    schema = StructType().add("value", LongType()).add("total", LongType())
    counted = transform_with_state(rows.groupBy("value"), Counts(), schema)
    assert counted.isStreaming
    assert counted.schema == schema


# ---- workers ---------------------------------------------------------------------------------


def test_functions_run_with_the_interpreter_of_their_context(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Otherwise the workers of a session that somebody else started are `python3` of the path."""
    context = spark.sparkContext
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nMARKED=yes exec "{context.pythonExec}" "$@"\n')
    python.chmod(0o700)
    before = context.pythonExec
    set_worker_python(context, str(python))
    try:
        found = context.parallelize([0], 1).map(lambda _: os.environ.get("MARKED")).first()
    finally:
        set_worker_python(context, before)
    assert found == "yes"


def test_the_process_that_plans_a_stream_imports_from_archives_of_the_job(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise no stream starts on a cluster that gets Upriver by ``--py-files``."""
    from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

    class Reader(SimpleDataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
            return {"at": import_module("sent_with_the_job").START}

        def read(self, start: dict[str, int]) -> Any:
            return iter([(start["at"],)] if start["at"] == 7 else []), {"at": 8}

        def readBetweenOffsets(self, start: Any, end: Any) -> Any:  # noqa: N802 - Spark's name
            return iter([(7,)])

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "sent"

        def schema(self) -> str:
            return "at int"

        def simpleStreamReader(self, schema: StructType) -> Reader:  # noqa: N802 - Spark's name
            return Reader()

    with ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("sent_with_the_job.py", "START = 7\n")
    context: Any = spark.sparkContext
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(context, "_python_includes", list(context._python_includes))
    monkeypatch.setattr(context, "environment", dict(context.environment))
    context.addPyFile(str(tmp_path / "archive.zip"))
    find_archives(context)
    spark.dataSource.register(Source)
    stream = spark.readStream.format("sent").load().writeStream.format("memory").queryName("sent")
    query = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert [row.at for row in spark.sql("SELECT at FROM sent").collect()] == [7]


def test_the_function_that_the_daemon_wraps_is_called_as_it_was() -> None:
    """Otherwise no worker starts: drop `worker_daemon`, which only silences a message."""
    assert list(inspect.signature(daemon.worker).parameters) == ["sock", "authenticated"]
    assert list(inspect.signature(daemon.manager).parameters) == []


def test_workers_are_forked_from_our_daemon(spark: SparkSession) -> None:
    """Otherwise Spark starts them in another way: the wrapper's case for the daemon has no use."""

    def parent(_: int) -> str:
        return Path(f"/proc/{os.getppid()}/cmdline").read_bytes().decode()

    command = spark.sparkContext.parallelize([0], 1).map(parent).first()
    assert "upriver.spark.runtime.worker_daemon" in command.split("\0")


# ---- how Java is started -------------------------------------------------------------------


def test_java_is_started_by_a_function_of_the_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it Java would take SIGTERM of a service manager, and commands end with its lines."""
    started: list[Any] = []

    def start(*given: Any, **more: Any) -> None:
        started.append(more["preexec_fn"])
        raise OSError("that is enough")

    monkeypatch.setattr(java_gateway, "Popen", start)
    launch: Any = java_gateway.launch_gateway
    with java_ignores_sigterm(), pytest.raises(OSError, match="enough"):
        launch()
    with pytest.raises(OSError, match="enough"):
        launch()
    ours, sparks = started
    assert ours.__module__ == java_ignores_sigterm.__module__
    assert sparks.__module__ == java_gateway.__name__
