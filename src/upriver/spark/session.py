"""Starts a Spark session configured for the source and the sink, or adapts a running one.

A local session needs only ``pip install``: Java is found, the Python workers use the running
interpreter, archives that slow their start are removed from their path, and they end without a
traceback (`worker_daemon`). On a cluster only settings that hold anywhere are set. The caller's
configuration always has precedence. A session that somebody else started gets what it still can:
`register` has the workers of a local one run with this interpreter.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from .._extras import extra
from ..settings.setting import text_of
from .runtime.find_java import ensure_java_home
from .runtime.internals import (
    find_archives,
    hide_replacements,
    is_remote,
    local_checkpoint_manager,
    set_worker_python,
    worker_python,
)
from .runtime.spark_versions import require_supported

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("upriver.spark")

_MASTER: Final = "spark.master"
#: The interpreter of workers. Spark itself heeds it only in `spark-submit`.
_PYTHON: Final = "spark.pyspark.python"

#: Settings of any session. Unix sockets save each Python task the tens of milliseconds that a
#: local TCP connection waits for delayed acknowledgements.
_ANYWHERE: Final = {"spark.python.unix.domain.socket.enabled": "true"}
#: Additional settings of a local session.
_ON_ONE_MACHINE: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_DEFAULT_FILE_SYSTEM: Final = "spark.hadoop.fs.defaultFS"
_CHECKPOINT_MANAGER: Final = "spark.sql.streaming.checkpointFileManagerClass"

_THREADS: Final = re.compile(r"local(?:\[(\d+|\*)(\s*,\s*\d+)?\])?")
_PROCESSES: Final = re.compile(r"local-cluster\[(\d+)\s*,\s*(\d+)\s*,\s*\d+\]")

#: How often a task is tried, as on a cluster. Local masters try once, and a Python worker may not
#: start in time on a busy machine ("failed to connect back").
_ATTEMPTS: Final = 4

#: Environment variables that configure where Spark runs.
_MASTER_IS_DECIDED: Final = ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE", "MASTER")


def session(
    app: str = "upriver",
    *,
    master: str | None = None,
    config: Mapping[str, str | int | bool] | None = None,
) -> SparkSession:
    """The running Spark session, or a new one, with the source ``dcp`` registered.

    A new one runs on this machine (``local[*,4]``) unless ``master`` or the environment says
    otherwise. ``config`` has settings of Spark, which override the defaults here. In a running
    session only settings that can still be changed are changed; the others are logged.
    """
    spark = start(app, master=master, config=config)
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Registers the formats ``dcp`` and ``upriver-table`` in a session.

    The Python workers of a local session run with this interpreter from then on, unless
    ``spark.pyspark.python`` or ``PYSPARK_PYTHON`` names another one. On a cluster one of them names
    an interpreter that every executor has. Files of ``addPyFile`` are to be added before.
    """
    require_supported()
    with extra("spark"):
        from pyspark.errors import AnalysisException

        from .data_source import DcpDataSource
        from .table_reader import TableSource

    use_this_interpreter(spark)
    if not is_remote(spark):
        find_archives(spark.sparkContext)
    hide_replacements(spark)
    for source in (DcpDataSource, TableSource):
        try:
            spark.dataSource.register(source)
        except AnalysisException as problem:
            # Spark 4.0 keeps what it has found by itself, which is the same source
            if problem.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise


def use_this_interpreter(spark: SparkSession) -> None:
    """Corrects the interpreter of a session that was started without `start`.

    Spark takes ``python3`` from the path, which is another one if this interpreter's virtual
    environment is not activated. It is asked for by each function that Spark pickles from now on.
    """
    if is_remote(spark):
        return
    context = spark.sparkContext
    if chosen := context.getConf().get(_PYTHON):
        set_worker_python(context, chosen)
    elif (
        not os.environ.get("PYSPARK_PYTHON")
        and sys.executable
        and _local_cores(context.master or "")
    ):
        set_worker_python(context, worker_python())


def start(
    app: str = "upriver",
    *,
    master: str | None = None,
    config: Mapping[str, str | int | bool] | None = None,
) -> SparkSession:
    """As `session`, without registering the source."""
    require_supported()
    with extra("spark"):
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession

    given = {name: text_of(value) for name, value in (config or {}).items()}
    if master is not None:
        given[_MASTER] = master
    try:
        running = SparkSession.active()
    except PySparkRuntimeError:
        pass
    else:
        _adapt(running, given)
        return running
    if _MASTER not in given and not any(name in os.environ for name in _MASTER_IS_DECIDED):
        given[_MASTER] = retrying("local[*]")
    builder = SparkSession.builder.appName(app)
    for name, value in settings(given).items():
        builder = builder.config(name, value)
    with _environment(_variables(given)):
        return builder.getOrCreate()


def retrying(master: str) -> str:
    """The same master, with tasks that are tried again if it is a local one that does not say."""
    found = _THREADS.fullmatch(master)
    if found is None or found[2]:
        return master
    return f"local[{found[1] or 1},{_ATTEMPTS}]"


def settings(config: Mapping[str, str]) -> dict[str, str]:
    """All settings of a new session with the caller's ``config``."""
    chosen = dict(_ANYWHERE)
    cores = _local_cores(config.get(_MASTER, ""))
    if cores:
        chosen |= _ON_ONE_MACHINE
        # as many shuffle partitions as tasks run at once: more cost their start and gain nothing
        chosen["spark.sql.shuffle.partitions"] = str(cores)
        if config.get(_DEFAULT_FILE_SYSTEM, "file:").startswith("file:"):
            chosen[_CHECKPOINT_MANAGER] = local_checkpoint_manager()
    return {**chosen, **config}


def _adapt(spark: SparkSession, given: Mapping[str, str]) -> None:
    """Changes the settings of a running session that can be changed, and logs the others.

    Only settings that the source needs or the caller gave are changed.
    """
    fixed = []
    for name, value in {**_ANYWHERE, **given}.items():
        if spark.conf.get(name, None) == value:
            continue
        if spark.conf.isModifiable(name):
            spark.conf.set(name, value)
        else:
            fixed.append(f"{name}={value}")
    if fixed:
        _log.warning("Spark runs already; these take effect only in a new session: %s", fixed)


def _variables(given: Mapping[str, str]) -> dict[str, str]:
    """Environment variables for Spark's start, without those that are set already."""
    variables = {}
    if not any(name in os.environ for name in ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE")):
        variables["JAVA_HOME"] = str(ensure_java_home())
    local = _local_cores(given.get(_MASTER, ""))
    if local and "SPARK_LOCAL_IP" not in os.environ:
        variables["SPARK_LOCAL_IP"] = "127.0.0.1"
    if _PYTHON in given:
        variables["PYSPARK_PYTHON"] = given[_PYTHON]
    elif local and "PYSPARK_PYTHON" not in os.environ and sys.executable:
        variables["PYSPARK_PYTHON"] = worker_python()
    return variables


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets variables during Spark's start only: other programs must not inherit them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _local_cores(master: str) -> int:
    """The number of concurrent tasks of a local master; 0 for any other master."""
    if threads := _THREADS.fullmatch(master):
        if threads[1] == "*":
            return os.cpu_count() or 1
        return int(threads[1] or 1)
    if processes := _PROCESSES.fullmatch(master):
        return int(processes[1]) * int(processes[2])
    return 0
