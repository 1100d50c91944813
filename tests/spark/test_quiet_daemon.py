"""Workers that Spark closes because they were idle end without a word."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from upriver.spark.runtime.internals import worker_python


def said_by(python: str, directory: Path) -> str:
    """What a daemon's worker prints when it is closed as Spark closes idle ones."""
    daemon = subprocess.Popen(
        [python, "-m", "pyspark.daemon", "pyspark.worker"],
        env={
            **os.environ,
            "PYTHON_UNIX_DOMAIN_ENABLED": "true",
            "PYTHON_WORKER_FACTORY_SOCK_DIR": str(directory),
            "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
            "SPARK_REUSE_WORKER": "1",
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        assert daemon.stderr is not None
        (size,) = struct.unpack("!i", daemon.stdout.read(4))
        path = daemon.stdout.read(size).decode()
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(path)
            (worker,) = struct.unpack("!i", link.recv(4, socket.MSG_WAITALL))
        while Path(f"/proc/{worker}").exists():
            os.sched_yield()
        daemon.stdin.close()  # how Spark ends the daemon itself
        return daemon.stderr.read().decode()


def test_a_closed_worker_prints_no_traceback() -> None:
    """With Spark's own daemon it does; the day it does not, ours can go."""
    with tempfile.TemporaryDirectory() as name:  # a short path, as sockets want it
        directory = Path(name)
        assert "BrokenPipeError" in said_by(sys.executable, directory)
        assert said_by(worker_python(directory / "bin"), directory) == ""
