"""Runs the tests of what every supported Spark and Python must do, in environments of their own.

    python3 tools/matrix.py                      # each Spark and each Python once
    python3 tools/matrix.py --all                # every pair of them
    python3 tools/matrix.py 4.0 4.1-python3.13   # some of them

The environments are build/spark-VERSION-pythonVERSION, renewed when the dependencies change. The
newest Spark with the Python that runs this is left out of the first: `make test` has it. A Python
is one of the path or of pyenv; one that is not on the machine is said to be left out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path

from environment import CONSTRAINTS, ROOT, make

SPARKS = ("4.0", "4.1", "4.2", "4.3")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
#: Those that make each Spark and each Python run once beside `make test`, which has the first
#: Python and the last Spark.
ONCE = (("4.0", "3.11"), ("4.1", "3.12"), ("4.2", "3.13"), ("4.3", "3.14"))
TESTS = (
    "tests/spark/test_every_spark.py",
    "tests/spark/test_internals.py",
    "tests/spark/test_spark_session.py",
    "tests/consumer/test_consumer_client.py",
    "tests/producer/test_worked_exchanges.py",
    "tests/session",
    "tests/store/test_document_changes.py",
    "tests/wire/test_golden_drafts.py",
    "tests/wire/test_golden_modern.py",
    "tests/wire/test_columns_rules.py",
)
#: Older versions of Spark leave sockets to the garbage collector.
NOT_OURS = (
    *("-W", "default::ResourceWarning"),
    *("-W", "default::pytest.PytestUnraisableExceptionWarning"),
)
#: So many pairs run at the same time: they wait as often as they compute.
AT_ONCE = 2
#: Of the extra dev, what these tests import.
PACKAGES = frozenset({"hypothesis", "pytest", "pytest-xdist", "scramp", "trustme"})


def main() -> None:
    pairs = [(spark, python) for spark in SPARKS for python in PYTHONS]
    if "--all" not in sys.argv:
        pairs = chosen(sys.argv[1:], pairs) if sys.argv[1:] else list(ONCE)
    with ThreadPoolExecutor(AT_ONCE if len(pairs) > 1 else 1) as pool:
        results = list(pool.map(result_of, *zip(*pairs, strict=True), repeat(len(pairs) > 1)))
    for (spark, python), result in zip(pairs, results, strict=True):
        print(f"Spark {spark}, Python {python}: {result}")
    sys.exit(1 if "failed" in results else 0)


def result_of(spark: str, python: str, apart: bool) -> str:
    """What became of a pair; ``apart`` runs it in a process, whose output is shown at its end."""
    interpreter = find(python)
    if interpreter is None:
        return f"left out: there is no Python {python} on this machine"
    if not apart:
        return "passed" if passes(spark, python, interpreter) else "failed"
    command = [sys.executable, __file__, f"{spark}-python{python}"]
    ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(ran.stdout, end="", flush=True)
    return "failed" if ran.returncode else "passed"


def chosen(words: list[str], pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The pairs that words such as 4.1 and 4.1-python3.13 name."""
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    found = []
    for word in words:
        spark, _, python = word.partition("-python")
        if (spark, python or own) not in pairs:
            sys.exit(f"{word}: Spark is one of {', '.join(SPARKS)}, Python of {', '.join(PYTHONS)}")
        found.append((spark, python or own))
    return found


def find(python: str) -> Path | None:
    """An interpreter of a version that this machine has and that can be run."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    on_path = shutil.which(f"python{python}")
    for found in (*([Path(on_path)] if on_path else []), *pyenv.glob(f"{python}.*/bin/python3")):
        asked = subprocess.run([found, "-c", "import ssl, sqlite3"], capture_output=True)
        if asked.returncode == 0:
            return found
    return None


def passes(spark: str, python: str, interpreter: Path) -> bool:
    pins = re.sub(r"(?m)^(pyspark|py4j)==.*\n", "", CONSTRAINTS.read_text())
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    tests = [
        line
        for line in declared["optional-dependencies"]["dev"]
        if re.split(r"[<>=]", line)[0] in PACKAGES
    ]
    directory = ROOT / "build" / f"spark-{spark}-python{python}"
    runner = make(
        directory,
        "all",
        *tests,
        interpreter=interpreter,
        constraints=f"{pins}pyspark=={spark}.*\n",
    )
    print(f"== Spark {spark}, Python {python}", flush=True)
    command: list[str | Path] = [runner, "-m", "pytest", "-q", "-n", "0", *NOT_OURS, *TESTS]
    return subprocess.run(command, cwd=ROOT, env=os.environ).returncode == 0


if __name__ == "__main__":
    main()
