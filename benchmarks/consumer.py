"""The consumer over a real socket: columns and single changes, beside readers that only count.

    python benchmarks/consumer.py [--docs 2000000] [--quick]

Every sender is a process of its own. The first part replays a recorded stream, so that only the
reader is measured, with the C path and without; the second reads from the producer, beside a
reader of the same bytes that looks at none of them. CPU is the reader's own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import machine_line, require_rows
from processes import peak_mib, resident_mib
from producer import Client, backfill, fill, raw_socket, serving
from replay import replaying

VBUCKETS = 16
VALUE = 200


def measure(port: int, what: str) -> dict[str, float]:
    """Reads everything in a process of its own, which reports on itself."""
    command = [sys.executable, __file__, "--reader", what, "--port", str(port)]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, float] = json.loads(answer.stdout)
    return result


def read(port: int, what: str) -> None:
    """The reader's side of `measure`."""
    from upriver.consumer import Consumer

    rows = 0
    with Consumer(f"couchbase://127.0.0.1:{port}/default", end="now") as consumer:
        started, cpu = time.perf_counter(), time.process_time()
        if what == "batches":
            for batch in consumer.batches():
                rows += batch.num_rows
        else:
            for _ in consumer:
                rows += 1
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    peak = peak_mib()
    print(json.dumps({"rows": rows, "seconds": seconds, "cpu": cpu, "peak": peak}))


def drain(port: int, documents: int) -> float:
    """Seconds to read as many bytes from the same sender without looking at them."""
    client = Client(port, "drain")
    started = time.perf_counter()
    client.stream_everything()
    client.count(documents * (24 + 31 + 13 + VALUE))
    seconds = time.perf_counter() - started
    client.socket.close()
    return seconds


def report(name: str, result: dict[str, float], documents: int, beside: float = 0.0) -> None:
    require_rows(int(result["rows"]), documents, name)
    rate = result["rows"] / result["seconds"]
    share = f", {rate / beside:.0%} of counting" if beside else ""
    print(
        f"  {name:34} {rate:12,.0f} messages/s, {result['cpu'] / result['rows'] * 1e6:.2f} CPU s "
        f"per million, {result['peak']:.0f} MiB peak{share}"
    )


def stall(port: int) -> None:
    """Takes one batch and then sleeps while the sender waits."""
    from upriver.consumer import Consumer

    with Consumer(f"couchbase://127.0.0.1:{port}/default") as consumer:
        next(consumer.batches())
        time.sleep(5)
        print(json.dumps({"rows": 1, "seconds": 5, "cpu": 0, "peak": peak_mib()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", type=int, default=2_000_000)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    parser.add_argument("--reader", choices=("batches", "changes", "stall"), help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.reader:
        (stall(options.port) if options.reader == "stall" else read(options.port, options.reader))
        return
    documents = options.docs // (10 if options.quick else 1)
    print(machine_line("numpy", "pyarrow", "rocksdict"))
    print(f"raw loopback socket: {raw_socket(1 << 30) / 2**20:,.0f} MiB/s")

    print(f"a recorded stream of {documents:,} documents of {VALUE} B, replayed:")
    with replaying(VBUCKETS, documents, VALUE) as port:
        for path in ("c", "numpy"):
            os.environ["UPRIVER_COLUMNS"] = path
            report(f"Arrow batches, {path}", measure(port, "batches"), documents)
            report(f"change by change, {path}", measure(port, "changes"), documents)
    os.environ.pop("UPRIVER_COLUMNS")

    print(f"the producer with {documents:,} documents:")
    with tempfile.TemporaryDirectory() as directory:
        fill(Path(directory), documents)
        with serving(Path(directory)) as (port, pid):
            counted = documents / min(backfill(port, documents) for _ in range(2))
            print(f"  {'a reader that only counts':34} {counted:12,.0f} messages/s")
            best = min((measure(port, "batches") for _ in range(2)), key=lambda r: r["seconds"])
            report("Arrow batches", best, documents, counted)
            report("change by change", measure(port, "changes"), documents, counted)
            peak = measure(port, "stall")["peak"]
            print(f"  a reader that took one batch and stalled: {peak:.0f} MiB peak in all")
            print(f"  the server: {resident_mib(pid):.0f} MiB")


if __name__ == "__main__":
    main()
