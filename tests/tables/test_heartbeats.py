"""What others know of a pipeline: what it does, what it waits for, and how far it is behind."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import until

from upriver.consumer.topology import waiting
from upriver.files.storage import Storage
from upriver.tables import lease as lease_module
from upriver.tables import pipeline_watch
from upriver.tables.executors import ThisProcess
from upriver.tables.heartbeat import STATES, read_heartbeat
from upriver.tables.pipeline import Pipeline
from upriver.tables.pipeline_report import page
from upriver.tables.pipeline_settings import PipelineSettings
from upriver.tables.pipeline_start import place_of, start_pipeline
from upriver.tables.progress_log import read_progress
from upriver.testing import TemporaryProducer

VBUCKETS = 4


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "_RENEWED_AFTER", 0.05)
    monkeypatch.setattr(pipeline_watch, "_EVERY", 0.05)
    monkeypatch.setattr(pipeline_watch, "_LINE_EVERY", 0.0)
    monkeypatch.setattr(waiting, "_PATIENCE", 0.1)


@pytest.fixture
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        for number in range(20):
            producer.write(b"k%d" % number, b"{}", number % VBUCKETS)
        yield producer


@contextmanager
def running(producer: TemporaryProducer, table: Path) -> Iterator[Pipeline]:
    settings = PipelineSettings.parse("mirror", producer.source, {})
    pipeline = start_pipeline(ThisProcess(), settings, place_of(table, settings))
    try:
        until(lambda: heard(table) == ("idle", 0), unless=lambda: pipeline.wait(0))
        yield pipeline
    finally:
        pipeline.stop()


def heard(table: Path) -> tuple[str, int | None] | None:
    """What the pipeline of a table does, and how far it is behind."""
    found = read_heartbeat(Storage.parse(table))
    return (found.state, found.lag) if found is not None else None


def test_who_sees_the_table_knows_for_what_its_pipeline_waits(
    producer: TemporaryProducer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = tmp_path / "documents"
    assert heard(table) is None
    with running(producer, table) as pipeline:
        producer.stop()
        until(lambda: heard(table) == ("waiting", None), unless=lambda: pipeline.wait(0))
        found, status = read_heartbeat(Storage.parse(table)), pipeline.status()
        assert found is not None
        assert re.search(r"127\.0\.0\.1:\d+ cannot be reached: Connection refused", found.reason)
        assert (status.state, status.lag, status.reason) == ("waiting", None, found.reason)
        until(lambda: re.search(r"waiting for default for \d s: 127\.0\.0\.1:", caplog.text))


def test_the_log_says_how_it_goes(
    producer: TemporaryProducer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = tmp_path / "documents"
    with caplog.at_level(logging.INFO, pipeline_watch.__name__), running(producer, table):
        until(lambda: re.search(r"idle, 20 changes, .*, 0 behind", caplog.text))
    said = [record.getMessage() for record in caplog.records]
    assert re.fullmatch(rf"mirror of default at {table}: started, run \w+", said[0])
    assert re.match(rf"mirror of default at {table}: stopped, 20 changes, ", said[-1])


def test_how_a_pipeline_ended_is_there_and_how_far_it_was_behind_is_not(
    producer: TemporaryProducer, tmp_path: Path
) -> None:
    table = tmp_path / "documents"
    with running(producer, table):
        pass
    producer.write(b"later", b"{}")
    assert heard(table) == ("stopped", None)
    storage = Storage.parse(table)
    text = page("orders", read_progress(storage), read_heartbeat(storage))
    assert re.search(r"<b>stopped since \S+ \S+ UTC; behind: not known</b>", text)


def test_one_that_says_nothing_any_more_is_gone(
    producer: TemporaryProducer, tmp_path: Path
) -> None:
    table = tmp_path / "documents"
    with running(producer, table):
        moment = time.time() + lease_module.DURATION + 1
        later = read_heartbeat(Storage.parse(table), now=lambda: moment)
    assert later is not None
    assert (later.state, later.lag, later.lag_seconds) == ("gone", None, None)
    assert later.reason == "was idle when it was heard of last"


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.sampled_from(STATES),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["pipeline", "time", "until", "state", "since", "lag", "measured"]),
            inner,
        )
    ),
)


@given(JSON.map(lambda content: json.dumps(content).encode()) | st.binary(max_size=50))
def test_whatever_is_in_a_lease_is_no_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    table = tmp_path_factory.mktemp("documents")
    lease = table / "_upriver" / "lease" / f"{1:020}.json"
    lease.parent.mkdir(parents=True)
    lease.write_bytes(content)
    assert (heard(table) or (None,))[0] in (None, *STATES)
