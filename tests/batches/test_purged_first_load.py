"""A first load in small batches of a bucket whose tombstones were purged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sparkkit import fill

from upriver.batches.admission import Limits
from upriver.batches.consumer_cache import close_cached
from upriver.batches.offset_ranges import steps_between
from upriver.batches.options import ReadOptions
from upriver.batches.stream_driver import Driver
from upriver.batches.task_reader import read_steps
from upriver.session import producer_options
from upriver.testing import TemporaryProducer

ROWS = 10


@pytest.fixture
def producer() -> Iterator[TemporaryProducer]:
    """With one vbucket, whose purge seqno is far above the first batch."""
    with TemporaryProducer(vbuckets=1) as made:
        fill(made, range(40))
        made.delete(b"key-3", vbucket=0)
        fill(made, range(40, 50))
        made.purge()
        assert made.bucket.vbucket_stats(0).purge_seqno == 41
        yield made
    close_cached()


def loaded(
    producer: TemporaryProducer, then: Callable[[], None] = lambda: None
) -> list[list[dict[str, Any]]]:
    """The rows of each batch, until there is nothing more to read.

    ``then`` happens after the second batch.
    """
    options = ReadOptions.parse({"path": producer.source})
    driver = Driver(options)
    try:
        at, batches = driver.first_offset(), []
        while (end := driver.next_offset(at, Limits(rows=ROWS), patience=1.0)) is not at:
            steps, at = steps_between(at, end), end
            batches.append([row for b in read_steps(options, steps) for row in b.to_pylist()])
            if len(batches) == 2:
                then()
        return batches
    finally:
        driver.close()


def test_a_server_that_is_named_its_purge_seqno_sends_the_rest(producer: TemporaryProducer) -> None:
    batches = loaded(producer)
    rows = [row for batch in batches for row in batch]
    assert {row["op"] for row in rows} == {"mutation"}
    assert {row["key"] for row in rows} == {b"key-%d" % n for n in range(50) if n != 3}
    assert len(rows) == 49
    assert max(map(len, batches)) <= ROWS


def test_an_older_server_sends_everything_once_more(
    producer: TemporaryProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not know that the reader began after the purge."""
    controls: dict[str, Any] = producer_options._CONTROLS
    monkeypatch.setitem(controls, "max_marker_version", producer_options._unsupported)
    rows = [row for batch in loaded(producer) for row in batch]
    assert keys_after_rollback(rows) == {b"key-%d" % n for n in range(50) if n != 3}


def test_a_purge_during_the_load_leads_back_to_the_beginning(producer: TemporaryProducer) -> None:
    """The purge seqno that the reader names is not the server's any more."""

    def purge() -> None:
        producer.delete(b"key-0", vbucket=0)  # which was read
        fill(producer, range(50, 60))
        producer.purge()

    rows = [row for batch in loaded(producer, purge) for row in batch]
    assert b"key-0" in {row["key"] for row in rows}
    assert keys_after_rollback(rows) == {b"key-%d" % n for n in range(60) if n not in (0, 3)}


def keys_after_rollback(rows: list[dict[str, Any]]) -> set[bytes]:
    """The keys of the rows that the only rollback row, to seqno 0, leaves valid."""
    [again] = [place for place, row in enumerate(rows) if row["op"] == "rollback"]
    assert (rows[again]["seqno"], rows[again]["branch"]) == (0, 1)
    return {row["key"] for row in rows[again + 1 :]}
