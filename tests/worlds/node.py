"""A node of a world: the server, its sessions and its store are the real ones.

Only what they stand on is simulated: the event loop, the network, the disk and the threads.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from upriver.errors import Status, StoreError, StoreRefusal
from upriver.producer.connections.connection import Connection
from upriver.producer.connections.connection_scheduler import ConnectionScheduler
from upriver.producer.keyvalue import BackgroundWork
from upriver.producer.server import Server
from upriver.producer.server_context import ServerContext
from upriver.producer.server_settings import ServerSettings
from upriver.producer.write_lease import NodeLease
from upriver.store import Bucket, BucketSettings, Store
from upriver.store.bucket_environment import Platform
from upriver.store.writes.change_requests import ChangeRequest, Outcome
from upriver.store.writes.commit_threads import GroupWriter, Ticker

from .disk import SimulatedDisk
from .scheduler import Process

_T = TypeVar("_T")


class Node:
    """A node with its disk. Its process can be killed and started again."""

    def __init__(
        self,
        name: str,
        disk: SimulatedDisk,
        new_process: Callable[[str], Process],
        *,
        port: int,
        bucket: str,
        bucket_settings: BucketSettings,
        bucket_uuid: str,
        settings: ServerSettings | None = None,
    ) -> None:
        self.name = name
        self.disk = disk
        self.port = port
        self.process: Process | None = None
        self.bucket: Bucket | None = None
        self.server: Server | None = None
        #: Why it cannot start, if it cannot.
        self.problem = ""
        self._new_process = new_process
        self._bucket_name = bucket
        self._bucket_settings = bucket_settings
        self._bucket_uuid = bucket_uuid
        self._settings = replace(
            settings or ServerSettings(), host="127.0.0.1", port=port, http_port=None
        )

    def listen_at(self, port: int) -> None:
        """Sets the port for its next process."""
        self.port = port
        self._settings = replace(self._settings, port=port)

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.alive

    def start(self) -> None:
        """Starts its process, unless it runs; a disk that cannot be opened leaves it down."""
        if self.is_up:
            return
        process = self._new_process(self.name)
        is_new = not self.disk.is_formatted
        try:
            process.call(lambda: self._open(process))
        except StoreError as problem:
            self.problem = str(problem)
            process.alive = False
            if is_new:
                self.disk.replace()  # a bucket that is only half made does not count
            self.disk.detach()
            return
        self.problem = ""
        self.process = process
        assert self.server is not None
        process.spawn(self.server.start())

    def _open(self, process: Process) -> None:
        platform = Platform(
            database=self.disk.database,
            writer=lambda commit, *, name, max_changes: _LoopWriter(
                process, self.disk, commit, max_changes
            ),
            ticker=lambda action, *, name, interval: _LoopTicker(process, action, interval),
            monotonic=process.time,
        )
        path = Path(f"/simulated/{self.name}")
        bucket = Bucket(
            self._bucket_name,
            path,
            self._bucket_settings,
            uuid=self._bucket_uuid,
            wall=process.wall,
            create=not self.disk.is_formatted,
            platform=platform,
        )
        store = _OneBucket(path, bucket, self._bucket_settings)
        context = ServerContext(
            store, self._settings, default_bucket=self._bucket_name, wall=process.wall
        )
        if context.membership is not None:
            context.membership = NodeLease(
                context.membership.member, now=lambda: int(process.time() * 1e9)
            )
        self.bucket = bucket
        self.server = _WorldServer(context, self._settings, process)

    def kill(self, *, power: bool = False) -> int:
        """Ends its process at once. With ``power`` unsynced writes are lost; returns how many."""
        if self.process is not None and self.process.alive:
            self.process.kill()
        self.bucket = self.server = None
        if power:
            return self.disk.lose_power()
        self.disk.detach()
        return 0

    def close(self) -> None:
        """Ends its process properly: the store is marked as closed."""
        if self.process is not None and self.process.alive:
            bucket = self.bucket
            assert bucket is not None
            self.process.call(bucket.close)
        self.kill()


class _OneBucket(Store):
    """A store of one bucket, without a directory."""

    def __init__(self, path: Path, bucket: Bucket, settings: BucketSettings) -> None:
        self.path = path
        self._only = bucket
        self._its_settings = settings
        self._name = ""
        self.uuid = hashlib.md5(str(path).encode(), usedforsecurity=False).hexdigest()

    def buckets(self) -> list[str]:
        return [self._only.name]

    def bucket(
        self, name: str, settings: BucketSettings | None = None, *, salvage: bool = False
    ) -> Bucket:
        if name != self._only.name:
            raise StoreRefusal(Status.NO_BUCKET, f"there is no bucket {name!r}")
        return self._only

    def bucket_settings(self, name: str) -> BucketSettings:
        return self._its_settings

    def close(self) -> None:
        self._only.close()


class _WorldServer(Server):
    """The server with simulated time, network and threads."""

    def __init__(self, node: ServerContext, settings: ServerSettings, process: Process) -> None:
        super().__init__(node, settings)
        self._process = process

    def make_scheduler(self, loop: asyncio.AbstractEventLoop) -> ConnectionScheduler:
        return ConnectionScheduler(loop, loop.time)

    async def listen(self, tls: ssl.SSLContext | None) -> int:
        await self._process.loop.create_server(
            lambda: Connection(self), self.settings.host, self.settings.port
        )
        return self.settings.port

    def in_thread(self, work: BackgroundWork, call: Callable[[], _T]) -> Future[_T]:
        """Runs it a little later, in one piece."""
        done: Future[_T] = Future()

        def run() -> None:
            try:
                done.set_result(call())
            except Exception as error:
                done.set_exception(error)

        self._process.loop.call_later(0.0002, run)
        return done


class _LoopFuture(Future[list[Outcome]]):
    """The result of a submitted group. Whoever waits for it makes the writer commit first."""

    def __init__(self, writer: _LoopWriter) -> None:
        super().__init__()
        self._writer = writer

    def result(self, timeout: float | None = None) -> list[Outcome]:
        if not self.done():
            self._writer.commit_now()
        return super().result(0)


class _LoopWriter(GroupWriter):
    """Commits groups on the process's event loop, when the disk has had its time."""

    def __init__(
        self,
        process: Process,
        disk: SimulatedDisk,
        commit: Callable[[Sequence[ChangeRequest]], list[Outcome]],
        max_changes: int,
    ) -> None:
        self._process = process
        self._disk = disk
        self._commit = commit
        self._most = max_changes
        self._waiting: list[tuple[Sequence[ChangeRequest], Future[list[Outcome]]]] = []
        self._scheduled = False

    def submit(self, changes: Sequence[ChangeRequest]) -> Future[list[Outcome]]:
        future = _LoopFuture(self)
        self._waiting.append((changes, future))
        if not self._scheduled:
            self._scheduled = True
            self._process.loop.call_later(self._disk.latency(), self._due)
        return future

    def _due(self) -> None:
        self._scheduled = False
        self.commit_now()

    def commit_now(self) -> None:
        taken, self._waiting = self._waiting, []
        running = [one for one in taken if one[1].set_running_or_notify_cancel()]
        if running:
            self._commit_group(running)

    def close(self) -> None:
        self.commit_now()


class _LoopTicker(Ticker):
    """Calls a function at an interval, on the process's event loop."""

    def __init__(self, process: Process, action: Callable[[], object], interval: float) -> None:
        self._process = process
        self._action = action
        self._interval = interval
        self._timer = process.loop.call_later(interval, self._tick)

    def _tick(self) -> None:
        with suppress(StoreError):  # as the thread does: the error may pass
            self._action()
        self._timer = self._process.loop.call_later(self._interval, self._tick)

    def close(self) -> None:
        self._timer.cancel()
