"""Memory: what a task of a mirror needs at most, for documents of four sizes.

    python benchmarks/memory.py [--mib 1200] [--schema]

A producer in a process of its own serves the documents of one size, of random bytes, which do not
compress. A process that has loaded everything, but read nothing, makes a mirror of them in one
batch and one task, without Spark. Told is the memory that it had before, and what came on top of
that at most.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import tempfile
import time
from pathlib import Path

from machine import machine_line, require_rows
from processes import peak_mib, resident_mib
from producer import serving

from upriver.store import BucketSettings, SetDocument, Store
from upriver.tables.executors import ThisProcess
from upriver.tables.pipeline_settings import PipelineSettings
from upriver.tables.pipeline_start import place_of, start_pipeline

SIZES = {"100 B": 100, "20 KiB": 20 << 10, "600 KiB": 600 << 10, "20 MiB": 20 << 20}
VBUCKETS = 64
#: Small documents are as many as a batch has by default.
MOST_DOCUMENTS = 1_000_000


def fill(data: Path, documents: int, size: int, parsed: bool) -> None:
    chance = random.Random(3)
    with Store(data) as store:
        bucket = store.create_bucket("default", BucketSettings(vbuckets=VBUCKETS))
        step = max(1, min(4000, (8 << 20) // size))
        for start in range(0, documents, step):
            requests = []
            for number in range(start, min(start + step, documents)):
                value = chance.randbytes(size)
                if parsed:
                    value = b'{"text":"' + chance.randbytes((size - 11) // 2).hex().encode() + b'"}'
                key = b"\0document-%d" % number
                requests.append(SetDocument(number % VBUCKETS, key, value, 0, 0, 1))
            bucket.write_many(requests)


def mirror(port: int, table: Path, parsed: bool, told: object) -> None:
    """One mirror, in this process; tells its rows, the memory before and the most, in MiB."""
    options = {"value_schema": "text string"} if parsed else {}
    source = f"couchbase://127.0.0.1:{port}/default"
    settings = PipelineSettings.parse("mirror", source, {**options, "once": True})
    Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
    before, began = resident_mib(), time.perf_counter()
    pipeline = start_pipeline(ThisProcess(), settings, place_of(table, settings))
    pipeline.wait()
    rows, seconds = pipeline.status().rows, time.perf_counter() - began
    told.put((rows, before, peak_mib(), seconds))  # type: ignore[attr-defined]


def measure(name: str, documents: int, size: int, parsed: bool) -> None:
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="upriver-memory-") as directory:
        data, told = Path(directory) / "data", spawn.Queue()
        filling = spawn.Process(target=fill, args=(data, documents, size, parsed))
        filling.start()
        filling.join()
        with serving(data) as (port, _):
            reader = spawn.Process(
                target=mirror, args=(port, Path(directory) / "table", parsed, told)
            )
            reader.start()
            rows, before, most, seconds = told.get()
            reader.join()
    require_rows(rows, documents, f"a mirror of documents of {name}")
    print(
        f"  {documents:9,} documents of {name:8} {before:5.0f} MiB before, "
        f"{most - before:5.0f} MiB more at most, {seconds:.1f} s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1200, help="of documents of each size")
    parser.add_argument("--schema", action="store_true", help="values are parsed into a column")
    parser.add_argument("--only", choices=SIZES)
    options = parser.parse_args()
    print(machine_line("pyarrow"))
    for name, size in SIZES.items():
        if options.only in (None, name):
            documents = min(MOST_DOCUMENTS, max(3, (options.mib << 20) // size))
            measure(name, documents, size, options.schema)


if __name__ == "__main__":
    main()
