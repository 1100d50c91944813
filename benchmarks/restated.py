"""What restating a large vbucket takes: memory and processor time of the task that reads it.

    python benchmarks/restated.py [--documents 1000000]

With ``onRollback=restate`` a task must know all live keys of a vbucket before it says what a sink
must remove. A process of its own goes through the rows of one vbucket, held in memory by a set of
keys as the task reader had it before, and by the keys in files that it has now.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from machine import machine_line
from processes import resident_mib

from upriver.batches.offset_ranges import ReadStep
from upriver.batches.options import ReadOptions
from upriver.batches.restate import Restatement
from upriver.batches.row_schema import arrow_schema
from upriver.batches.spilled_keys import LiveKeys
from upriver.model import Snapshot, StreamOffset

_BATCH = 10_000
_PLACE = ("_default", "_default")


def _rows(schema: pa.Schema, documents: int) -> Iterator[pa.RecordBatch]:
    for first in range(0, documents, _BATCH):
        count = min(_BATCH, documents - first)
        made: dict[str, Any] = {
            "op": ["mutation"] * count,
            "vbucket": [0] * count,
            "seqno": list(range(first, first + count)),
            "key": [b"document-number-%09d" % number for number in range(first, first + count)],
            "scope": ["_default"] * count,
            "collection": ["_default"] * count,
        }
        columns: list[Any] = [
            pa.array(made[cell.name], cell.type)
            if cell.name in made
            else pa.nulls(count, cell.type)
            for cell in schema
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def measure(documents: int, most: int) -> None:
    """Prints MiB at the most beyond those before, CPU seconds, and how many rows were made."""
    options = ReadOptions.parse({"connectionString": "couchbase://localhost/b"})
    step = ReadStep(0, 0, StreamOffset(1, 0, Snapshot(0, 0)), documents)
    made = Restatement(options.rows, {0: step}, LiveKeys(most))
    before, peak, began = resident_mib(), 0.0, time.process_time()
    for rows in _rows(arrow_schema(options.rows), documents):
        made.restate(rows)
        peak = max(peak, resident_mib() - before)
    count = 0
    for _ in made.finished({0: step}, 1, [_PLACE]):
        count += 1
        peak = max(peak, resident_mib() - before)
    print(f"{peak:.0f} MiB | {time.process_time() - began:.2f} s | {count}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--most", type=int, help="measure with so many keys in memory")
    given = parser.parse_args()
    if given.most is not None:
        measure(given.documents, given.most)
        return
    print(machine_line("pyarrow"))
    print("\n| keys | memory | CPU | rows |\n|---|---|---|---|")
    for name, most in (("all in memory", 10**12), ("at most 200,000 in memory", 200_000)):
        words = [sys.executable, __file__, "--documents", str(given.documents)]
        ran = subprocess.run(
            [*words, "--most", str(most)], check=True, capture_output=True, text=True
        )
        print(f"| {name} | {ran.stdout.strip()} |")


if __name__ == "__main__":
    main()
