"""A bucket that a node has not: for a moment, as after a restart, for good, or from the start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from consumerkit import Conversation
from deltalake import DeltaTable
from old_servers import Release705
from waiting import until

from upriver.errors import BucketNotFound, Status
from upriver.tables.executors import ThisProcess
from upriver.tables.pipeline import Pipeline
from upriver.tables.pipeline_settings import PipelineSettings
from upriver.tables.pipeline_start import place_of, start_pipeline
from upriver.wire import kv_messages as kv

#: Changes at the beginning, and how many come later.
BEFORE, LATER = 3, 2


class Restarted(Release705):
    """A node that has its bucket, or not yet."""

    def __init__(self) -> None:
        self.talks: set[Conversation] = set()
        self.has_bucket = True
        #: How often somebody was told that there is no bucket.
        self.refused = 0
        super().__init__({0: BEFORE})

    def answered(self, talk: Conversation, request: Any) -> bool:
        self.talks.add(talk)
        if isinstance(request, kv.SelectBucket) and not self.has_bucket:
            self.refused += 1
            talk.answer(request, Status.NOT_FOUND)
            return True
        return super().answered(talk, request)

    def restart(self) -> None:
        """Loses its connections, and has no bucket yet."""
        self.has_bucket = False
        for talk in list(self.talks):
            with suppress(OSError):  # the client has closed it
                talk.hang_up()


def started(server: Restarted, table: Path, **options: Any) -> Pipeline:
    settings = PipelineSettings.parse("mirror", server.source, options)
    return start_pipeline(ThisProcess(), settings, place_of(table, settings))


@contextmanager
def caught_up(server: Restarted, table: Path, **options: Any) -> Iterator[Pipeline]:
    """A mirror that runs and has what the server has."""
    pipeline = started(server, table, **options)
    try:
        until(lambda: rows_of(table) == BEFORE, unless=lambda: pipeline.wait(0))
        yield pipeline
    finally:
        pipeline.stop()


def rows_of(table: Path) -> int:
    return DeltaTable(table).count() if DeltaTable.is_deltatable(str(table)) else 0


def test_a_pipeline_waits_for_a_bucket_that_it_has_seen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = tmp_path / "table"
    with Restarted() as server, caught_up(server, table) as pipeline:
        server.restart()
        server.write(0, LATER)
        until(lambda: server.refused > 2, unless=lambda: pipeline.wait(0))
        server.has_bucket = True
        until(lambda: rows_of(table) == BEFORE + LATER, unless=lambda: pipeline.wait(0))
    told = [r.getMessage() for r in caplog.records if "waiting for the bucket" in r.getMessage()]
    assert len(told) == 1
    assert "has no bucket default" in told[0]


def test_a_pipeline_ends_when_its_bucket_does_not_come_back(tmp_path: Path) -> None:
    options = {"retry_timeout": "1s"}
    with Restarted() as server, caught_up(server, tmp_path / "table", **options) as pipeline:
        server.restart()
        with pytest.raises(BucketNotFound, match="has no bucket default"):
            pipeline.wait()


def test_a_bucket_that_was_never_seen_is_not_waited_for(tmp_path: Path) -> None:
    with Restarted() as server:
        server.has_bucket = False
        with pytest.raises(BucketNotFound, match="has no bucket default"):
            started(server, tmp_path / "table")
        assert server.refused == 1
