"""The server: listens, admits connections, and tells them when a vbucket moved."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

from ..store import Bucket
from .client import Client
from .connection import Connection
from .http import ConfigServer
from .keyvalue import KeyValue
from .node import GivenMap, Node
from .settings import ServerSettings
from .statistics import (
    ConnectionView,
    ServerView,
    bucket_view,
    dcp_statistics,
    takeover_statistics,
)
from .traffic import Traffic

__all__ = ["Server"]

logger = logging.getLogger("upriver.producer")

#: How often connections are asked whether a noop is due: half the shortest interval there is.
_TICK_SECONDS: Final = 0.05
#: Seconds in which peers can take what was written to them when the server stops.
_FAREWELL_SECONDS: Final = 0.5
#: Threads for what would hold up the loop: scans, compactions, edits inside documents.
_THREADS: Final = 4

_T = TypeVar("_T")


class Server:
    """One listening port over one node. Everything but `in_thread` is for the loop's thread."""

    def __init__(self, node: Node, settings: ServerSettings) -> None:
        self.node = node
        self.settings = settings
        self.traffic = Traffic()
        self.keyvalue = KeyValue(node)
        self._connections: set[Connection] = set()
        #: Set while there is no connection.
        self._empty = asyncio.Event()
        self._empty.set()
        #: By bucket, name, and whether this node is the consumer.
        self._by_name: dict[tuple[str, str, bool], Connection] = {}
        #: Which connection a vbucket is received on.
        self._receivers: dict[tuple[str, int], Connection] = {}
        self._followers: dict[tuple[str, int], set[Connection]] = {}
        #: What the store's thread reported and the loop has not seen: bucket and vbuckets.
        self._moved: deque[tuple[str, tuple[int, ...]]] = deque()
        self._waking = False
        self._subscriptions: dict[str, Callable[[], None]] = {}
        self._listener: asyncio.Server | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._http: ConfigServer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="upriver worker")

    # ---- life ----------------------------------------------------------------------------

    async def start(self) -> int:
        """Begins to listen; returns the port."""
        self._loop = asyncio.get_running_loop()
        tls = _tls(self.settings)
        self._listener = await self._loop.create_server(
            lambda: Connection(self),
            self.settings.host,
            self.settings.port,
            ssl=tls,
            # it comes before anything a connection could be asked, so it has the same time
            ssl_handshake_timeout=self.settings.authentication_time if tls else None,
            backlog=1024,
        )
        port: int = self._listener.sockets[0].getsockname()[1]
        http_port = await self._start_http()
        self.node.listening(self.settings.host, port, http_port)
        self.node.server_statistics = self._statistics
        self.node.map_given = self._push_map
        self._ticker = self._loop.create_task(self._tick())
        return port

    async def _start_http(self) -> int | None:
        """Begins to serve the map over HTTP, if that is wanted; returns the port."""
        if self.settings.http_port is None:
            return None
        self._http = ConfigServer(self.node.users, self.node.config_of)
        _, port = await self._http.start(self.settings.host, self.settings.http_port)
        return port

    async def stop(self) -> None:
        """Stops listening and closes every connection."""
        if self._http is not None:
            await self._http.close()
        if self._listener is not None:
            self._listener.close()
        if self._ticker is not None:
            self._ticker.cancel()
        for connection in list(self._connections):
            connection.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), _FAREWELL_SECONDS)
        for connection in list(self._connections):
            connection.abort()
        await asyncio.sleep(0)  # the loop tells them of it in its next round
        for end in self._subscriptions.values():
            end()
        self._subscriptions.clear()
        self._threads.shutdown(wait=True)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            for connection in list(self._connections):
                connection.tick()

    def in_thread(self, call: Callable[[], _T]) -> Future[_T]:
        """Runs something slow beside the loop."""
        return self._threads.submit(call)

    # ---- connections ---------------------------------------------------------------------

    @property
    def connections(self) -> frozenset[Connection]:
        return frozenset(self._connections)

    def admit(self, connection: Connection) -> bool:
        if len(self._connections) >= self.settings.max_connections:
            return False
        self._connections.add(connection)
        self._empty.clear()
        return True

    def forget(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()
        for key in [key for key, other in self._by_name.items() if other is connection]:
            del self._by_name[key]
        for followers in self._followers.values():
            followers.discard(connection)

    def opened(self, connection: Connection, name: str) -> None:
        """A connection took a name; the one that had it before is closed."""
        bucket = connection.bucket()
        if not name or bucket is None:
            return
        key = (bucket.name, name, connection.client.consumes)
        older = self._by_name.get(key)
        if older is not None and older is not connection:
            older.close(f"its name {name!r} was taken over")
        self._by_name[key] = connection

    def claim(self, connection: Connection, bucket: Bucket, vbucket: int) -> bool:
        """Whether a connection may receive a vbucket: only one can at a time."""
        if self._receivers.setdefault((bucket.name, vbucket), connection) is not connection:
            return False
        self._subscribe(bucket)
        return True

    def release(self, bucket: Bucket, vbucket: int) -> None:
        """Nobody receives a vbucket any more."""
        del self._receivers[bucket.name, vbucket]

    def _push_map(self, given: GivenMap) -> None:
        """Tells a new map to those who asked to be told."""
        for connection in list(self._connections):
            connection.push_map(given)

    def copied(self, bucket: Bucket, vbucket: int) -> dict[str, int]:
        """Up to which seqno other nodes have a vbucket on their disks, by their names."""
        told: dict[str, int] = {}
        for connection in self._followers.get((bucket.name, vbucket), ()):
            for name, seqno in connection.streams.copied(vbucket).items():
                told[name] = max(seqno, told.get(name, 0))
        return told

    # ---- how it is doing -----------------------------------------------------------------

    def view(self) -> ServerView:
        """Everything at this moment; for the loop's thread."""
        return ServerView(
            version=self.node.version,
            connections=self._views(),
            buckets=tuple(map(bucket_view, self.node.open_buckets())),
        )

    def _views(self) -> tuple[ConnectionView, ...]:
        return tuple(connection.view() for connection in self._connections)

    def _statistics(self, client: Client, group: str, argument: str) -> Mapping[str, str] | None:
        """The groups of the statistics command that only the server can tell."""
        if group == "":
            return {"curr_connections": str(len(self._connections))}
        if client.bucket is None:
            return None
        views = [view for view in self._views() if view.bucket == client.bucket.name]
        if group == "dcp":
            return dcp_statistics(views)
        if group == "dcp-vbtakeover":
            return takeover_statistics(views, client.bucket, argument)
        return None

    # ---- vbuckets that move --------------------------------------------------------------

    def follow(self, connection: Connection, bucket: Bucket, vbucket: int) -> None:
        """Wakes a connection's streams whenever a vbucket moves."""
        self._followers.setdefault((bucket.name, vbucket), set()).add(connection)
        self._subscribe(bucket)

    def _subscribe(self, bucket: Bucket) -> None:
        if bucket.name not in self._subscriptions:
            name = bucket.name
            self._subscriptions[name] = bucket.subscribe(lambda high: self._committed(name, high))

    def _committed(self, bucket: str, high: Mapping[int, int]) -> None:
        """Called by the store's thread; the loop is told once for all that gathers meanwhile."""
        self._moved.append((bucket, tuple(high)))
        if not self._waking and self._loop is not None and not self._loop.is_closed():
            self._waking = True
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._waking = False  # before looking: what comes from now on wakes anew
        woken: set[Connection] = set()
        while self._moved:
            bucket, vbuckets = self._moved.popleft()
            for vbucket in vbuckets:
                for connection in self._followers.get((bucket, vbucket), ()):
                    connection.streams.wake(vbucket)
                    woken.add(connection)
                receiver = self._receivers.get((bucket, vbucket))
                if receiver is not None:
                    receiver.state_changed(vbucket)
        for connection in woken:
            connection.pump()


def _tls(settings: ServerSettings) -> ssl.SSLContext | None:
    if settings.certificate is None or settings.key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(settings.certificate, settings.key)
    if settings.client_authority is not None:
        context.load_verify_locations(settings.client_authority)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
