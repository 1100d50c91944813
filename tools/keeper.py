"""Ends what a run of tests or of a tool has started when the run itself has ended, however it did.

A process that is killed ends nothing, and much of what tests start outlives its starter on purpose:
a cluster's manager, which starts its nodes again and again, and whatever has a session of its own.
So a run has a keeper, a process that waits for the run's end and then kills all that is left.
It knows them by a variable of their environment, which every process has from its starter.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

#: The variable with a mark of every run that a process belongs to: runs are started by runs.
VARIABLE = "ENDS_WITH_RUNS"
_PROCESSES = Path("/proc")
#: Seconds until what cannot be killed is left alone.
_PATIENCE = 60.0
_POLL_SECONDS = 0.02


def keep() -> None:
    """Has all that this process starts from now on end with it; where there is a /proc only."""
    if not (_PROCESSES / "self" / "environ").exists():
        return
    mark = secrets.token_hex(16)
    # It has no part in what is done to the run: signals of a terminal, its output, its directory.
    keeper = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, mark],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )
    os.environ[VARIABLE] = f"{os.environ.get(VARIABLE, '')} {mark}".strip()
    starter = os.getpid()

    @atexit.register
    def end() -> None:
        if os.getpid() == starter:  # and no fork of it
            keeper.communicate()


def marked(mark: str) -> list[int]:
    """The numbers of the processes that have a mark in their environment and have not ended."""
    found = []
    for place in _PROCESSES.iterdir():
        if place.name.isdecimal():
            try:
                environment = (place / "environ").read_bytes()
            except OSError:  # it has just ended, or is another user's
                continue
            if mark.encode() in environment:
                found.append(int(place.name))
    return found


def _kill_all(mark: str) -> None:
    deadline = time.monotonic() + _PATIENCE
    while (left := marked(mark)) and time.monotonic() < deadline:
        for number in left:
            with contextlib.suppress(OSError):  # it has just ended
                os.kill(number, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)


if __name__ == "__main__":
    sys.stdin.buffer.read()  # nobody writes: it ends when the run does
    _kill_all(sys.argv[1])
