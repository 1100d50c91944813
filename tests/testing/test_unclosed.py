"""What is dropped without being closed warns, with its name and what to do."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, cast

import pytest

from upriver.consumer.topology.seqno_survey import Survey
from upriver.consumer.transport.access import Access
from upriver.consumer.transport.connection_string import Source
from upriver.consumer.writing.documents import Documents
from upriver.consumer.writing.write_operations import upsert
from upriver.consumer.writing.writer import Writer
from upriver.errors import ConfigError
from upriver.tables.pipeline import Pipeline
from upriver.testing import ChaosProxy, TemporaryCluster, TemporaryProducer, temporary_cluster

PATIENCE = 300.0


@pytest.fixture(scope="module")
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=1) as producer:
        yield producer


@pytest.fixture
def source(producer: TemporaryProducer) -> Source:
    return Source.parse(producer.source)


def drop(held: list[Any]) -> None:
    """Drops the only reference to an object."""
    held.clear()
    gc.collect()


def ended(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    thread.join(PATIENCE)
    loop.close()


def test_a_producer_that_was_not_stopped() -> None:
    held = [TemporaryProducer(vbuckets=1, bucket="shop")]
    loop, thread = held[0]._loop, held[0]._thread
    thread.daemon = True
    running, directory = held[0].start()._producer, held[0]._directory
    assert running is not None
    assert directory is not None
    said = r"TemporaryProducer of the bucket shop was not closed: .*stop\(\)"
    with pytest.warns(ResourceWarning, match=said):
        drop(held)
    asyncio.run_coroutine_threadsafe(running.stop(), loop).result(PATIENCE)
    ended(loop, thread)
    directory.cleanup()


def test_a_proxy_that_was_not_stopped() -> None:
    held = [ChaosProxy()]
    loop, thread, place = held[0]._loop, held[0]._thread, held[0]._place
    thread.daemon = True
    listener = held[0].start()._listener
    assert listener is not None
    port = held[0].port
    with pytest.warns(ResourceWarning, match=rf"ChaosProxy of 127\.0\.0\.1:{port} was not closed"):
        drop(held)
    loop.call_soon_threadsafe(listener.close)
    ended(loop, thread)
    place.close()


def test_a_cluster_that_was_not_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(temporary_cluster, "start_manager", lambda directory: {})
    held = [TemporaryCluster(directory=tmp_path)]
    held[0].start()
    with pytest.warns(ResourceWarning, match=f"TemporaryCluster of {tmp_path} was not closed"):
        drop(held)


@pytest.mark.parametrize("kind", [Documents, Survey, Writer])
def test_a_client_that_was_not_closed(kind: type[Any], source: Source) -> None:
    held = [kind(source, Access())]
    if kind is Survey:
        held[0].map()
    left = [held[0]._nodes]
    if kind is Writer:
        held[0].put(upsert(b"key", b"{}"))
        held[0].flush()
        left += [one.connection for one in held[0]._pipelines.values()]
    with pytest.warns(ResourceWarning, match=f"{kind.__name__} of {source} was not closed"):
        drop(held)
    for one in left:
        one.close()


def test_a_pipeline_that_was_not_stopped() -> None:
    class Idle:
        def run(self, stopped: threading.Event) -> None:
            stopped.wait()

        def interrupt(self) -> None:
            pass

    class Book:
        def close(self, state: str) -> None:
            self.state = state

    book = Book()
    held = [Pipeline("s3://lake/documents", cast("Any", book), cast("Any", None))]
    held[0].run(cast("Any", Idle()), ExitStack())
    running = held[0]._running
    with pytest.warns(ResourceWarning, match="Pipeline of s3://lake/documents was not closed"):
        drop(held)
    running.stopped.set()
    assert running.ended.wait(PATIENCE)
    assert book.state == "stopped"


def test_what_is_closed_or_could_not_be_made_does_not_warn(
    source: Source, recwarn: pytest.WarningsRecorder
) -> None:
    with Documents(source), Survey(source, Access()) as survey, Writer(source):
        survey.map()
    with ChaosProxy():
        pass
    with suppress(ConfigError):
        TemporaryProducer(advertise=("", -1))
    with suppress(AttributeError):
        Documents(cast("Any", None))
    gc.collect()
    assert [one for one in recwarn if issubclass(one.category, ResourceWarning)] == []
