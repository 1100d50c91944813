"""Runs the seeded tests of everything that breaks for longer than a test run has the time.

    python tools/chaos.py [--seed 7] [--minutes 20]

The seed is printed first, and is a random one unless it is given; the same seed and minutes do the
same again, as far as processes that are killed can. Everything is run even if something fails.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import keeper

ROOT = Path(__file__).resolve().parent.parent
#: How long it takes in all, roughly.
MINUTES = 20.0
#: Seconds that one may take beyond its share: on a busy machine all but a hang gets done in that.
GRACE = 600.0


@dataclass(frozen=True)
class Trial:
    """One of the tests, and how to have it go on for longer."""

    test: str
    #: Its part of the time.
    share: float
    #: What says how much it does, how much of that is done in a second, and what is too little.
    amount: str
    per_second: float
    least: int
    seed: str = "UPRIVER_CHAOS_SEED"

    def seconds(self, minutes: float) -> float:
        return self.share * minutes * 60

    def variables(self, minutes: float, seed: int) -> dict[str, str]:
        amount = max(self.least, round(self.seconds(minutes) * self.per_second))
        return {self.amount: str(amount), self.seed: str(seed)}


TRIALS = (
    Trial(
        "tests/cluster/test_chaos.py",
        share=0.25,
        amount="UPRIVER_CHAOS_SECONDS",
        per_second=1,
        least=15,
    ),
    # and then the pipeline must catch up
    Trial(
        "tests/cluster/test_mirror_chaos.py",
        share=0.25,
        amount="UPRIVER_CHAOS_SECONDS",
        per_second=0.7,
        least=15,
    ),
    # two seeds, each of which takes more than a second for a round
    Trial(
        "tests/consumer/test_killed_readers.py",
        share=0.15,
        amount="UPRIVER_CHAOS_ROUNDS",
        per_second=0.3,
        least=8,
    ),
    # a round is a start of Spark
    Trial(
        "tests/spark/test_local_cluster.py",
        share=0.15,
        amount="UPRIVER_KILL_ROUNDS",
        per_second=0.07,
        least=2,
        seed="UPRIVER_KILL_SEED",
    ),
    Trial(
        "tests/tables/test_exactly_once.py",
        share=0.1,
        amount="UPRIVER_SCHEDULES",
        per_second=0.1,
        least=2,
    ),
    Trial(
        "tests/batches/test_simulation.py",
        share=0.1,
        amount="UPRIVER_HISTORIES",
        per_second=300,
        least=10_000,
    ),
)


def run(trial: Trial, minutes: float, seed: int) -> bool:
    variables = trial.variables(minutes, seed)
    shown = " ".join(f"{name}={value}" for name, value in variables.items())
    print(f"== {shown} pytest {trial.test}", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", "-x", trial.test]
    started = time.monotonic()
    with subprocess.Popen(command, cwd=ROOT, env=os.environ | variables) as process:
        try:
            process.wait(trial.seconds(minutes) + GRACE)
        except subprocess.TimeoutExpired:
            print("   it takes too long and is interrupted", flush=True)
            process.send_signal(signal.SIGINT)  # so that it ends what it started
    print(f"   {time.monotonic() - started:.0f} s", flush=True)
    return process.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--minutes", type=float, default=MINUTES, help="in all, roughly")
    options = parser.parse_args()
    keeper.keep()
    print(f"seed {options.seed}", flush=True)
    failed = [t.test for t in TRIALS if not run(t, options.minutes, options.seed)]
    if failed:
        sys.exit(f"failed with seed {options.seed}: {', '.join(failed)}")


if __name__ == "__main__":
    main()
