"""Runs the tests of what every supported Spark must do, with each version in its own environment.

    python3 tools/matrix.py              # all versions
    python3 tools/matrix.py 4.0 4.1      # some of them

The environments are build/spark-VERSION-pythonVERSION, made by the Python that runs this and
renewed when the dependencies change. The newest version runs the whole suite by `make tests`.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("4.0", "4.1", "4.2", "4.3")
TESTS = (
    "tests/spark/test_every_spark.py",
    "tests/spark/test_internals.py",
    "tests/spark/test_spark_session.py",
)
#: Older versions of Spark leave sockets to the garbage collector.
NOT_OURS = (
    *("-W", "default::ResourceWarning"),
    *("-W", "default::pytest.PytestUnraisableExceptionWarning"),
)
#: Of the extra dev, what these tests import.
PACKAGES = frozenset({"hypothesis", "pytest", "pytest-xdist", "trustme"})


def main() -> None:
    wanted = tuple(sys.argv[1:]) or VERSIONS
    if unknown := [version for version in wanted if version not in VERSIONS]:
        sys.exit(f"{unknown[0]} is not one of {', '.join(VERSIONS)}")
    failed = [version for version in wanted if not passes(version)]
    for version in wanted:
        print(f"Spark {version}: {'failed' if version in failed else 'passed'}")
    sys.exit(1 if failed else 0)


def passes(version: str) -> bool:
    python = environment(version)
    print(f"== Spark {version}", flush=True)
    command: list[str | Path] = [python, "-m", "pytest", "-q", "-n", "0", *NOT_OURS, *TESTS]
    return subprocess.run(command, cwd=ROOT, env=os.environ).returncode == 0


def environment(version: str) -> Path:
    """The interpreter of the environment of a version, which is made or renewed if needed."""
    pins = (ROOT / "constraints.txt").read_text()
    kept = re.sub(r"(?m)^(pyspark|py4j)==.*\n", "", pins)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    tests = [
        line
        for line in extras["optional-dependencies"]["dev"]
        if re.split(r"[<>=]", line)[0] in PACKAGES
    ]
    name = f"spark-{version}-python{sys.version_info[0]}.{sys.version_info[1]}"
    directory = ROOT / "build" / name
    python, stamp = directory / "bin" / "python", directory / ".upriver-installed"
    wanted = hashlib.sha256(f"{kept}{extras}{ROOT}".encode()).hexdigest()
    if not (stamp.exists() and stamp.read_text() == wanted):
        print(f"setting up build/{name}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", directory], check=True)
        constraints = directory / "constraints.txt"
        constraints.write_text(f"{kept}pyspark=={version}.*\n")
        pip: list[str | Path] = [
            python,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "install",
            "--quiet",
        ]
        subprocess.run(
            [*pip, "--constraint", constraints, "--editable", f"{ROOT}[all]", *tests], check=True
        )
        stamp.write_text(wanted)
    return python


if __name__ == "__main__":
    main()
