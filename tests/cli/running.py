"""Runs the command line as a process, and gives up on one that hangs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

#: Seconds after which a process is taken for stuck; never reached when all is well.
PATIENCE = 300.0

_Words = str | Path | int


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONUNBUFFERED": "", **more}


def command(*words: _Words) -> list[str]:
    return [sys.executable, "-m", "upriver", *map(str, words)]


def finished(*words: _Words, stdout: Any = subprocess.PIPE, **more: str) -> Any:
    """A process that has ended by itself."""
    return subprocess.run(
        command(*words),
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=PATIENCE,
        env=environment(**more),
        check=False,
    )


class Running:
    """A process whose lines are read one by one."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    @property
    def out(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    @property
    def err(self) -> IO[str]:
        assert self.process.stderr is not None
        return self.process.stderr

    def line(self) -> str:
        line = self.out.readline()
        assert line, f"it ended with {self.process.wait()}: {self.err.read()}"
        return line

    def record(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.line())
        return told

    def records(self, count: int) -> list[dict[str, Any]]:
        return [self.record() for _ in range(count)]

    def stop(self, number: signal.Signals = signal.SIGINT) -> tuple[int, str, str]:
        """The status, and what else was on stdout and stderr."""
        self.process.send_signal(number)
        out, err = self.process.communicate()
        return self.process.returncode, out, err


@contextmanager
def running(*words: _Words, **streams: Any) -> Iterator[Running]:
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    with subprocess.Popen(command(*words), text=True, env=environment(), **streams) as process:
        guard = threading.Timer(PATIENCE, process.kill)
        guard.start()
        try:
            yield Running(process)
        finally:
            guard.cancel()
            process.kill()


def records(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.split("\n")[:-1]]
