"""Measures the lines and branches that the tests of one process reach, and fails below the floors.

    python tools/coverage_floor.py

Floors are for the packages whose code decides what is right; the others are reported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Per cent of lines and branches.
FLOOR = 85
PACKAGES = ("wire", "session", "store", "consumer", "batches", "tables")
TESTS = ("-n", "auto", "-m", "(unit or simulation) and not slow", "--cov", "--cov-report=")


def main() -> int:
    python = [sys.executable, "-m"]
    environment = {**os.environ, "UPRIVER_EXAMPLES": "few"}
    if sys.version_info >= (3, 12):  # it has a tracer that costs little
        environment["COVERAGE_CORE"] = "sysmon"
    tests = subprocess.run([*python, "pytest", "-q", *TESTS], cwd=ROOT, env=environment)
    if tests.returncode:
        return tests.returncode
    report = [*python, "coverage", "report", "--skip-covered"]
    subprocess.run([*report, "--fail-under=0"], cwd=ROOT, check=True)
    failed = 0
    for package in PACKAGES:
        print(f"{package}, whose floor is {FLOOR} %:", flush=True)
        measured = subprocess.run(
            [
                *python,
                *("coverage", "report", "--format=total", f"--fail-under={FLOOR}"),
                f"--include=src/upriver/{package}/*",
            ],
            cwd=ROOT,
        )
        failed |= measured.returncode
    return failed


if __name__ == "__main__":
    sys.exit(main())
