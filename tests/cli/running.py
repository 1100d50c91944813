"""Runs the command line: in this process, or as one of its own that is given up if it hangs."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any
from unittest import mock

from upriver.cli.main import main

#: Seconds after which a process is taken for stuck; never reached when all is well.
PATIENCE = 600.0

_Words = str | Path | int


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONUNBUFFERED": "", **more}


def command(*words: _Words) -> list[str]:
    return [sys.executable, "-m", "upriver", *map(str, words)]


class _Stream(io.TextIOWrapper):
    """What a command writes to, in a file as after a shell's redirection."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file, encoding="utf-8", write_through=True)
        self._file = file

    def text(self) -> str:
        self.flush()
        self._file.seek(0)
        return self._file.read().decode()


def finished(*words: _Words, **more: str) -> subprocess.CompletedProcess[str]:
    """A command that has ended, in this process: a process of its own takes a second to start.

    What threads log that were there before, such as those of a server, is not the command's.
    """
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    others = {one.ident for one in threading.enumerate()} - {threading.get_ident()}

    def is_ours(_: logging.Handler, record: logging.LogRecord) -> bool:
        return record.thread not in others

    status: object = 0
    with ExitStack() as stack:
        files = [stack.enter_context(TemporaryFile()) for _ in range(2)]
        out, err = map(_Stream, files)
        stack.enter_context(mock.patch.dict(os.environ, more))
        stack.enter_context(mock.patch.object(sys, "argv", ["upriver", *map(str, words)]))
        stack.enter_context(mock.patch.multiple(sys, stdout=out, stderr=err))
        stack.enter_context(mock.patch.object(logging.StreamHandler, "filter", is_ours))
        try:
            main()
        except SystemExit as ended:
            status = ended.code
        except Exception:
            traceback.print_exc()
            status = 1
        finally:
            root.handlers[:] = handlers
            root.setLevel(level)
        if isinstance(status, str):
            err.write(f"{status}\n")
            status = 1
        assert status is None or isinstance(status, int)
        return subprocess.CompletedProcess(command(*words), status or 0, out.text(), err.text())


def ended(*words: _Words, stdout: Any = subprocess.PIPE, **more: str) -> Any:
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

    def stop(
        self, number: signal.Signals = signal.SIGINT, *, group: bool = False
    ) -> tuple[int, str, str]:
        """The status, and what else was on stdout and stderr.

        The signal goes to the process, or to all of its ``group``, which must be its own.
        """
        if group:
            os.killpg(self.process.pid, number)
        else:
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
