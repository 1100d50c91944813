"""Starts Spark with the settings that the source and the sink want, or adapts one that runs.

A session of one machine needs nothing but ``pip install``: a Java is found, the Python workers are
the running interpreter, their path is cleared of what makes each of them start slowly, and they
end quietly (`daemon`). On a cluster only what holds anywhere is set. What the caller configures
always wins. It knows the source by name only.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .java import ensure_java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register", "session", "settings", "start", "worker_python"]

_log = logging.getLogger("upriver.spark")

_MASTER: Final = "spark.master"

#: What any session wants. Unix sockets save each Python task the tens of milliseconds that a
#: local TCP connection waits for delayed acknowledgements.
_ANYWHERE: Final = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
}
#: What a session of one machine wants besides.
_ON_ONE_MACHINE: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_DEFAULT_FILE_SYSTEM: Final = "spark.hadoop.fs.defaultFS"
_CHECKPOINT_MANAGER: Final = "spark.sql.streaming.checkpointFileManagerClass"
#: Renames of a local disk are atomic, and this one writes the two files of a batch in half of the
#: time that the general one takes. It is not for object stores.
_LOCAL_MANAGER: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)

_THREADS: Final = re.compile(r"local(?:\[(\d+|\*)(?:\s*,\s*\d+)?\])?")
_PROCESSES: Final = re.compile(r"local-cluster\[(\d+)\s*,\s*(\d+)\s*,\s*\d+\]")

#: Variables by which somebody else has said where Spark runs.
_MASTER_IS_DECIDED: Final = ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE", "MASTER")

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
  set -- -m upriver.spark.daemon "$@"
fi
exec {python} "$@"
"""


def session(
    app: str = "upriver",
    *,
    master: str | None = None,
    config: Mapping[str, str | int | bool] | None = None,
) -> SparkSession:
    """The running Spark session, or a new one, with the source ``dcp`` registered.

    A new one runs on this machine (``local[*]``) unless ``master`` or the environment says
    otherwise. ``config`` is Spark's own and wins over our settings. In a session that runs already
    only what can still be changed is changed; what cannot is told in the log.
    """
    spark = start(app, master=master, config=config)
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Makes the format ``dcp`` known to a session, for reading and for writing."""
    from .source import DcpDataSource

    spark.dataSource.register(DcpDataSource)


def start(
    app: str = "upriver",
    *,
    master: str | None = None,
    config: Mapping[str, str | int | bool] | None = None,
) -> SparkSession:
    """What `session` does, but for the registration of the source."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    given = {name: _text(value) for name, value in (config or {}).items()}
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
        given[_MASTER] = "local[*]"
    builder = SparkSession.builder.appName(app)
    for name, value in settings(given).items():
        builder = builder.config(name, value)
    with _environment(_variables(given)):
        return builder.getOrCreate()


def settings(config: Mapping[str, str]) -> dict[str, str]:
    """Everything that is set in a new session for which the caller wants ``config``."""
    chosen = dict(_ANYWHERE)
    cores = _local_cores(config.get(_MASTER, ""))
    if cores:
        chosen |= _ON_ONE_MACHINE
        # as many as can run at once: every task more costs its start and wins nothing
        chosen["spark.sql.shuffle.partitions"] = str(cores)
        if config.get(_DEFAULT_FILE_SYSTEM, "file:").startswith("file:"):
            chosen[_CHECKPOINT_MANAGER] = _LOCAL_MANAGER
    return {**chosen, **config}


def worker_python(directory: Path | None = None) -> str:
    """The interpreter for Spark's workers: this one, behind a script as described above.

    The script is kept in ``directory``, by default in the user's cache. Where it cannot be kept or
    run, or Spark itself comes from an archive, it is the plain interpreter.
    """
    import pyspark

    if not Path(pyspark.__file__).is_file():
        return sys.executable
    content = _WRAPPER.format(python=shlex.quote(sys.executable))
    # an interpreter has its own file, so that two of them never fight over one
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


def _adapt(spark: SparkSession, given: Mapping[str, str]) -> None:
    """Changes what a running session lets us change, and says what it does not.

    Only what the source needs and what the caller asked for: the rest is its owner's business.
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
    """The environment that Spark is started in, without what is set already."""
    variables = {}
    if not any(name in os.environ for name in ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE")):
        variables["JAVA_HOME"] = str(ensure_java_home())
    if _local_cores(given.get(_MASTER, "")):
        if "SPARK_LOCAL_IP" not in os.environ:
            variables["SPARK_LOCAL_IP"] = "127.0.0.1"
        if "PYSPARK_PYTHON" not in os.environ and sys.executable:
            variables["PYSPARK_PYTHON"] = worker_python()
    return variables


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Spark reads these once, while it starts; nobody else shall be changed by them."""
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
    """How many tasks of a master on this machine run at once; 0 for any other master."""
    if threads := _THREADS.fullmatch(master):
        if threads[1] == "*":
            return os.cpu_count() or 1
        return int(threads[1] or 1)
    if processes := _PROCESSES.fullmatch(master):
        return int(processes[1]) * int(processes[2])
    return 0


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _cache_directory() -> Path | None:
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "upriver"
    except RuntimeError:  # a user without a home
        return None


def _own(directory: Path) -> Path:
    """A directory that nobody else can put a script into."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = directory.stat()
    if state.st_uid != os.geteuid() or state.st_mode & 0o022:
        raise PermissionError(f"others may write to {directory}")
    return directory


def _passing_directory() -> Path:
    """A new directory that goes when this process ends."""
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
