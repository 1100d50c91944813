"""Runs every attack that we know against real processes, and says what others noticed of it.

    python tools/attack.py [--minutes 10] [--only NAME ...] [--list]

Each attack gets its share of the time. Servers, clusters, attackers and the client whose gets are
measured are processes of their own. A row of the table is one attack: another client's latencies
while it goes on, the resident memory of the server before, at most and after it, and a verdict:
ok; slow, if the 99th percentile is above 50 ms and well above that without an attack; FAILED with
the reason. Latencies mean little while other programs keep the processors busy: the load average
is printed, and gets that wait are then called slow, not failed. The exit status is 1 if one failed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
for place in ("benchmarks", "tests", "tests/cluster", "tests/producer", "tools"):
    sys.path.insert(0, str(ROOT / place))

import keeper  # noqa: E402
from attacks import on_clients, on_cluster, on_server  # noqa: E402
from attacks.report import HEADER, Failed, Row  # noqa: E402
from machine import machine_line  # noqa: E402

#: Seconds below which an attack shows nothing.
LEAST_SECONDS = 3.0


def other(name: str, seconds: float) -> Row:
    """An attack that has its own processes."""
    row = Row(attack=name)
    with tempfile.TemporaryDirectory(prefix="upriver-attack-") as home:
        try:
            (on_cluster.ATTACKS | on_clients.ATTACKS)[name](Path(home), row, seconds)
        except Failed as failure:
            row.failure = str(failure)
        except Exception as fault:
            traceback.print_exc()
            row.failure = f"{type(fault).__name__}: {fault}".splitlines()[0]
    return row


def main() -> None:
    names = [*on_server.ATTACKS, *on_cluster.ATTACKS, *on_clients.ATTACKS]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="in all, roughly")
    parser.add_argument("--only", nargs="+", default=names, choices=names, metavar="NAME")
    parser.add_argument("--list", action="store_true", help="print the names of the attacks")
    options = parser.parse_args()
    if options.list:
        print("\n".join(names))
        return
    keeper.keep()
    print(f"{machine_line('rocksdict')}, load average {os.getloadavg()[0]:.1f} before the attacks")
    print(HEADER, flush=True)
    # a server takes some seconds to start and to settle, a cluster more
    seconds = max(LEAST_SECONDS, options.minutes * 60 / len(options.only) - 8)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="upriver-attack-") as scratch:
        arena = None
        for name in options.only:
            if name in on_server.ATTACKS:
                arena = arena or on_server.Arena(Path(scratch))
                row = on_server.attack(arena, name, seconds)
            else:
                row = other(name, seconds)
            print(row, flush=True)
            rows.append(row)
    failed = [row.attack for row in rows if row.failed]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
    print(f"{len(rows)} attacks, none failed")


if __name__ == "__main__":
    main()
