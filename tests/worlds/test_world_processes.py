"""The same seed gives the same trace in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from worlds import SCOPES, Plan, run

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_a_seed_is_a_trace_in_every_process(hash_seed: str) -> None:
    """Sets of names and objects have another order in every process."""
    code = (
        "from worlds import SCOPES, Plan, run\n"
        "for scope in SCOPES.values(): print(run(Plan.of(5, scope)).trace_hash)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(TESTS)}
    told = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    here = [run(Plan.of(5, scope)).trace_hash for scope in SCOPES.values()]
    assert told.stdout.split() == here
