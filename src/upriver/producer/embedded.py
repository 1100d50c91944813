"""Producer: store, bucket and server in one object, for an event loop of the caller."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from ..errors import ConfigError
from ..store import Bucket, BucketSettings, Store
from .connections.server_counters import Traffic
from .server import Server
from .server_context import ServerContext
from .server_settings import ServerSettings
from .server_views import ConnectionView

logger = logging.getLogger("upriver.producer")


class Producer:
    """Opens the store, creates the bucket if it does not exist, and serves it."""

    def __init__(
        self,
        data: Path,
        settings: ServerSettings,
        *,
        bucket: str = "default",
        bucket_settings: BucketSettings | None = None,
        bucket_changes: Mapping[str, int] | None = None,
        bucket_uuid: str = "",
        wall: Callable[[], int] = time.time_ns,
    ) -> None:
        """Without ``bucket_settings``, an existing bucket keeps its settings.

        ``bucket_changes`` are settings by name that override these in either case. ``bucket_uuid``
        is the uuid of a bucket that is created on several nodes. ``wall`` is the clock, in
        nanoseconds since 1970.
        """
        self.settings = settings
        self.port = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self.store = Store(data, wall=wall)
        try:
            self.bucket: Bucket = _bucket(
                self.store, bucket, bucket_settings, bucket_changes or {}, bucket_uuid
            )
            self.node = ServerContext(self.store, settings, default_bucket=bucket, wall=wall)
            self.server = Server(self.node, settings)
            #: Counters of the server.
            self.traffic: Traffic = self.server.traffic
        except BaseException:
            self.store.close()
            raise

    async def start(self) -> int:
        """Starts to serve; returns the port."""
        self._loop = asyncio.get_running_loop()
        try:
            self.port = await self.server.start()
        except ssl.SSLError as problem:
            self.store.close()
            raise ConfigError(f"the certificate or its key cannot be used: {problem}") from problem
        except ConfigError:
            await self.stop()
            raise
        except OSError as problem:
            self.store.close()
            where = f"{self.settings.host}:{self.settings.port}"
            reason = os.strerror(problem.errno) if problem.errno else str(problem)
            raise ConfigError(f"cannot listen on {where}: {reason}") from problem
        for exposed in self.settings.warnings():
            logger.warning("%s", exposed)
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
        """Returns the state of every connection. Call it from a thread other than the event loop's.

        Buckets may be read from any thread; only connections must be read on the event loop.
        """
        if self._loop is None:
            return ()
        asked = asyncio.run_coroutine_threadsafe(self._connections(), self._loop)
        return asked.result(timeout)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.stop()


def _bucket(
    store: Store,
    name: str,
    settings: BucketSettings | None,
    changes: Mapping[str, Any],
    uuid: str,
) -> Bucket:
    if name in store.buckets():
        if changes:
            settings = replace(settings or store.bucket_settings(name), **changes)
        return store.bucket(name, settings)
    settings = replace(settings or BucketSettings(), **changes)
    return store.create_bucket(name, settings, uuid=uuid)
