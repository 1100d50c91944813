"""Runs one server under mixed traffic for minutes and shows whether anything keeps growing.

    python tools/soak.py [--minutes 15] [--rate 2000] [--cache 16] [--seed 1]

Traffic: overwrites and deletions at a steady rate over a fixed set of keys, one consumer that
stays, consumers that come and go, and clients that leave in the middle of a packet. Every few
seconds the server's resident memory, descriptors, threads and disk use are sampled. The run fails
if the median of a figure in the last third of the run lies above that of the middle third by more
than the figure's tolerance. The store's memory for reads and writes is small, so that it is full
within the first third: what still grows then is not what the server may keep.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import keeper

from upriver.consumer import Consumer
from upriver.wire import kv_messages as kv
from upriver.wire.dialects import Dcp

VBUCKETS = 64
#: Documents that are overwritten again and again, so that what is live stays the same.
KEYS = 20_000
VALUE = b'{"text":"' + b"x" * 280 + b'"}'
SAMPLE_SECONDS = 5.0


@dataclass(frozen=True)
class Sample:
    """What the server holds at one moment."""

    seconds: float
    resident_mib: float
    descriptors: float
    threads: float
    #: Versions of documents that a rollback may need, of which the server keeps up to 1 GiB.
    history_mib: float
    #: All files, without that.
    disk_mib: float


#: How far a figure may rise from the middle third of the run to the last: as a part of it and in
#: its own unit. Disk use swings with compaction, descriptors with the files of the store.
TOLERANCES = {
    "resident_mib": (0.10, 20.0),
    "descriptors": (0.10, 10.0),
    "threads": (0.0, 2.0),
    "disk_mib": (0.25, 64.0),
}


def take_sample(pid: int, port: int, data: Path, started: float) -> Sample:
    history = _history_bytes(port)
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines)
    return Sample(
        seconds=time.monotonic() - started,
        resident_mib=int(status["VmRSS"].split()[0]) / 1024,
        descriptors=len(os.listdir(f"/proc/{pid}/fd")),
        threads=int(status["Threads"]),
        history_mib=history / 2**20,
        disk_mib=(_disk_bytes(data) - history) / 2**20,
    )


def _history_bytes(port: int) -> int:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as server:
        server.sendall(Dcp().encode(kv.Stat()) + Dcp().encode(kv.Noop()))
        answers = _read_to_noop(server)
    found = re.search(rb"ep_history_bytes(\d+)", answers)
    assert found is not None
    return int(found[1])


def _disk_bytes(data: Path) -> int:
    total = 0
    for path in data.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # compaction removed it meanwhile
            continue
    return total


class Traffic:
    """Threads that use one server until they are stopped; a fault in any of them ends the run."""

    def __init__(self, port: int, rate: int, seed: int) -> None:
        self._port = port
        self._rate = rate
        self._source = f"couchbase://127.0.0.1:{port}/default"
        self._random = random.Random(seed)
        self._stopped = threading.Event()
        self.faults: list[str] = []
        self.written = self.delivered = self.visits = 0
        jobs = (self._write, self._read, self._visit, self._leave_in_the_middle)
        self._threads = [threading.Thread(target=self._guarded, args=(job,)) for job in jobs]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _guarded(self, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception as fault:
            self.faults.append(f"{job.__name__}: {fault!r}")

    def _write(self) -> None:
        encode, tick = Dcp().encode, 0.1
        with socket.create_connection(("127.0.0.1", self._port), timeout=60) as server:
            while not self._stopped.wait(tick):
                count = int(self._rate * tick)
                packets = [encode(self._edit()) for _ in range(count)]
                server.sendall(b"".join(packets) + encode(kv.Noop()))
                _read_to_noop(server)
                self.written += count

    def _edit(self) -> kv.Set | kv.Delete:
        key = b"doc%06d" % self._random.randrange(KEYS)
        vbucket = (zlib.crc32(key) >> 16 & 0x7FFF) % VBUCKETS
        if self._random.random() < 0.1:
            return kv.Delete(key=key, vbucket=vbucket, quiet=True)
        return kv.Set(key=key, vbucket=vbucket, value=VALUE, quiet=True)

    def _read(self) -> None:
        with Consumer(self._source, start="now") as consumer:
            while not self._stopped.is_set():
                if consumer.poll(timeout=0.5) is not None:
                    self.delivered += 1

    def _visit(self) -> None:
        while not self._stopped.wait(1.0):
            with Consumer(self._source, end="now") as consumer:
                for _ in consumer.batches():
                    pass
            self.visits += 1

    def _leave_in_the_middle(self) -> None:
        packet = Dcp().encode(kv.Set(key=b"half", value=bytes(50_000)))
        while not self._stopped.wait(0.2):
            with socket.create_connection(("127.0.0.1", self._port), timeout=10) as server:
                server.sendall(packet[: self._random.randrange(1, len(packet))])


def _read_to_noop(server: socket.socket) -> bytes:
    """All answers to that of the noop: quiet deletions of missing keys are answered too."""
    received, at = b"", 0
    while True:
        received += server.recv(1 << 16)
        while len(received) >= at + 24:
            end = at + 24 + int.from_bytes(received[at + 8 : at + 12])
            if len(received) < end:
                break
            opcode, at = received[at + 1], end
            if opcode == NOOP_OPCODE:
                return received


NOOP_OPCODE = Dcp().encode(kv.Noop())[1]


def rises(samples: list[Sample]) -> list[str]:
    """The figures that were higher in the last third than in the middle one."""
    third = len(samples) // 3
    found = []
    for name, (part, unit) in TOLERANCES.items():
        middle, last = (
            statistics.median(getattr(one, name) for one in some)
            for some in (samples[third : 2 * third], samples[2 * third :])
        )
        if last > middle * (1 + part) + unit:
            found.append(f"{name} rose from {middle:.0f} to {last:.0f}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--rate", type=int, default=2000, help="writes a second")
    parser.add_argument("--cache", type=int, default=16, help="MiB for reads, and for writes")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    keeper.keep()
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory) / "data"
        command = [sys.executable, "-m", "upriver", "serve", "--data", str(data), "--port", "0"]
        command += ["--vbuckets", str(VBUCKETS)]
        command += ["--read-memory", str(chosen.cache), "--write-memory", str(chosen.cache)]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline().split("/")[2].rpartition(":")[2])
            traffic = Traffic(port, chosen.rate, chosen.seed)
            samples = _watch(server, port, data, traffic, chosen.minutes * 60)
        finally:
            server.terminate()
            server.wait()
    print(
        f"{traffic.written} written, {traffic.delivered} delivered, {traffic.visits} whole reads, "
        f"seed {chosen.seed}"
    )
    problems = [*traffic.faults, *rises(samples)]
    if problems:
        sys.exit("; ".join(problems))
    print("level")


def _watch(
    server: subprocess.Popen[str], port: int, data: Path, traffic: Traffic, seconds: float
) -> list[Sample]:
    print("".join(f"{field.name:>14}" for field in fields(Sample)))
    started = time.monotonic()
    samples: list[Sample] = []
    traffic.start()
    try:
        while time.monotonic() - started < seconds and not traffic.faults:
            time.sleep(SAMPLE_SECONDS)
            samples.append(take_sample(server.pid, port, data, started))
            print("".join(f"{value:14.0f}" for value in astuple(samples[-1])), flush=True)
    finally:
        traffic.stop()
    return samples


if __name__ == "__main__":
    main()
