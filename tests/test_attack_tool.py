"""The tool that attacks real processes: it runs, and it does not call a failed attack a success."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parent.parent / "tools" / "attack.py"


def attack(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TOOL), *arguments], capture_output=True, text=True, timeout=600
    )


def test_every_attack_has_a_name() -> None:
    names = attack("--list").stdout.splitlines()
    assert len(names) == len(set(names))
    assert {"refused gets, unauthenticated", "split brain", "server that is silent"} <= set(names)


@pytest.mark.parametrize(
    "name", ["half packets", "silent TLS connections", "forged durability", "server that is silent"]
)
def test_an_attack_of_each_kind_runs_and_is_survived(name: str) -> None:
    done = attack("--minutes", "0", "--only", name)
    assert done.returncode == 0, done.stdout + done.stderr
    row = done.stdout.splitlines()[2]
    assert row.startswith(name)
    assert "FAILED" not in row
