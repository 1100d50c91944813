"""A program that mirrors a bucket with Spark, for tests that kill it.

    python mirror_program.py SOURCE TABLE RESULT

It goes on until it is killed. Terminated, it stops after its batch, compares the mirror with the
bucket and writes what came out to RESULT.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from pathlib import Path

from upriver.spark.pipelines import mirror
from upriver.spark.session import session
from upriver.spark.verify_table import verify


def main() -> None:
    source, table, result = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    spark = session(
        "mirror",
        master="local[2]",
        config={
            "spark.driver.memory": "1g",
            "spark.log.level": "ERROR",
        },
    )
    pipeline = mirror(spark, source=source, table=table, groups=4, compact_every=10)
    while not over.is_set():
        if pipeline.wait(0.1):
            sys.exit("it has ended by itself")
    pipeline.stop()
    found = verify(spark, source=source, table=table)
    told = {name: getattr(found, name) for name in ("equal", "differing", "changed_later")}
    result.write_text(json.dumps({**told, "incomparable": list(found.incomparable)}))
    spark.stop()


if __name__ == "__main__":
    main()
