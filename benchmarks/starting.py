"""Where the seconds of `upriver mirror --once` go, beside Spark's own start, first job and stop.

    python benchmarks/starting.py [--docs 300000] [--rounds 3]

A mirror of the documents is made first. Then some of them are changed and the command is run, in
turns with a program that starts Spark as the command does, counts a thousand numbers and stops.
CPU seconds are those of the program and of all that it starts, Java and workers included; the
producer is not. The steps are told by the program itself: from its first instruction on.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import machine_line
from producer import VALUE, fill, key, serving, vbucket_of

from upriver.consumer.transport.access import Access
from upriver.consumer.transport.blocking_connection import BlockingConnection
from upriver.consumer.transport.connection_string import Source
from upriver.session.conversation import single
from upriver.wire import kv_messages as kv

_SUBREAPER = 36
#: Changes of a batch that the command does itself, and of one that Spark does.
FEW, MANY = 100, 10_000

_SPARK_ITSELF = """
import json, sys, time
marks = [("", time.perf_counter())]
def mark(step): marks.append((step, time.perf_counter()))
from upriver.spark.session import start
mark("imports")
spark = start("benchmark", master="local[2]", config={"spark.log.level": "ERROR"})
mark("start")
spark.range(1000).count()
mark("first job")
spark.stop()
mark("stop")
print(json.dumps({b[0]: b[1] - a[1] for a, b in zip(marks, marks[1:])}))
"""

_MIRROR = """
import json, sys, time
marks = [("", time.perf_counter())]
def mark(step): marks.append((step, time.perf_counter()))
from upriver.cli.main import main
from upriver.spark.pipelines import mirror
mark("imports")
from upriver.cli.spark_process import spark_when_needed
options = {"conf": {}, "master": "local[2]"}
with spark_when_needed("benchmark", options) as start:
    began = []
    def timed():
        mark("open table, ask bucket")
        spark = start()
        mark("start Spark")
        return spark
    pipeline = mirror(timed, source=sys.argv[1], table=sys.argv[2], once=True)
    mark("begin" if len(marks) > 2 else "open table, ask bucket")
    pipeline.wait()
    mark("batch")
    rows = pipeline.status().rows
mark("stop")
steps = {b[0]: b[1] - a[1] for a, b in zip(marks, marks[1:])}
print(json.dumps(steps))
assert rows >= int(sys.argv[3]) * 0.9, rows
"""


def measured(command: list[str]) -> tuple[float, float, str]:
    """Seconds and CPU seconds of a program with all that it has started, and its last line."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(done.stderr)
    own = set(_children())
    while set(_children()) & own and _reap():  # what outlived it counts too
        pass
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, cpu, (done.stdout.splitlines() or [""])[-1]


#: The producer, which is not waited for.
_server = [0]


def _children() -> list[int]:
    tasks = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [pid for pid in map(int, tasks) if pid != _server[0]]


def _reap() -> bool:
    for pid in _children():
        os.waitpid(pid, 0)
    return True


def change(source: str, documents: int, count: int, seed: int) -> None:
    chance = random.Random(seed)
    names = [key(number) for number in chance.sample(range(documents), count)]
    place = Source.parse(source)
    with BlockingConnection(place.hosts[0], place, Access()) as link:
        for first in range(0, count, 1000):
            link.run_all(
                single(kv.Set(key=name, vbucket=vbucket_of(name), value=VALUE))
                for name in names[first : first + 1000]
            )


def show(name: str, found: list[tuple[float, float, str]]) -> float:
    seconds = statistics.median(one[0] for one in found)
    cpu = statistics.median(one[1] for one in found)
    print(f"  {name:44} {seconds:6.2f} s, {cpu:6.2f} CPU s", flush=True)
    if found[0][2].startswith("{"):
        steps = [json.loads(one[2]) for one in found]
        told = {step: statistics.median(one[step] for one in steps) for step in steps[0]}
        before = seconds - sum(told.values())
        parts = [f"{step} {took:.2f}" for step, took in told.items()]
        print(f"    {', '.join(parts)}, Python's own start and end {before:.2f}", flush=True)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    print(machine_line("pyspark", "pyarrow"))
    with tempfile.TemporaryDirectory() as directory:
        data, table = Path(directory, "data"), str(Path(directory, "table"))
        fill(data, options.docs)
        with serving(data) as (port, pid):
            _server[0] = pid
            source = f"couchbase://127.0.0.1:{port}/default"
            command = [sys.executable, "-m", "upriver", "mirror", source, table, "--once"]
            first = measured(command)
            itself = []
            runs: dict[str, list[tuple[float, float, str]]] = {"few": [], "many": []}
            steps: dict[str, list[tuple[float, float, str]]] = {"few": [], "many": []}
            for turn in range(options.rounds):
                itself.append(measured([sys.executable, "-c", _SPARK_ITSELF]))
                for name, count in (("few", FEW), ("many", MANY)):
                    change(source, options.docs, count, turn)
                    runs[name].append(measured(command))
                    change(source, options.docs, count, turn + options.rounds)
                    program = [sys.executable, "-c", _MIRROR, source, table, str(count)]
                    steps[name].append(measured(program))
            load = ", ".join(f"{one:.1f}" for one in os.getloadavg()[:2])
            print(f"a mirror of {options.docs:,} documents, load average {load}:")
            show("the first load", [first])
            own = show("Spark itself: start, a job, stop", itself)
            for name, count in (("few", FEW), ("many", MANY)):
                took = show(f"mirror --once, {count:,} changes", runs[name])
                print(f"    {took - own:+.2f} s beside Spark itself")
                show("the same, by steps", steps[name])


if __name__ == "__main__":
    main()
