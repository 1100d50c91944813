"""What there is today, in half a minute: packets of every draft explained, and changes in Spark.

Changes are packed as a producer would send them, decoded into Arrow columns, and queried with
Spark SQL. Run it with ``make demo``.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time

import pyarrow as pa
from rich.console import Console

from upriver.spark.java import ensure_java_home
from upriver.wire import canonical, columns

VBUCKETS = 64
CHANGES = 200_000
CITIES = ("Basel", "Bergen", "Bilbao", "Bologna", "Bordeaux", "Bristol", "Brno", "Bruges")

#: One packet of each draft as its document prints it: two of them with the document's mistakes.
PACKETS = {
    "002": "020000000000002d000000010300000000000045a8",
    "000": "805300000001000c000000000000002d000000000000000000000001",
    "001": "805700051e0002100000002800001210000064a5acec8a560000000000000004"
    "0000000000000001000000000000000000000000000068656c6c6f776f726c64",
    "dcp": "805600000100000000000035deadbeef0000000000000000020000000000000001"
    "0000000000000008000000020000000000000008000000000000000700000000000000030000000000000006",
}


def packed_changes() -> bytes:
    """Orders of a small shop, some of them cancelled, as frames of a change stream."""
    chance = random.Random(11)
    seqnos = [0] * VBUCKETS
    frames = []
    for number in range(CHANGES):
        vbucket = number % VBUCKETS
        seqnos[vbucket] += 1
        key = b"\x00order:%d" % number
        cas = 1_790_000_000_000_000_000 + number * 65536
        if chance.random() < 0.04:
            frames.append(canonical.deletion(vbucket, seqnos[vbucket], 2, cas, 0, 0, key))
            continue
        order = {"city": chance.choice(CITIES), "cents": chance.randrange(500, 20_000)}
        value = json.dumps(order).encode()
        frames.append(canonical.mutation(vbucket, seqnos[vbucket], 1, cas, 0, 0, 1, key, value))
    return b"".join(frames)


def main() -> None:
    console = Console(highlight=False)
    console.rule("one packet of each draft")
    for draft, packet in PACKETS.items():
        command = [sys.executable, "-m", "upriver", "decode", "--draft", draft, packet]
        subprocess.run(command, check=False)  # exits with 1 where the document is wrong
        console.print()

    console.rule("changes to columns")
    stream = packed_changes()
    started = time.perf_counter()
    batch = columns.decode(stream, collections=True).batch
    seconds = time.perf_counter() - started
    console.print(
        f"{batch.num_rows:,} changes, {len(stream) / 2**20:.1f} MiB, decoded in "
        f"{seconds * 1000:.0f} ms by the {columns.__impl__} path"
    )

    console.rule("columns in Spark")
    os.environ["JAVA_HOME"] = str(ensure_java_home())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .appName("upriver demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    wanted = pa.table(
        {
            "op": batch.column("op").cast(pa.string()),
            "value": batch.column("value").cast(pa.string()),
        }
    )
    spark.createDataFrame(wanted).createOrReplaceTempView("changes")
    spark.sql(
        """
        SELECT order.city, count(*) AS orders, round(sum(order.cents) / 100, 2) AS revenue
        FROM (SELECT from_json(value, 'city STRING, cents INT') AS order
              FROM changes WHERE op = 'mutation')
        GROUP BY order.city ORDER BY revenue DESC
        """
    ).show()
    spark.stop()


if __name__ == "__main__":
    main()
