"""Runs simulated worlds and prints what broke: ``python tools/simulate.py --seeds 0-999``.

Without ``--seeds`` it takes fresh ones, after those that broke a guarantee when they last ran. A
seed that breaks one is printed with the shortest plan that still breaks it.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path

from failing_worlds import failing, remember

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from worlds import SCOPES, Outcome, Plan, failure_report, run

#: Worlds of one run without --seeds.
DEFAULT_COUNT = 500
#: Failing worlds that are shrunk and shown.
MOST_REPORTS = 3


def seeds_of(text: str) -> Iterator[int]:
    """The numbers of ``3,7,10-19``; a count of fresh ones if it is ``fresh:100``."""
    if text.startswith("fresh:"):
        fresh = secrets.randbelow(2**40)
        yield from range(fresh, fresh + int(text.removeprefix("fresh:")))
        return
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def one(seed: int, scope: str) -> Outcome:
    outcome = run(Plan.of(seed, SCOPES[scope]))
    outcome.trace.clear()
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description="simulated worlds")
    parser.add_argument("--seeds", help="3,7,10-19 or fresh:100")
    parser.add_argument("--scope", choices=[*SCOPES, "all"], default="all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args()
    fresh = list(seeds_of(chosen.seeds or f"fresh:{DEFAULT_COUNT}"))
    scopes = list(SCOPES) if chosen.scope == "all" else [chosen.scope]
    print(f"make simulate SEEDS={fresh[0]}-{fresh[-1]} SCOPE={chosen.scope} repeats this run")
    failed = False
    for scope in scopes:
        begun = time.monotonic()
        seeds = fresh if chosen.seeds else [*failing(scope), *fresh]
        happened: Counter[str] = Counter()
        simulated = 0.0
        broken: list[Outcome] = []
        with ProcessPoolExecutor(chosen.jobs) as pool:
            for outcome in pool.map(one, seeds, repeat(scope), chunksize=8):
                happened += outcome.counts
                simulated += outcome.seconds
                remember(scope, outcome.seed, broke=outcome.violation is not None)
                if outcome.violation is not None:
                    broken.append(outcome)
        spent = time.monotonic() - begun
        print(
            f"{scope}: {len(seeds)} worlds in {spent:.1f} s, {60 * len(seeds) / spent:.0f} a minute"
            f" on {chosen.jobs} processes; {simulated / 60:.0f} simulated minutes;"
            f" {len(broken)} broke a guarantee"
        )
        print("  " + ", ".join(f"{count} {what}" for what, count in happened.most_common()))
        for outcome in broken[:MOST_REPORTS]:
            print("\n" + failure_report(Plan.of(outcome.seed, SCOPES[scope]), outcome))
        failed = failed or bool(broken)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
