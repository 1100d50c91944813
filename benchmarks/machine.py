"""One line that says on what a figure was measured. Every benchmark prints it beside its own."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["machine_line"]


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory_gib() -> float:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30


def _package(name: str) -> str:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return f"no {name}"


def require_rows(read: int, written: int, what: str) -> None:
    """Ends a benchmark that did not read what it says: its figures would mean nothing."""
    if read != written:
        raise SystemExit(f"{what}: {read:,} rows were read, not {written:,}")


def machine_line(*packages: str) -> str:
    """Processor, cores, memory, system, Python, and the versions of the packages that matter."""
    parts = [
        _processor(),
        f"{os.cpu_count()} cores",
        f"{_memory_gib():.0f} GiB",
        f"{platform.system()} {platform.release()}",
        f"{platform.python_implementation()} {platform.python_version()}",
        *map(_package, packages),
    ]
    return ", ".join(parts)
