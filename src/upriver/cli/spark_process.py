"""Spark for one command: a quiet start, and an end at once by Ctrl-C or SIGTERM.

Java has a process of its own and writes to the standard error of the command. Here it writes into a
pipe: what it says while it starts is printed only if it cannot start, later lines are passed on,
and nothing is once the command ends: Java tells at length of each task that is cancelled then.

A signal may come while Spark starts, or inside a call to Java, which must not be left half-way and
used again. So it raises nothing: it prints one line and ends the process. Java ends, and removes
its files, because its input is closed, and by nothing else: terminals and service managers send
their signals to it too. A command that can end in order asks for that with `stop_requests`.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import click

from .common_options import INTERRUPTED, interrupted_line, is_debugging

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STDERR: Final = 2
#: The most bytes of what Java says while it starts.
_MOST_HELD: Final = 1024 * 1024
#: The standard error of the command, also while that of new processes is a pipe.
_own: Final = [_STDERR]
#: Set once the command is asked to end.
_ending: Final = threading.Event()
#: Seconds to wait for the rest of Java's lines after a failed start.
_LAST_LINES: Final = 2.0


@contextmanager
def spark_session(app: str, options: dict[str, Any]) -> Iterator[SparkSession]:
    """A Spark session for one command; removes the options of `spark_options`."""
    with spark_when_needed(app, options) as start:
        yield start()


@contextmanager
def spark_when_needed(app: str, options: dict[str, Any]) -> Iterator[Callable[[], SparkSession]]:
    """As `spark_session`, with a function that starts the session."""
    config = {"spark.log.level": "ERROR", **options.pop("conf")}
    master = options.pop("master")
    started: list[SparkSession] = []

    def start() -> SparkSession:
        from ..spark.runtime.internals import java_ignores_sigterm
        from ..spark.session import retrying, start

        where = None if master is None else retrying(master)
        with _quiet_start(), java_ignores_sigterm():
            started.append(start(app, master=where, config=config))
        if _is_main():  # Spark has put a handler of its own there
            signal.signal(signal.SIGINT, _end_at_once)
        return started[0]

    with _signals({signal.SIGINT: _end_at_once, signal.SIGTERM: _end_at_once}):
        try:
            yield start
        finally:
            for spark in started:
                spark.stop()


# ---- signals -----------------------------------------------------------------------------


class StopRequest:
    """Whether the command is to end in order, and its exit status then."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    @property
    def status(self) -> int:
        """0 after SIGTERM, by which a service manager ends a program in order."""
        return INTERRUPTED if self.signal == signal.SIGINT else 0


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """The first Ctrl-C or SIGTERM in this block is a request; a second Ctrl-C ends at once."""
    request = StopRequest()

    def note(number: int, frame: FrameType | None) -> None:
        if request and number == signal.SIGINT:
            _end_at_once(number, frame)
        request.signal = number
        _ending.set()

    with _signals({signal.SIGINT: note, signal.SIGTERM: note}):
        yield request


def _end_at_once(number: int, frame: FrameType | None) -> None:
    os.write(_own[-1], f"{interrupted_line()}\n".encode())
    if number == signal.SIGTERM:  # a service manager tells from the status that it was the signal
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(INTERRUPTED)


@contextmanager
def _signals(handlers: dict[signal.Signals, Any]) -> Iterator[None]:
    if not _is_main():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


# ---- what Java writes --------------------------------------------------------------------


@contextmanager
def _quiet_start() -> Iterator[None]:
    """Processes that are started in this block write to a pipe instead of standard error."""
    if is_debugging():
        yield
        return
    own = os.dup(_STDERR)
    reading, writing = os.pipe()
    os.set_inheritable(own, False)
    _own.append(own)
    os.dup2(writing, _STDERR)
    os.close(writing)
    lines = _JavaLines(reading, own)
    lines.start()
    failed = True
    try:
        yield
        failed = False
    finally:
        os.dup2(own, _STDERR)
        _own.pop()
        lines.started(failed=failed)


class _JavaLines(threading.Thread):
    """Passes on what arrives in the pipe, except what arrives before Spark has started."""

    def __init__(self, reading: int, own: int) -> None:
        super().__init__(name="upriver java lines", daemon=True)
        self._reading = reading
        self._own = own
        self._held: list[bytes] | None = []
        self._lock = threading.Lock()

    def run(self) -> None:
        while piece := os.read(self._reading, 65536):
            with self._lock:
                if self._held is None:
                    if not _ending.is_set():
                        os.write(self._own, piece)
                elif sum(map(len, self._held)) < _MOST_HELD:
                    self._held.append(piece)
        os.close(self._reading)

    def started(self, *, failed: bool) -> None:
        if failed:
            self.join(_LAST_LINES)
        with self._lock:
            held, self._held = self._held or [], None
        if failed:
            click.echo(b"".join(held), err=True, nl=False)
