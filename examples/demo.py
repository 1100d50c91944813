"""What there is today, in half a minute: packets explained, a producer, its changes in Spark.

An embedded producer takes the orders of a small shop; its change stream is read over a socket into
Arrow columns and queried with Spark SQL. Run it with ``make demo``.
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import time

import pyarrow as pa
from rich.console import Console

from upriver.spark.java import ensure_java_home
from upriver.store import Delete, Set
from upriver.testing import TemporaryProducer
from upriver.wire import columns, kv
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp
from upriver.wire.names import Feature, OpenFlag, StreamFlag

VBUCKETS = 64
ORDERS = 100_000
GROUP = 1000
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


def take_orders(producer: TemporaryProducer) -> None:
    """Orders come in, and every twenty-fifth is cancelled."""
    chance = random.Random(11)
    for start in range(0, ORDERS, GROUP):
        changes: list[Set | Delete] = []
        for number in range(start, start + GROUP):
            order = {"city": chance.choice(CITIES), "cents": chance.randrange(500, 20_000)}
            key = b"\0order:%d" % number
            changes.append(Set(number % VBUCKETS, key, json.dumps(order).encode(), datatype=1))
            if number % 25 == 0:
                changes.append(Delete(number % VBUCKETS, key))
        producer.bucket.write_many(changes)


def read_changes(producer: TemporaryProducer) -> pa.Table:
    """Everything that happened, over a socket: one stream for each vbucket, to columns."""
    dialect = Dcp(collections=True)
    with socket.create_connection((producer.host, producer.port)) as connection:
        hello = kv.Hello(agent="demo", features=(Feature.COLLECTIONS, Feature.SNAPPY))
        opening = m.Open(name="demo", flags=OpenFlag.PRODUCER | OpenFlag.INCLUDE_DELETE_TIMES)
        noop = m.Control(key="enable_noop", value="true")
        requests = [
            m.StreamRequest(vbucket=v, start=0, end=2**64 - 1, flags=StreamFlag.TO_LATEST)
            for v in range(VBUCKETS)
        ]
        connection.sendall(b"".join(map(dialect.encode, [hello, opening, noop, *requests])))
        buffer, batches, ended = bytearray(), [], 0
        while ended < VBUCKETS:
            buffer += connection.recv(1 << 20)
            decoded = columns.decode(buffer, collections=True)
            batches.append(decoded.batch)
            for control in decoded.controls:
                packet = bytes(buffer[control.offset : control.offset + control.length])
                ended += isinstance(dialect.decode(packet), m.StreamEnd)
            del buffer[: decoded.consumed]
    return pa.Table.from_batches(batches)


def main() -> None:
    console = Console(highlight=False)
    console.rule("one packet of each draft")
    for draft, packet in PACKETS.items():
        command = [sys.executable, "-m", "upriver", "decode", "--draft", draft, packet]
        subprocess.run(command, check=False)  # exits with 1 where the document is wrong
        console.print()

    console.rule("an embedded producer")
    started = time.perf_counter()
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        ready = time.perf_counter() - started
        console.print(f"ready after {ready * 1000:.0f} ms on port {producer.port}")
        take_orders(producer)
        items = producer.bucket.stats().items
        console.print(f"{ORDERS:,} orders taken, {items:,} of them still there")
        started = time.perf_counter()
        changes = read_changes(producer)
        seconds = time.perf_counter() - started
    console.print(
        f"{changes.num_rows:,} changes read in {seconds:.2f} s, decoded by the "
        f"{columns.__impl__} path"
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
            "op": changes.column("op").cast(pa.string()),
            "value": changes.column("value").cast(pa.string()),
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
