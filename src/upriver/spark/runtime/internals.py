"""Uses of Spark's private interfaces, which may change with any version of Spark.

    properties of a task       `micro_batch`: the query and the batch that a sink's task writes
    the name of a class        `local_checkpoint_manager`: quicker checkpoints on a local disk
    the name of a module       `PUSHDOWN_WORKER`: loaded where filters may be pushed down
    the name of a package      `is_remote`: sessions of Spark Connect are of classes in it
    a logger and its words     `hide_replacements`: the log of what replaces a source
    the words of a failure     `task_errors`: what a task raised, in the text of Spark's error
    a function for Arrow       `arrow_schema_of`: the Arrow schema of the rows of a stream's writer
    an attribute of a context  `set_worker_python`: the interpreter of functions that are pickled
    how workers are started    `worker_python`: ``-m pyspark.daemon``, archives on PYTHONPATH
    where a job's archives are `find_archives`: not where Spark looks for them to plan a stream
    how rows get their state   `transform_with_state`: Spark's own asks for pandas, which rows
                               do not need
    an attribute of a context  `is_stopped`: sessions do not tell, but of Spark Connect
    how Java is started        `java_ignores_sigterm`: by a function that has no such option
    a function of the daemon   `worker_daemon`, a module of its own, from which workers are forked

``tests/spark/test_internals.py`` shows for each what breaks when it changes. For these reasons
pyproject.toml has an upper bound of Spark's version.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..._extras import extra
from ...errors import ConfigError, UpriverError
from .spark_versions import FIRST, LAST, has_filter_classes, installed, version_text

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, GroupedData, SparkSession
    from pyspark.sql.types import StructType

_SOURCES_LOGGER: Final = "org.apache.spark.sql.execution.datasources.DataSourceManager"
_REPLACED: Final = r"The data source .* replaced a (previously|statically) registered data source\."
#: A property of a Java process whose log is filtered.
_HIDDEN: Final = "upriver.hidesReplacements"

#: Spark imports this module in the worker where filters may be pushed down; it refuses a reader
#: that accepts filters elsewhere.
PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"
#: The package of Spark Connect's classes.
CONNECT: Final = "pyspark.sql.connect"

#: Properties of the tasks of a micro-batch: which query it is of, and its number.
_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"

#: What the errors of a task look like in the text of Spark's own: the last line of a traceback.
_TASK_ERROR: Final = re.compile(r"upriver\.[\w.]+\.([A-Z]\w+): (.+)")


def micro_batch() -> tuple[str, int]:
    """The id of the query and the number of the batch whose rows this task writes.

    Only the writer of a stream calls it. What ``foreachBatch`` writes has the writer of a batch,
    whatever properties its tasks have. ConfigError if Spark does not tell both: without them a
    batch that is repeated cannot be told from a new one.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    told = {
        name: context.getLocalProperty(name) if context is not None else None
        for name in (_QUERY, _BATCH)
    }
    query, batch = told[_QUERY], told[_BATCH]
    if query is None or batch is None:
        missing = " and ".join(name for name, value in told.items() if value is None)
        raise ConfigError(
            f"Spark {version_text(installed())} does not tell the tasks of this stream {missing}, "
            "so a repeated batch would be written twice: use a trigger with micro-batches, and "
            f"Spark {version_text(FIRST)} to {version_text(LAST)}"
        )
    return query, int(batch)


def task_errors(problem: Exception) -> list[tuple[str, str]]:
    """The errors of ours that a failure of Spark has in its text: name of the class, and message.

    Spark passes on only the text of what a task raised.
    """
    return _TASK_ERROR.findall(str(problem))


def as_ours(problem: Exception) -> UpriverError:
    """The error as one of ours: itself, or what Spark's text says of one, or its own text."""
    if isinstance(problem, UpriverError):
        return problem
    found = task_errors(problem)
    ours = UpriverError(found[-1][1] if found else f"{type(problem).__name__}: {problem}")
    ours.__cause__ = problem
    return ours


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """The Arrow schema of rows with Spark's schema."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema)


def is_remote(spark: SparkSession) -> bool:
    """Whether a session is one of Spark Connect: its driver is another process."""
    return type(spark).__module__.startswith(CONNECT)


def is_stopped(spark: SparkSession) -> bool:
    """Whether nothing can be run with a session any more."""
    if is_remote(spark):
        return bool(getattr(spark, "is_stopped", False))
    java = spark.sparkContext._jsc
    return java is None or bool(java.sc().isStopped())


def set_worker_python(context: SparkContext, python: str) -> None:
    """Has the functions that Spark pickles from now on run with this interpreter."""
    context.pythonExec = python


def local_checkpoint_manager() -> str:
    """The class that writes checkpoints to a local disk.

    Renames there are atomic, and this manager writes the two files of a batch in half of the time
    of the general one. It is not for object stores.
    """
    package = "org.apache.spark.sql.execution.streaming"
    if installed() >= (4, 1):
        package += ".checkpointing"
    return f"{package}.FileSystemBasedCheckpointFileManager"


def may_push_filters(option: str) -> bool:
    """Whether this process is one in which a reader may accept filters.

    ConfigError names the option that asks for it if this Spark has no such process. Spark plans a
    frame once, with the filters of its last use, and takes that plan for every use: a frame that is
    used twice has wrong rows. So filters are accepted only if the user asks for it.
    """
    if not has_filter_classes():
        raise ConfigError(f"{option} needs Spark 4.1 or later: leave it out")
    return PUSHDOWN_WORKER in sys.modules


def hide_replacements(spark: SparkSession) -> None:
    """Spark does not log any more that a source replaced one of the same name.

    It has found ours by itself before they are registered, and registers all sources once more for
    each streaming query, whose session is a copy. Spark Connect has no access to the log.
    """
    jvm = getattr(getattr(spark, "_sc", None), "_jvm", None)
    if jvm is None or jvm.System.getProperty(_HIDDEN):
        return
    jvm.System.setProperty(_HIDDEN, "true")  # once in each Java process
    log4j = jvm.org.apache.logging.log4j
    result = log4j.core.Filter.Result
    hidden = log4j.core.filter.RegexFilter.createFilter(
        _REPLACED, None, False, result.DENY, result.NEUTRAL
    )
    log4j.LogManager.getContext(False).getConfiguration().getLoggerConfig(
        _SOURCES_LOGGER
    ).addFilter(hidden)


@contextmanager
def java_ignores_sigterm() -> Iterator[None]:
    """Java that starts in this block ends when its parent does, and not by SIGTERM.

    Service managers send SIGTERM to all processes of a service. Java would end at once, before its
    parent has finished with it. Spark has it ignore SIGINT, for the same reason.
    """
    from pyspark import java_gateway

    original: Any = java_gateway.Popen  # type: ignore[attr-defined]

    def start(*given: Any, preexec_fn: Callable[[], None] | None = None, **more: Any) -> Any:
        def ignore() -> None:
            if preexec_fn is not None:
                preexec_fn()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

        return original(*given, preexec_fn=ignore, **more)

    java_gateway.Popen = start  # type: ignore[attr-defined, assignment]
    try:
        yield
    finally:
        java_gateway.Popen = original  # type: ignore[attr-defined]


def find_archives(context: SparkContext) -> None:
    """Lets the process that plans a stream import from the archives that were sent with the job.

    Spark looks for them in a directory of the stream, which has none.
    """
    from pyspark import SparkFiles

    private: Any = context
    archives = [SparkFiles.get(name) for name in private._python_includes]
    held = context.environment.get("PYTHONPATH", "").split(os.pathsep)
    wanted = dict.fromkeys(entry for entry in (*held, *archives) if entry)
    if wanted:
        context.environment["PYTHONPATH"] = os.pathsep.join(wanted)


_WRAPPER: Final = """\
#!/bin/sh
# Spark puts archives of itself first on the path of its workers. They hold no compiled modules,
# so every worker would compile them anew; the interpreter below has them installed.
set -f
IFS=:
kept=
for entry in $PYTHONPATH; do
  case $entry in
    *pyspark.zip | *py4j*src.zip | *.jar) ;;
    *) kept="${{kept:+$kept:}}$entry" ;;
  esac
done
unset IFS
export PYTHONPATH="$kept"
# Spark has a setting for its daemon, but does not follow it everywhere.
if [ "$1 $2" = "-m pyspark.daemon" ]; then
  shift 2
  set -- -m upriver.spark.runtime.worker_daemon "$@"
fi
exec {python} "$@"
"""


def transform_with_state(grouped: GroupedData, processor: Any, schema: StructType) -> DataFrame:
    """``GroupedData.transformWithState`` in append mode without timers, and without pandas."""
    if installed() < (4, 1):
        raise ConfigError("Spark before 4.1 has no state for rows in Python; use a later one")
    with extra("spark"):
        import_module("google.protobuf")  # Spark's workers need it, and say so less clearly
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.stateful_processor_util import TransformWithStateInPandasUdfUtils
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    grouped_: Any = grouped
    frame, no_timers = grouped_._df, "None"
    function: Any = UserDefinedFunction(
        TransformWithStateInPandasUdfUtils(processor, no_timers).transformWithStateUDF,
        returnType=schema,
        evalType=PythonEvalType.SQL_TRANSFORM_WITH_STATE_PYTHON_ROW_UDF,
    )
    column = function(*(frame[name] for name in frame.columns))
    session = grouped_.session
    return DataFrame(
        grouped_._jgd.transformWithStateInPySpark(
            column._jc,
            session._jsparkSession.parseDataType(schema.json()),
            "Append",
            no_timers,
            None,
            "",
        ),
        session,
    )


def worker_python(directory: Path | None = None) -> str:
    """The interpreter for Spark's workers: this one, behind a script as described above.

    The script is written to ``directory``, by default in the user's cache. If it cannot be written
    or executed, or Spark itself is imported from an archive, the plain interpreter is returned.
    """
    import pyspark

    if not Path(pyspark.__file__).is_file():
        return sys.executable
    content = _WRAPPER.format(python=shlex.quote(sys.executable))
    # one file per interpreter, so that two interpreters do not overwrite each other's
    name = f"spark-python-{hashlib.sha256(content.encode()).hexdigest()[:16]}"
    for place in (directory or _cache_directory(), None):
        try:
            script = (_own(place) if place is not None else _passing_directory()) / name
            _write_if_different(script, content)
        except OSError:
            continue
        if os.access(script, os.X_OK):
            return str(script)
    return sys.executable


def _cache_directory() -> Path | None:
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "upriver"
    except RuntimeError:  # a user without a home
        return None


def _own(directory: Path) -> Path:
    """Creates a directory, and checks that other users cannot write to it."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = directory.stat()
    if state.st_uid != os.geteuid() or state.st_mode & 0o022:
        raise PermissionError(f"other users may write to {directory}")
    return directory


def _passing_directory() -> Path:
    """A temporary directory that is removed when this process ends."""
    directory = tempfile.mkdtemp(prefix="upriver-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(directory)


def _write_if_different(script: Path, content: str) -> None:
    if script.is_file() and script.read_text() == content:
        return
    handle, draft = tempfile.mkstemp(dir=script.parent, prefix=f"{script.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(content)
        os.chmod(draft, 0o700)
        os.replace(draft, script)
    except OSError:
        os.unlink(draft)
        raise
