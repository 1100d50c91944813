"""Processor time and memory of processes, from what Linux says of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["Process", "cpu_seconds", "family", "own_cpu", "peak_mib", "resident_mib"]

_TICKS = os.sysconf("SC_CLK_TCK")
#: What the command line of a producer that a benchmark started has.
_PRODUCER = "\0serve\0"


class Process(NamedTuple):
    pid: int
    parent: int
    command: str
    #: Processor seconds, with those of its children that have ended.
    cpu: float

    @property
    def kind(self) -> str:
        """What it does for a benchmark: producer, java, worker (of Spark), or python."""
        if _PRODUCER in self.command:
            return "producer"
        if "org.apache.spark" in self.command:
            return "java"
        return "worker" if "worker_daemon" in self.command else "python"


def _all() -> Iterator[Process]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                command = (entry / "cmdline").read_text(errors="replace")
            except OSError:  # it has just ended
                continue
            cpu = sum(int(one) for one in fields[11:15]) / _TICKS
            yield Process(int(entry.name), int(fields[1]), command, cpu)


def family() -> list[Process]:
    """This process and all below it."""
    below: dict[int, list[Process]] = {}
    found = []
    for process in _all():
        below.setdefault(process.parent, []).append(process)
        if process.pid == os.getpid():
            found.append(process)
    for process in found:
        found.extend(below.get(process.pid, ()))
    return found


def own_cpu() -> float:
    """Processor seconds of this process and all below it, but for the producer."""
    return sum(process.cpu for process in family() if process.kind != "producer")


def cpu_seconds(pid: int) -> float:
    """Processor seconds of one process, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _status_mib(pid: int | str, name: str) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:  # it has just ended
        return 0.0
    return sum(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


def resident_mib(pid: int | str = "self") -> float:
    """Memory that a process has now."""
    return _status_mib(pid, "VmRSS")


def peak_mib() -> float:
    """Memory that this process had at most; rusage would count its parent's at its beginning."""
    return _status_mib("self", "VmHWM")
