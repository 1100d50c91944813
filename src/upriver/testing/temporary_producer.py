"""A temporary producer for a test: a real server with its own directory, port and thread."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeVar

from .._unclosed import warn_unclosed
from ..producer.bootstrap.cluster_config import NodeAddress
from ..producer.embedded import Producer
from ..producer.server_settings import ServerSettings
from ..store import Bucket, BucketSettings
from .producer_base import BucketScript, settings_for_tests

_T = TypeVar("_T")


class TemporaryProducer(BucketScript):
    """A real server on a free port of 127.0.0.1, removed with its data when the block ends.

        with TemporaryProducer(vbuckets=16) as producer:
            producer.write(b"key", b"value")
            reader = connect(producer.source)
            producer.kill_connections()
            producer.restart()

    ``data`` is a directory that keeps the documents. ``advertise`` is the address that the server
    gives its clients instead of its own, such as that of a `ChaosProxy`. ``wall`` is the clock, in
    nanoseconds since 1970, to let documents expire without waiting. With ``end_zero_is_no_end`` a
    stream whose request has the end seqno 0 never ends, as document 004 says; Couchbase Server ends
    it at once.
    """

    def __init__(
        self,
        *,
        vbuckets: int = 64,
        bucket: str = "default",
        data: Path | None = None,
        advertise: tuple[str, int] | None = None,
        end_zero_is_no_end: bool = False,
        settings: ServerSettings | None = None,
        bucket_settings: BucketSettings | None = None,
        wall: Callable[[], int] = time.time_ns,
    ) -> None:
        self._data = data
        self._bucket_name = bucket
        self._settings = replace(settings or ServerSettings(), port=0)
        if advertise is not None:
            self._settings = replace(self._settings, advertise=_written(*advertise))
        if end_zero_is_no_end:
            policy = replace(self._settings.policy, end_zero_is_unbounded=True)
            self._settings = replace(self._settings, policy=policy)
        self._bucket_settings = bucket_settings or settings_for_tests(vbuckets)
        self._wall = wall
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="upriver producer")
        self._producer: Producer | None = None

    # ---- start and stop ------------------------------------------------------------------

    def start(self) -> Self:
        if self._data is None:
            self._directory = tempfile.TemporaryDirectory(prefix="upriver-")
        producer = self._made(self._settings)
        self._thread.start()
        self._serve(producer)
        return self

    def stop(self) -> None:
        if self._thread.is_alive():
            if self._producer is not None:
                self._run(self._producer.stop())
                self._producer = None
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()
        if self._directory is not None:
            self._directory.cleanup()

    def __del__(self) -> None:
        thread = getattr(self, "_thread", None)
        if thread is not None and thread.is_alive():
            how = "use it in a with block, or call stop()"
            warn_unclosed(self, f"the bucket {self._bucket_name}", how)

    def restart(self) -> None:
        """Stops the server and starts it again on the same port with the same data.

        Connections end. The stop is clean, so no new branch begins. ``bucket`` is a new object
        afterwards.
        """
        running = self._running
        settings = replace(self._settings, port=running.port)
        self._producer = None  # a stopped producer must not be used, even if the start fails
        self._run(running.stop())
        self._serve(self._made(settings))

    def _made(self, settings: ServerSettings) -> Producer:
        return Producer(
            self._data or Path(self._directory.name if self._directory else "."),
            settings,
            bucket=self._bucket_name,
            bucket_settings=self._bucket_settings,
            wall=self._wall,
        )

    def _serve(self, producer: Producer) -> None:
        self._run(producer.start())
        self._producer = producer

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def _run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    @property
    def _running(self) -> Producer:
        if self._producer is None:
            raise RuntimeError("the producer is not running: use it in a with block")
        return self._producer

    # ---- address and bucket --------------------------------------------------------------

    @property
    def host(self) -> str:
        return self._settings.host

    @property
    def port(self) -> int:
        return self._running.port

    @property
    def source(self) -> str:
        """The connection string of the bucket, with the advertised address."""
        scheme = "couchbase" if self._settings.certificate is None else "couchbases"
        host, port = self._settings.address(self.port)
        return f"{scheme}://{_written(host, port)}/{self._bucket_name}"

    @property
    def bucket(self) -> Bucket:
        """The bucket itself, to read and write without a socket."""
        return self._running.bucket

    @property
    def producer(self) -> Producer:
        return self._running

    # ---- faults --------------------------------------------------------------------------

    def kill_connections(self) -> int:
        """Drops every connection without notice; returns how many there were."""
        return self._run(self._kill_connections())

    async def _kill_connections(self) -> int:
        connections = self._running.server.connections
        for connection in connections:
            connection.abort()
        await asyncio.sleep(0)  # the loop closes their sockets in its next iteration
        return len(connections)


def _written(host: str, port: int) -> str:
    return NodeAddress(host, port).address(port)
