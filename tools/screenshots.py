"""Takes the pictures of the dashboard in the documentation: ``docs/images/dashboard-*.png``.

    .venv/bin/python tools/screenshots.py [DIRECTORY]

It needs chromium and chromedriver, and uses pngquant where that is installed. A real producer is
written to and read for a minute, one reader is slow, some vbuckets are replicas, and two fail over.
The batches are made up, as lines in the file that a pipeline would write.
"""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from upriver.cli.dashboard.producer_figures import ProducerFeed
from upriver.consumer import Consumer
from upriver.consumer.topology.cluster_map import vbucket_of
from upriver.dashboard.collector import Collector
from upriver.dashboard.httpd import DashboardServer
from upriver.dashboard.progress_file import ProgressFile
from upriver.model import VBucketState
from upriver.store import SetDocument, document_key
from upriver.tables.progress_log import LocalProgress, ProgressBook
from upriver.testing import TemporaryProducer
from upriver.wire import kv_messages as kv
from upriver.wire.dialects import Dcp

VBUCKETS = 1024
SECONDS = 60
#: The document whose versions are shown; its vbucket stays active.
DOCUMENT = b"user::7"
assert vbucket_of(DOCUMENT, VBUCKETS) < 768
PICTURES = {
    "dashboard-light": (1280, 900, "light", "state"),
    "dashboard-dark": (1280, 900, "dark", "lag"),
    "dashboard-phone-light": (390, 844, "light", "lag"),
    "dashboard-phone-dark": (390, 844, "dark", "state"),
}


def write(producer: TemporaryProducer, stopped: threading.Event) -> None:
    """Writes in waves, so that the curves have a shape."""
    step = 0
    while not stopped.wait(0.05):
        step += 1
        keys = [b"user::%d" % random.randrange(40_000) for _ in range(20 + 60 * (step // 80 % 2))]
        producer.bucket.write_many(
            [
                SetDocument(vbucket_of(key, VBUCKETS), document_key(key, 0), b'{"n":1}')
                for key in keys
            ]
        )


def read(producer: TemporaryProducer, stopped: threading.Event) -> None:
    """Gets documents over a socket, one after the other."""
    dialect = Dcp()
    with socket.create_connection((producer.host, producer.port)) as link:
        while not stopped.wait(random.uniform(0, 0.008)):
            key = b"user::%d" % random.randrange(40_000)
            link.sendall(dialect.encode(kv.Get(key=key, vbucket=vbucket_of(key, VBUCKETS))))
            head = link.recv(24, socket.MSG_WAITALL)
            link.recv(int.from_bytes(head[8:12]), socket.MSG_WAITALL)


def follow(producer: TemporaryProducer, stopped: threading.Event, name: str, slow: bool) -> None:
    with Consumer(producer.source, name=name, buffer=2**17 if slow else 2**23) as consumer:
        for number, _ in enumerate(consumer):
            if stopped.is_set():
                return
            if slow and number % 50 == 0:
                time.sleep(0.2)


def batches(book: ProgressBook, stopped: threading.Event) -> None:
    number = 0
    while not stopped.wait(0.5):
        number += 1
        book.batch_done(
            advance=0,
            began=time.monotonic() - random.uniform(0.2, 0.6),
            batch=number,
            rows=random.randrange(200, 900),
            bytes=50_000,
            steps={},
            rollbacks=int(number % 45 == 0),
            dead_letters=0,
            lag=random.randrange(60),
            delay=random.uniform(0.4, 1.2),
        )


def make_small(picture: Path) -> None:
    """To a third of its size, where pngquant is installed."""
    if shutil.which("pngquant"):
        subprocess.run(
            ["pngquant", "--force", "--strip", "--output", picture, "64", picture], check=True
        )


def take(url: str, directory: Path) -> None:
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        for name, (width, height, theme, colour) in PICTURES.items():
            driver.execute_cdp_cmd(
                "Emulation.setDeviceMetricsOverride",
                {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
            )
            driver.execute_cdp_cmd(
                "Emulation.setEmulatedMedia",
                {"features": [{"name": "prefers-color-scheme", "value": theme}]},
            )
            driver.get(url)
            time.sleep(2.5)
            driver.find_element(By.CSS_SELECTOR, '[data-vbucket="300"]').click()
            radio = driver.find_element(By.CSS_SELECTOR, f"input[value={colour}]")
            driver.execute_script("arguments[0].click()", radio)
            driver.find_element(By.ID, "document-key").send_keys(DOCUMENT.decode(), Keys.ENTER)
            time.sleep(1.5)
            driver.execute_script("scrollTo(0, 0)")
            whole = driver.execute_script("return document.documentElement.scrollHeight")
            driver.execute_cdp_cmd(
                "Emulation.setDeviceMetricsOverride",
                {"width": width, "height": whole, "deviceScaleFactor": 1, "mobile": width < 600},
            )
            time.sleep(0.5)
            picture = directory / f"{name}.png"
            driver.save_screenshot(str(picture))
            make_small(picture)
            print(picture)
    finally:
        driver.quit()


def main() -> None:
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images")
    directory.mkdir(parents=True, exist_ok=True)
    stopped = threading.Event()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        producer = stack.enter_context(TemporaryProducer(vbuckets=VBUCKETS))
        for vbucket in range(768, 960):
            producer.set_state(vbucket, VBucketState.REPLICA)
        for vbucket in range(960, 1000):
            producer.set_state(vbucket, VBucketState.PENDING)
        for vbucket in range(1000, 1024):
            producer.set_state(vbucket, VBucketState.DEAD)
        shop = producer.bucket.create_scope("shop")
        for number, name in enumerate(("orders", "customers", "carts")):
            collection = producer.bucket.create_collection(shop.id, name)
            producer.bucket.write_many(
                [
                    SetDocument(key % 768, document_key(b"%d" % key, collection.id), b"{}")
                    for key in range(900 * (number + 1))
                ]
            )
        for total in range(3):
            producer.write(DOCUMENT, b'{"name": "Ann", "orders": %d}' % total)
        feed = ProducerFeed(producer.producer)
        file = ProgressFile(scratch / "progress.jsonl", "orders")
        collector = stack.enter_context(Collector(feed.sample, [file.sample]))
        page = stack.enter_context(DashboardServer(collector, feed, port=0))
        threads = [
            threading.Thread(target=write, args=(producer, stopped)),
            threading.Thread(target=read, args=(producer, stopped)),
            threading.Thread(
                target=batches,
                args=(ProgressBook(LocalProgress(scratch / "progress.jsonl", "a"), None), stopped),
            ),
            *(
                threading.Thread(target=follow, args=(producer, stopped, name, slow), daemon=True)
                for name, slow in (("orders-mirror", False), ("search-index", True))
            ),
        ]
        for thread in threads:
            thread.start()
        time.sleep(SECONDS / 2)
        for vbucket in (300, 301):
            high = producer.bucket.vbucket_stats(vbucket).high_seqno
            producer.fail_over(vbucket, high // 2)
        time.sleep(SECONDS / 2)
        take(page.url, directory)
        stopped.set()
        for thread in threads[:3]:
            thread.join()


if __name__ == "__main__":
    main()
