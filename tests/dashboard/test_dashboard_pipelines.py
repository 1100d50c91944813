"""Pipelines, followed through the file that they write a line to for every batch."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from dashboardkit import ask, idle
from waiting import until

from upriver.dashboard.collector import Collector
from upriver.dashboard.event_detection import EventDetector
from upriver.dashboard.httpd import DashboardServer
from upriver.dashboard.progress_file import ProgressFile
from upriver.tables.progress_log import LocalProgress, ProgressBook


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders" / "_upriver" / "progress.jsonl"


def batch(book: ProgressBook, number: int, **other: Any) -> None:
    facts = {"rows": 10, "bytes": 100, "steps": {"read": 0.1}, "rollbacks": 0, "dead_letters": 0}
    facts |= {"lag": 3, "delay": 0.5, **other}
    book.batch_done(advance=0, began=time.monotonic(), batch=number, **facts)


def test_a_pipeline_that_has_not_begun_has_no_batch(path: Path) -> None:
    figures = ProgressFile(path, "orders").sample()
    assert (figures["name"], figures["batches"], figures["recent"]) == ("orders", 0, [])


def test_batches_are_counted_as_they_come(path: Path) -> None:
    book, file = ProgressBook(LocalProgress(path, "run"), None), ProgressFile(path, "orders")
    batch(book, 0)
    batch(book, 1, rows=5, rollbacks=2, dead_letters=1, lag=None, delay=None)
    figures = file.sample()
    assert (figures["batches"], figures["rows"]) == (2, 15)
    assert (figures["rollbacks"], figures["dead_letters"]) == (2, 1)
    assert [one["lag"] for one in figures["recent"]] == [3, None]
    assert file.sample() == figures
    batch(book, 2)
    assert file.sample()["batches"] == 3


def test_only_the_newest_batches_are_shown(path: Path) -> None:
    book, file = ProgressBook(LocalProgress(path, "run"), None), ProgressFile(path, "orders")
    for number in range(100):
        batch(book, number)
    figures = file.sample()
    assert figures["batches"] == 100
    assert [one["batch"] for one in figures["recent"]] == list(range(40, 100))


def test_a_file_that_was_made_shorter_counts_nothing_twice(path: Path) -> None:
    book, file = ProgressBook(LocalProgress(path, "run"), None), ProgressFile(path, "orders")
    for number in range(6):
        batch(book, number)
    file.sample()
    lines = path.read_text().splitlines(keepends=True)
    draft = path.with_suffix(".new")
    draft.write_text("".join(lines[3:]))
    os.replace(draft, path)
    batch(book, 6)
    figures = file.sample()
    assert figures["batches"] == 7
    assert [one["batch"] for one in figures["recent"]] == list(range(7))


def test_a_line_that_is_half_written_waits_and_one_that_is_damaged_is_left_out(
    path: Path,
) -> None:
    book, file = ProgressBook(LocalProgress(path, "run"), None), ProgressFile(path, "orders")
    batch(book, 0)
    line = path.read_bytes()
    later = json.dumps({**json.loads(line), "time": time.time() + 1, "batch": 1}).encode() + b"\n"
    with open(path, "ab") as end:
        end.write(b"\xff\xfe\n{}\n[1]\n" + b"[" * 100_000 + b"\n" + later[:20])
    assert file.sample()["batches"] == 1
    with open(path, "ab") as end:
        end.write(later[20:])
    assert file.sample()["batches"] == 2


def test_a_batch_that_followed_a_rollback_is_an_event(path: Path) -> None:
    book, file = ProgressBook(LocalProgress(path, "run"), None), ProgressFile(path, "orders")
    watch = EventDetector()
    batch(book, 0, rollbacks=1)
    watch.see_pipeline(file.sample())
    assert not watch.events  # it was there before
    batch(book, 1)
    batch(book, 2, rollbacks=3)
    watch.see_pipeline(file.sample())
    watch.see_pipeline(file.sample())
    (event,) = watch.events
    assert event["text"] == "orders: batch 2 had 3 rollbacks"


def test_a_page_of_pipelines_alone_has_their_metrics(path: Path) -> None:
    book = ProgressBook(LocalProgress(path, "run"), None)
    batch(book, 0, rows=7)
    file = ProgressFile(path, "orders", lambda: idle(3))
    with (
        Collector(None, [file.sample], interval=0.05) as collector,
        DashboardServer(collector, port=0) as page,
    ):
        until(lambda: collector.latest.document["pipelines"])
        text = ask(page.url, "/metrics").body.decode()
        assert 'upriver_pipeline_rows_total{table="orders"} 7.0\n' in text
        assert 'upriver_pipeline_lag_changes{table="orders"} 3.0\n' in text
        assert "\nupriver_bucket_items{" not in text
        assert ask(page.url, "/health").status == 200
