"""A run of tests that is killed leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import keeper
import pytest
from waiting import until

RUN = Path(__file__).with_name("killed_run.py")


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="there is no /proc")
@pytest.mark.parametrize("killed", ["run", "worker"])
def test_a_killed_run_leaves_no_process_behind(tmp_path: Path, killed: str) -> None:
    numbers = tmp_path / "numbers"
    output = tmp_path / "output"
    with output.open("wb") as log:
        run = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-n", "1", "-p", "no:cacheprovider", str(RUN)],
            env={**os.environ, "KILLED_RUN": str(tmp_path)},
            stdout=log,
            stderr=log,
        )
    with run:
        try:
            until(
                numbers.exists,
                unless=lambda: run.poll() is not None and output.read_text(),
                what="the run starts a cluster",
            )
            worker, *started = map(int, numbers.read_text().split())
            # a manager and two nodes, beside the run and its worker
            assert {run.pid, worker, *started} <= set(keeper.marked(str(tmp_path)))
            if killed == "worker":
                run.send_signal(signal.SIGSTOP)  # so that the run itself ends nothing
                os.kill(worker, signal.SIGKILL)
                until(lambda: not set(started) & set(keeper.marked(str(tmp_path))))
        finally:
            run.kill()
    until(lambda: not keeper.marked(str(tmp_path)), what=lambda: keeper.marked(str(tmp_path)))
