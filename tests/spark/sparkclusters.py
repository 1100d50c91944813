"""Spark clusters that share nothing with their driver but the network, for tests.

Executors have an interpreter with the packages that Upriver needs, and without Upriver: what they
know of it comes with the job.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, PyZipFile

import keeper
import pyspark
from sparkkit import PATIENCE
from waiting import until

import upriver
from upriver.spark.runtime.find_java import ensure_java_home

SPARK_HOME = Path(pyspark.__file__).parent
PROGRAM = Path(__file__).with_name("cluster_program.py")

_CLASS = SPARK_HOME / "bin" / "spark-class"
_HERE = ("--host", "127.0.0.1", "--webui-port", "0")
_OURS = re.compile(r"upriver|__editable__|pyspark_dcp")


def executor_python(directory: Path) -> Path:
    """An interpreter with all packages of this one except Upriver."""
    venv.create(directory, symlinks=True)
    (packages,) = directory.glob("lib/python*/site-packages")
    for place in (Path(pyspark.__file__).parent.parent, Path(os.__file__).parent / "site-packages"):
        if place.is_dir():
            for entry in place.iterdir():
                there = packages / entry.name
                if not _OURS.match(entry.name) and not there.exists():
                    there.symlink_to(entry)
    python = directory / "bin" / "python"
    found = subprocess.run([python, "-c", "import upriver"], capture_output=True, text=True)
    assert "No module named 'upriver'" in found.stderr, found.stderr
    return python


def archive(directory: Path) -> Path:
    """The package as it is sent with a job."""
    path = directory / "upriver.zip"
    with PyZipFile(str(path), "w", ZIP_DEFLATED) as zipped:
        zipped.writepy(str(Path(upriver.__file__).parent))
    return path


class Program:
    """A driver: `cluster_program.py` in a process of its own, which answers orders."""

    def __init__(self, home: Path, settings: Mapping[str, Any]) -> None:
        home.mkdir()
        self._log = home / "log"
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in ("PYSPARK_PYTHON", "PYTHONPATH") and not name.startswith("SPARK_")
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(PROGRAM), json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=home,
                env={**environment, "SPARK_LOCAL_IP": "127.0.0.1"},
                start_new_session=True,
                text=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def order(self, name: str, **more: Any) -> Any:
        """Has it do something, and returns what it answers."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": name, **more}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"{name} failed:\n{self.log}"
        return json.loads(answer)

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")[-8000:]

    def end(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        try:
            self._process.wait(PATIENCE)
        finally:
            kill_group(self._process.pid)


@contextmanager
def driver(home: Path, **settings: Any) -> Iterator[Program]:
    """A driver whose processes end with the block."""
    program = Program(home, settings)
    try:
        yield program
    finally:
        program.end()


class Standalone:
    """A master and workers, each a Java process with a directory of its own."""

    def __init__(self, home: Path) -> None:
        home.mkdir()
        self._home = home
        self._environment = {
            "PATH": os.environ["PATH"],
            "JAVA_HOME": str(ensure_java_home()),
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "HOME": str(home),
            keeper.VARIABLE: os.environ.get(keeper.VARIABLE, ""),
        }
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        self._started = 0
        self._stack = ExitStack()
        self.url = ""

    def __enter__(self) -> Standalone:
        log = self._start("master", "master.Master", "--port", "0")
        self.url = self._wait_for(log, r"Starting Spark master at (spark://\S+)")
        return self

    def __exit__(self, *problem: object) -> None:
        self._stack.close()

    def add_worker(self) -> int:
        """Starts a worker with one core; returns its process id."""
        self._started += 1
        name = f"worker-{self._started}"
        place = self._home / name
        options = ("--cores", "1", "--memory", "1g", "--work-dir", str(place))
        log = self._start(name, "worker.Worker", *options, self.url)
        self._wait_for(log, r"(Successfully registered with master)")
        return max(self._workers)

    def kill(self, worker: int) -> None:
        """Kills a worker; its executors end by themselves."""
        process = self._workers.pop(worker)
        process.kill()
        process.wait()

    def _start(self, name: str, of: str, *options: str) -> Path:
        log = self._home / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [_CLASS, f"org.apache.spark.deploy.{of}", *_HERE, *options],
                stdout=output,
                stderr=output,
                cwd=self._home,
                env=self._environment,
                start_new_session=True,
            )
        self._stack.callback(_end, process)
        if of == "worker.Worker":
            self._workers[process.pid] = process
        return log

    def _wait_for(self, log: Path, wanted: str) -> str:
        def said() -> str:
            return log.read_text(errors="replace")

        return until(lambda: re.search(wanted, said()), what=lambda: said()[-3000:])[1]


def executors(ancestor: int) -> list[int]:
    """The process ids of the executors that a process has started."""
    return [
        pid for pid in _descendants(ancestor) if "CoarseGrainedExecutorBackend" in _command(pid)
    ]


def _descendants(ancestor: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:  # it has ended meanwhile
                continue
            parents.setdefault(parent, []).append(int(entry.name))
    found = [ancestor]
    for pid in found:
        found.extend(parents.get(pid, ()))
    return sorted(found[1:])


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def kill_group(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes]) -> None:
    kill_group(process.pid)
    process.wait()
