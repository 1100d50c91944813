"""A whole producer in one object: store, bucket, server, on a loop of the caller's."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from ..errors import ConfigError
from ..store import Bucket, BucketSettings, Store
from .node import Node
from .server import Server
from .settings import ServerSettings
from .statistics import ConnectionView
from .traffic import Traffic

__all__ = ["Producer"]

logger = logging.getLogger("upriver.producer")


class Producer:
    """Opens the store, creates the bucket if it is not there, and serves it."""

    def __init__(
        self,
        data: Path,
        settings: ServerSettings,
        *,
        bucket: str = "default",
        bucket_settings: BucketSettings | None = None,
        wall: Callable[[], int] = time.time_ns,
    ) -> None:
        """``wall`` is the clock, in nanoseconds since 1970."""
        self.settings = settings
        self.port = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self.store = Store(data, wall=wall)
        try:
            self.bucket: Bucket = _bucket(self.store, bucket, bucket_settings)
            self.node = Node(self.store, settings, default_bucket=bucket, wall=wall)
            self.server = Server(self.node, settings)
            #: What the server has done.
            self.traffic: Traffic = self.server.traffic
        except BaseException:
            self.store.close()
            raise

    async def start(self) -> int:
        """Begins to serve; returns the port."""
        self._loop = asyncio.get_running_loop()
        try:
            self.port = await self.server.start()
        except ssl.SSLError as problem:
            self.store.close()
            raise ConfigError(f"the certificate or its key cannot be used: {problem}") from problem
        except OSError as problem:
            self.store.close()
            where = f"{self.settings.host}:{self.settings.port}"
            reason = os.strerror(problem.errno) if problem.errno else str(problem)
            raise ConfigError(f"cannot listen on {where}: {reason}") from problem
        if self.node.users.is_unrestricted:
            logger.info("no users are set up: every client may do everything")
        return self.port

    async def stop(self) -> None:
        """Closes every connection, then the store."""
        await self.server.stop()
        self.store.close()

    async def _connections(self) -> tuple[ConnectionView, ...]:
        return tuple(connection.view() for connection in self.server.connections)

    def connection_views(self, timeout: float) -> tuple[ConnectionView, ...]:
        """How every connection is doing; for threads other than the loop's.

        Buckets may be looked at from any thread, so this is all that takes the loop's time.
        """
        if self._loop is None:
            return ()
        asked = asyncio.run_coroutine_threadsafe(self._connections(), self._loop)
        return asked.result(timeout)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()


def _bucket(store: Store, name: str, settings: BucketSettings | None) -> Bucket:
    if name in store.buckets():
        return store.bucket(name, settings)
    return store.create_bucket(name, settings)
