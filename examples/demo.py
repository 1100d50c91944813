"""A small shop in two minutes: its database, a table in Spark that stays equal to it, a failover.

    make demo                 or: python examples/demo.py [--keep] [--seconds 20]

An embedded producer takes orders, customers and products, with updates, deletions and expiries
going on. A pipeline on Spark mirrors them into a Delta table. Then a replica that was behind takes
over a part of the database: changes that were read already never happened, and the mirror takes
them back. In the end both sides are compared, and the table answers a question.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console
from rich.table import Table

from upriver.cli.dashboard.producer_figures import ProducerFeed
from upriver.consumer.topology.cluster_map import vbucket_of
from upriver.dashboard.collector import Collector
from upriver.dashboard.httpd import DashboardServer
from upriver.spark import session
from upriver.spark.pipelines import mirror
from upriver.spark.table_reader import read_table
from upriver.spark.verify_table import verify
from upriver.store import BucketSettings, DeleteDocument, SetDocument, document_key
from upriver.tables.pipeline import Pipeline
from upriver.testing import TemporaryProducer

VBUCKETS = 64
CUSTOMERS, PRODUCTS, ORDERS = 2_000, 400, 20_000
CITIES = ("Basel", "Bergen", "Bilbao", "Bologna", "Bordeaux", "Bristol", "Brno", "Bruges")
STATES = ("new", "paid", "packed", "sent")
#: Changes a second while the shop is open.
PACE = 400
#: How many changes the replica had not seen when it took over.
BEHIND = 25
#: Seconds that nothing here should ever take.
PATIENCE = 120.0


class Shop:
    """What happens in a shop, written into a bucket with a collection for each kind of document."""

    def __init__(self, producer: TemporaryProducer) -> None:
        self._bucket = producer.bucket
        self._chance = random.Random(11)
        scope = self._bucket.create_scope("shop").id
        self._collections = {
            name: self._bucket.create_collection(scope, name).id
            for name in ("customers", "products", "orders")
        }
        self._orders = 0
        #: Held while something is written, so that a failover comes between two changes.
        self.turn = threading.Lock()

    def open(self) -> int:
        """Everything that was there before; returns how many documents that are."""
        changes: list[SetDocument | DeleteDocument] = []
        for number in range(CUSTOMERS):
            customer = {"city": self._chance.choice(CITIES), "since": 2000 + number % 26}
            changes.append(self._set("customers", f"customer:{number}", customer))
        for number in range(PRODUCTS):
            product = {"cents": self._chance.randrange(100, 9000)}
            changes.append(self._set("products", f"product:{number}", product))
        changes += [self._order() for _ in range(ORDERS)]
        self._bucket.write_many(changes)
        return len(changes)

    def run(self, closing: threading.Event) -> None:
        """What goes on all day: orders come, move on, are cancelled; baskets expire."""
        while not closing.wait(0.05):
            with self.turn:
                self._bucket.write_many([self._event() for _ in range(PACE // 20)])

    def _event(self) -> SetDocument | DeleteDocument:
        what = self._chance.random()
        number = self._chance.randrange(self._orders)
        if what < 0.3:
            return self._order()
        if what < 0.85:
            return self._set("orders", f"order:{number}", self._an_order("paid", "packed", "sent"))
        if what < 0.95:
            return DeleteDocument(*self._place("orders", f"order:{number}"))
        basket = {"products": self._chance.randrange(1, 9)}
        return self._set("orders", f"basket:{number}", basket, seconds=3)

    def _order(self) -> SetDocument:
        self._orders += 1
        return self._set("orders", f"order:{self._orders - 1}", self._an_order("new"))

    def _an_order(self, *states: str) -> dict[str, object]:
        return {
            "customer": self._chance.randrange(CUSTOMERS),
            "cents": self._chance.randrange(500, 20_000),
            "state": self._chance.choice(states),
        }

    def _set(
        self, kind: str, key: str, document: Mapping[str, object], seconds: int = 0
    ) -> SetDocument:
        value = json.dumps(document).encode()
        return SetDocument(*self._place(kind, key), value, expiry=seconds, datatype=1)

    def _place(self, kind: str, key: str) -> tuple[int, bytes]:
        name = key.encode()
        return vbucket_of(name, VBUCKETS), document_key(name, self._collections[kind])


class Demo:
    """The steps, and what they show."""

    def __init__(self, console: Console, producer: TemporaryProducer, table: Path) -> None:
        self._console = console
        self._producer = producer
        self._table = table
        self._started = time.monotonic()

    def say(self, text: str) -> None:
        self._console.print(f"[dim]{time.monotonic() - self._started:6.1f} s[/]  {text}")

    def watch(self, pipeline: Pipeline, seconds: float) -> None:
        """Shows how the mirror keeps up: a line that changes on a terminal, else a few lines."""
        end = time.monotonic() + seconds
        with self._console.status("") as status:
            while (left := end - time.monotonic()) > 0:
                now = pipeline.status()
                line = f"{now.rows:,} changes in {now.batches} batches, {pipeline.lag()} behind"
                status.update(line)
                time.sleep(min(left, 0.5))
        self.say(line)

    def catch_up(self, pipeline: Pipeline) -> None:
        """Waits until the table has everything that was written."""
        deadline = time.monotonic() + PATIENCE
        while pipeline.lag() != 0:
            if pipeline.wait(0.2) or time.monotonic() > deadline:
                raise SystemExit(f"the mirror does not catch up: {pipeline.status()}")

    def fail_over(self, shop: Shop, pipeline: Pipeline) -> None:
        """Lets the mirror have changes that a replica has not, and the replica take over."""
        bucket = self._producer.bucket
        with shop.turn:
            self.catch_up(pipeline)
            vbucket = max(range(VBUCKETS), key=lambda vb: bucket.vbucket_stats(vb).high_seqno)
            high = bucket.vbucket_stats(vbucket).high_seqno
            before = pipeline.status().rollbacks
            landed = self._producer.fail_over(vbucket, high - BEHIND)
        self.say(
            f"[bold]failover[/]: vbucket {vbucket} is now served by a replica that was {BEHIND} "
            f"changes behind; {high} went back to {landed}, on a new branch"
        )
        deadline = time.monotonic() + PATIENCE
        while pipeline.status().rollbacks == before:
            if pipeline.wait(0.2) or time.monotonic() > deadline:
                raise SystemExit(f"the mirror did not hear of it: {pipeline.status()}")
        self.say("the pipeline heard of it, and took back what had never happened")


def sales(spark: object, table: Path) -> Table:
    """What the table answers: sales by city, from orders and customers."""
    from pyspark.sql import SparkSession

    assert isinstance(spark, SparkSession)
    documents = read_table(spark, table)
    documents.selectExpr(
        "collection", "string(key) as key", "parse_json(string(value)) as value"
    ).createOrReplaceTempView("documents")
    answer = spark.sql("""
        select customer.value:city::string as city,
               count(*) as orders,
               round(sum(orders.value:cents::bigint) / 100) as sales
        from documents orders
        join documents customer
          on customer.collection = 'customers'
         and customer.key = concat('customer:', orders.value:customer::int)
        where orders.collection = 'orders' and orders.key like 'order:%'
        group by city order by sales desc
    """)
    shown = Table(title="sales by city, from the mirror", title_justify="left")
    for name in ("city", "orders", "sales"):
        shown.add_column(name, justify="left" if name == "city" else "right")
    for row in answer.collect():
        shown.add_row(row.city, f"{row.orders:,}", f"{row.sales:,.0f}")
    return shown


@contextmanager
def quiet_children(log: Path) -> Iterator[None]:
    """Has what Spark's processes say about themselves in a file, and our own errors as ever."""
    mine = os.fdopen(os.dup(2), "w", buffering=1)
    with log.open("w") as file:
        os.dup2(file.fileno(), 2)
    sys.stderr, before = mine, sys.stderr
    try:
        yield
    finally:
        sys.stderr = before
        os.dup2(mine.fileno(), 2)
        mine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--keep", action="store_true", help="leave everything running at the end")
    parser.add_argument("--seconds", type=float, default=15, help="how long the shop is open")
    options = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    console = Console(highlight=False)
    settings = BucketSettings(vbuckets=VBUCKETS, maintenance_interval=1.0)
    with (
        tempfile.TemporaryDirectory(prefix="upriver-demo-") as scratch,
        TemporaryProducer(bucket_settings=settings) as producer,
    ):
        table = Path(scratch) / "shop"
        demo = Demo(console, producer, table)
        shop = Shop(producer)
        count = shop.open()
        demo.say(f"a producer at {producer.source} with {count:,} documents of a shop")
        feed = ProducerFeed(producer.producer)
        with (
            Collector(feed.sample) as collector,
            DashboardServer(collector, feed, port=0) as page,
            quiet_children(Path(scratch) / "spark.log"),
        ):
            demo.say(f"watch it at [bold]{page.url}[/]")
            run(demo, console, shop, producer, table, options)


def run(
    demo: Demo,
    console: Console,
    shop: Shop,
    producer: TemporaryProducer,
    table: Path,
    options: argparse.Namespace,
) -> None:
    spark = session("demo", master="local[2]")
    spark.sparkContext.setLogLevel("OFF")
    demo.say(f"Spark {spark.version} is up; the mirror of the bucket is a Delta table at {table}")
    pipeline = mirror(spark, source=producer.source, table=table)
    demo.catch_up(pipeline)
    demo.say(f"the mirror has all {pipeline.status().rows:,} documents; the shop opens")
    closing = threading.Event()
    seller = threading.Thread(target=shop.run, args=(closing,))
    seller.start()
    try:
        demo.watch(pipeline, options.seconds / 2)
        demo.fail_over(shop, pipeline)
        demo.watch(pipeline, options.seconds / 2)
    finally:
        closing.set()
        seller.join()
    producer.bucket.expire()
    demo.catch_up(pipeline)
    demo.say("the shop is closed; is the table equal to the database?")
    compared = verify(spark, source=producer.source, table=str(table))
    verdict = "equal" if not compared.differing else f"{compared.differing} differ"
    demo.say(f"[bold]{verdict}[/]: {compared.equal:,} documents compared key by key")
    console.print(sales(spark, table))
    status = pipeline.status()
    demo.say(
        f"{status.rows:,} changes in {status.batches} batches, {status.rollbacks} rollback undone"
    )
    if options.keep:
        console.print("running until Ctrl-C")
        with suppress(KeyboardInterrupt):
            pipeline.wait()
    pipeline.stop()
    spark.stop()
    if compared.differing:
        raise SystemExit("the mirror is not equal to the database")


if __name__ == "__main__":
    main()
