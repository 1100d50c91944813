"""The tool that plants faults in our own code: every fault has its place, and planting works."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.story

TOOL = Path(__file__).parents[2] / "tools" / "plant.py"


def test_every_planted_fault_has_its_place() -> None:
    tool = runpy.run_path(str(TOOL))
    names = [fault.what for fault in tool["FAULTS"]]
    assert len(names) == len(set(names)) >= 25
    assert tool["NOT_FOUND_YET"] <= set(names)
    for fault in tool["FAULTS"]:
        assert tool["planted"](fault)


def test_a_planted_fault_is_found() -> None:
    names = [fault.what for fault in runpy.run_path(str(TOOL))["FAULTS"]]
    number = names.index("a counter counts twice")
    done = subprocess.run(
        [sys.executable, str(TOOL), "--one", str(number)],
        capture_output=True,
        text=True,
        check=True,
    )
    worlds, rule = json.loads(done.stdout.splitlines()[-1])
    assert 1 <= worlds <= 20
    assert rule == "acknowledged writes are there"
