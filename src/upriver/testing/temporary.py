"""A producer for the length of a test: its own directory, port and thread."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from ..model import VBucketState
from ..producer.service import Producer
from ..producer.settings import ServerSettings
from ..store import Bucket, BucketSettings

__all__ = ["TemporaryProducer"]

_T = TypeVar("_T")


class TemporaryProducer:
    """A real server on a free port of 127.0.0.1, gone with its data when the block ends.

        with TemporaryProducer(vbuckets=16) as producer:
            connect(producer.host, producer.port)

    ``data`` keeps the documents in a directory of the caller's instead. ``wall`` is the clock, in
    nanoseconds since 1970, for documents that shall expire without anybody waiting.
    """

    def __init__(
        self,
        *,
        vbuckets: int = 64,
        bucket: str = "default",
        data: Path | None = None,
        settings: ServerSettings | None = None,
        bucket_settings: BucketSettings | None = None,
        wall: Callable[[], int] = time.time_ns,
    ) -> None:
        self._data = data
        self._bucket_name = bucket
        self._settings = replace(settings or ServerSettings(), port=0)
        self._bucket_settings = bucket_settings or BucketSettings(
            vbuckets=vbuckets, maintenance_interval=0
        )
        self._wall = wall
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="upriver producer")
        self._producer: Producer | None = None

    # ---- life ----------------------------------------------------------------------------

    def start(self) -> Self:
        if self._data is None:
            self._directory = tempfile.TemporaryDirectory(prefix="upriver-")
        data = self._data or Path(self._directory.name if self._directory else ".")
        self._producer = Producer(
            data,
            self._settings,
            bucket=self._bucket_name,
            bucket_settings=self._bucket_settings,
            wall=self._wall,
        )
        self._thread.start()
        self._run(self._producer.start())
        return self

    def stop(self) -> None:
        if self._producer is not None:
            self._run(self._producer.stop())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._producer = None
        self._loop.close()
        if self._directory is not None:
            self._directory.cleanup()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    @property
    def _running(self) -> Producer:
        if self._producer is None:
            raise RuntimeError("the producer is not running: use it in a with block")
        return self._producer

    # ---- where and what ------------------------------------------------------------------

    @property
    def host(self) -> str:
        return self._settings.host

    @property
    def port(self) -> int:
        return self._running.port

    @property
    def bucket(self) -> Bucket:
        """The bucket itself, to write and look without a socket."""
        return self._running.bucket

    @property
    def producer(self) -> Producer:
        return self._running

    # ---- faults --------------------------------------------------------------------------

    def fail_over(self, vbucket: int, seqno: int) -> int:
        """A replica that had everything up to ``seqno`` becomes active; returns where it is.

        What came after is gone, a new branch begins, and streams end with "state changed".
        """
        return self.bucket.rollback(vbucket, seqno)

    def set_state(self, vbucket: int, state: VBucketState) -> None:
        """Makes a vbucket active, replica, pending or dead; its streams end."""
        self.bucket.set_state(vbucket, state)
