"""What breaks when Spark changes what is not its public interface: each test says what is lost."""

from __future__ import annotations

import inspect
import os
import tomllib
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pyspark
import pytest
from packaging.requirements import Requirement
from pyspark import daemon
from pyspark.sql import SparkSession

from upriver.spark.runtime.internals import PUSHDOWN_WORKER, local_checkpoint_manager
from upriver.spark.runtime.spark_versions import has_filter_classes

PYPROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())


def test_the_installed_spark_is_within_the_bounds_and_they_have_an_upper_one() -> None:
    extra = map(Requirement, PYPROJECT["project"]["optional-dependencies"]["spark"])
    [spark] = [line for line in extra if line.name == "pyspark"]
    assert version("pyspark") in spark.specifier
    assert {one.operator for one in spark.specifier} == {">=", "<"}


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


def test_the_function_that_the_daemon_wraps_is_called_as_it_was() -> None:
    """Otherwise no worker starts: drop `spark.worker_daemon`, which only silences a message."""
    assert list(inspect.signature(daemon.worker).parameters) == ["sock", "authenticated"]
    assert list(inspect.signature(daemon.manager).parameters) == []


def test_workers_are_forked_from_our_daemon(spark: SparkSession) -> None:
    """Otherwise Spark starts them in another way: the wrapper's case for the daemon has no use."""

    def parent(_: int) -> str:
        return Path(f"/proc/{os.getppid()}/cmdline").read_bytes().decode()

    command = spark.sparkContext.parallelize([0], 1).map(parent).first()
    assert "upriver.spark.runtime.worker_daemon" in command.split("\0")
