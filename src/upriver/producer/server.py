"""TCP server: listens, admits connections, and wakes them when a vbucket has new changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import Final, TypeVar

from ..errors import ConfigError, Status, StoreRefusal
from ..store import Bucket
from .bootstrap.http import HttpServer
from .bootstrap.password_checks import PasswordChecks
from .bootstrap.rest_api import RestApi
from .bootstrap.users import Role
from .connections.client_info import ClientInfo
from .connections.connection import Connection
from .connections.connection_scheduler import ConnectionScheduler
from .connections.file_descriptors import room_for_connections
from .connections.listener import Listener
from .connections.memory_limit import MemoryLimit
from .connections.server_counters import Traffic
from .connections.strangers import Strangers
from .connections.thread_pools import ThreadPools
from .dcp.peer_dialects import PeerDialects
from .durability_monitor import DurabilityMonitor
from .keyvalue import BackgroundWork, KeyValue
from .server_context import GivenMap, ServerContext
from .server_settings import ServerSettings
from .server_views import (
    ConnectionView,
    ServerView,
    bucket_view,
    connection_statistics,
    dcp_statistics,
    resident_bytes,
    takeover_statistics,
)

logger = logging.getLogger("upriver.producer")

#: Seconds in which peers can read what was sent to them when the server stops.
_FAREWELL_SECONDS: Final = 0.5

#: Seconds between two checks for range scans that are too old.
_SCAN_SECONDS: Final = 5.0

_T = TypeVar("_T")


class Server:
    """Serves one port of one node.

    All methods but `in_thread` and `drop_connections` must run on the event loop.
    """

    def __init__(self, node: ServerContext, settings: ServerSettings) -> None:
        self.node = node
        self.settings = settings
        self.traffic = Traffic()
        self.keyvalue = KeyValue(node)
        self.durability = DurabilityMonitor(node, self.copied)
        #: In the order in which they were opened, as are those that follow a vbucket.
        self._connections: dict[Connection, None] = {}
        #: The ones of them that have not said who they are.
        self.strangers = Strangers()
        #: Set while there is no connection.
        self._empty = asyncio.Event()
        self._empty.set()
        #: DCP connections by bucket, name, and whether this node is the consumer.
        self._by_name: dict[tuple[str, str, bool], Connection] = {}
        #: The connection that receives a vbucket as a replica, by bucket and vbucket.
        self._receivers: dict[tuple[str, int], Connection] = {}
        #: What is known of the producers that do not say what they speak.
        self.peer_dialects = PeerDialects()
        self._followers: dict[tuple[str, int], dict[Connection, None]] = {}
        #: Commits that the store's thread reported and the event loop has not handled: bucket,
        #: vbuckets.
        self._moved: deque[tuple[str, tuple[int, ...]]] = deque()
        self._waking = False
        self._subscriptions: dict[str, Callable[[], None]] = {}
        self._listener: Listener | None = None
        self._http: HttpServer | None = None
        #: The port of the HTTP server, once it is listening.
        self.http_port: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scan_timer: asyncio.TimerHandle | None = None
        self._workers = ThreadPools()
        self._max_connections = settings.max_connections

    # ---- starting and stopping -----------------------------------------------------------

    async def start(self) -> int:
        """Starts to listen; returns the port."""
        self._loop = asyncio.get_running_loop()
        self.turns = self.make_scheduler(self._loop)
        self.buffers = MemoryLimit(self._loop, self.settings.buffer_memory)
        self.passwords = PasswordChecks(
            self.in_thread, held=self.settings.authentication_delay, clock=self._loop.time
        )
        self._max_connections = room_for_connections(self.settings.max_connections)
        tls = self.settings.tls_context()
        port = await self.listen(tls)
        self.http_port = await self._start_http(tls)
        self.node.listening(self.settings.host, port, self.http_port)
        self.node.server_statistics = self._statistics
        self.node.map_given = self._push_map
        self.node.epoch_raised = self._fence
        for bucket in self.node.open_buckets():
            self._subscribe(bucket)  # a vbucket may become active with prepares
        self.durability.start(self._loop)
        self._drop_old_scans()
        return port

    def _drop_old_scans(self) -> None:
        """Closes abandoned range scans: an open scan keeps files from being deleted."""
        assert self._loop is not None
        self.keyvalue.drop_old_scans()
        self._scan_timer = self._loop.call_later(_SCAN_SECONDS, self._drop_old_scans)

    def make_scheduler(self, loop: asyncio.AbstractEventLoop) -> ConnectionScheduler:
        """Returns the scheduler. A simulated server overrides this to use simulated time."""
        return ConnectionScheduler(loop)

    async def listen(self, tls: ssl.SSLContext | None) -> int:
        """Starts to accept connections; returns the port."""
        self._listener = Listener(
            lambda: Connection(self),
            tls=tls,
            # The handshake precedes authentication, so it gets the same time limit.
            handshake_seconds=self.settings.authentication_time,
            established=lambda: len(self._connections),
            limit=self._max_connections,
            strangers=self.strangers,
            released=self.buffers.released,
        )
        return await self._listener.start(self.settings.host, self.settings.port)

    async def _start_http(self, tls: ssl.SSLContext | None) -> int | None:
        """Starts the HTTP server, unless the settings disable it; returns the port."""
        if self.settings.http_port is None:
            return None
        self._http = HttpServer(
            self.node.users,
            RestApi(self.node, self.drop_connections, self.rename),
            self.passwords,
            takes_passwords=tls is not None or self.settings.takes_plain,
        )
        host, wanted = self.settings.host, self.settings.http_port
        try:
            _, port = await self._http.start(host, wanted, tls=tls)
        except OSError as problem:
            reason = os.strerror(problem.errno) if problem.errno else str(problem)
            raise ConfigError(
                f"cannot listen on {host}:{wanted} for HTTP: {reason}; give another --http-port"
            ) from problem
        return port

    async def stop(self) -> None:
        """Stops listening and closes every connection."""
        self.durability.stop()
        if self._scan_timer is not None:
            self._scan_timer.cancel()
        if self._http is not None:
            await self._http.close()
        if self._listener is not None:
            await self._listener.close()
        for connection in list(self._connections):
            connection.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), _FAREWELL_SECONDS)
        for connection in list(self._connections):
            connection.abort()
        await asyncio.sleep(0)  # connections are notified in the next loop iteration
        for end in self._subscriptions.values():
            end()
        self._subscriptions.clear()
        self._workers.close()

    def in_thread(self, work: BackgroundWork, call: Callable[[], _T]) -> Future[_T]:
        """Runs slow work in a thread. Refuses it if the queue of its class is full."""
        return self._workers.submit(work, call)

    # ---- connections ---------------------------------------------------------------------

    @property
    def connections(self) -> frozenset[Connection]:
        return frozenset(self._connections)

    def admit(self, connection: Connection) -> bool:
        if len(self._connections) >= self._max_connections and (
            self._listener is None or not self._listener.makes_room(connection.client.peer)
        ):
            return False
        self._connections[connection] = None
        self._empty.clear()
        return True

    def forget(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        self.strangers.discard(connection)
        self.buffers.forget(connection)
        if not self._connections:
            self._empty.set()
        for key in [key for key, other in self._by_name.items() if other is connection]:
            del self._by_name[key]
        for followers in self._followers.values():
            followers.pop(connection, None)

    def opened(self, connection: Connection, name: str) -> None:
        """Registers the name of a DCP connection and closes the older connection of that name."""
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
        """Ends the claim of a connection that received a vbucket."""
        del self._receivers[bucket.name, vbucket]

    def _push_map(self, given: GivenMap) -> None:
        """Sends a new map to the clients that negotiated notifications, and to HTTP map streams."""
        if self._http is not None:
            self._http.notify()
        for connection in list(self._connections):
            connection.push_map(given)

    def _fence(self, epoch: int) -> None:
        """Closes the connections of managers with an older epoch."""
        for connection in list(self._connections):
            if 0 < connection.client.epoch < epoch:
                connection.close(f"epoch {epoch} has begun")

    def copied(self, bucket: Bucket, vbucket: int) -> dict[str, int]:
        """Returns the seqno up to which each other node has a vbucket on its disk, by node name.

        Only connections of the cluster's manager count; without a cluster, those of administrators.
        """
        acknowledged: dict[str, int] = {}
        for connection in self._followers.get((bucket.name, vbucket), ()):
            if not self.node.may_acknowledge(connection.client, bucket):
                continue
            for name, seqno in connection.streams.copied(vbucket).items():
                acknowledged[name] = max(seqno, acknowledged.get(name, 0))
        return acknowledged

    def drop_connections(self, bucket: Bucket) -> None:
        """Closes the connections of a bucket that is about to be dropped. For other threads."""
        assert self._loop is not None

        async def drop() -> None:
            for connection in list(self._connections):
                if connection.client.bucket is bucket:
                    connection.close(f"its bucket {bucket.name} is dropped")
            end = self._subscriptions.pop(bucket.name, None)
            if end is not None:
                end()

        asyncio.run_coroutine_threadsafe(drop(), self._loop).result()

    def rename(self, name: str) -> None:
        """Gives a single server a name, and its clients maps with that name. For other threads."""
        assert self._loop is not None
        self.node.store.rename(name)

        async def announce() -> None:
            for given in self.node.own_maps():
                self._push_map(given)

        asyncio.run_coroutine_threadsafe(announce(), self._loop).result()

    # ---- statistics ----------------------------------------------------------------------

    def view(self) -> ServerView:
        """Returns a snapshot of the server's state. Must run on the event loop."""
        return ServerView(
            version=self.node.version,
            connections=self._views(),
            buckets=tuple(map(bucket_view, self.node.open_buckets())),
        )

    def _views(self) -> tuple[ConnectionView, ...]:
        return tuple(connection.view() for connection in self._connections)

    def _statistics(
        self, client: ClientInfo, group: str, argument: str
    ) -> Iterable[tuple[str, str]] | None:
        """Returns the statistics of a group that only the server has."""
        if group == "":
            return [
                ("uptime", str(int(time.time() - self.traffic.started))),
                ("curr_connections", str(len(self._connections))),
                ("mem_used", str(resident_bytes())),
            ]
        if group == "settings":
            return [("maxconns", str(self.settings.max_connections))]
        if group == "connections":
            if argument not in ("", "self"):
                raise StoreRefusal(Status.INVALID, "connections is followed by self or by nothing")
            return connection_statistics(self._views_for(client, only_own=argument == "self"))
        if client.bucket is None:
            return None
        if group == "dcp":
            return dcp_statistics(self._views_of(client.bucket))
        if group == "upr":
            return dcp_statistics(self._views_of(client.bucket), "eq_uprq")
        if group == "dcp-vbtakeover":
            name = argument.partition(" ")[2]
            return takeover_statistics(self._views_of(client.bucket, name), client.bucket, argument)
        return None

    def _views_for(self, client: ClientInfo, *, only_own: bool) -> Iterator[ConnectionView]:
        """Yields the client's own connection and, for administrators, others of its bucket."""
        bucket, users = client.bucket, self.node.users
        if bucket is None or Role.ADMINISTER not in users.roles(client.user, bucket.name):
            only_own = True
        for connection in list(self._connections):
            other = connection.client
            if other is client or (other.bucket is bucket and not only_own):
                yield connection.view()

    def _views_of(self, bucket: Bucket, name: str | None = None) -> Iterator[ConnectionView]:
        """Yields the connections of a bucket one at a time; with ``name``, only those of it."""
        for connection in list(self._connections):
            if connection.client.bucket is bucket and name in (None, connection.name):
                yield connection.view()

    # ---- commits of the store ------------------------------------------------------------

    def follow(self, connection: Connection, bucket: Bucket, vbucket: int) -> None:
        """Wakes a connection's streams whenever a vbucket has new changes or another state."""
        self._followers.setdefault((bucket.name, vbucket), {})[connection] = None
        self._subscribe(bucket)

    def _subscribe(self, bucket: Bucket) -> None:
        if bucket.name not in self._subscriptions:
            name = bucket.name
            self._subscriptions[name] = bucket.subscribe(lambda high: self._committed(name, high))

    def _committed(self, bucket: str, high: Mapping[int, int]) -> None:
        """Called by the store's thread. Wakes the event loop once for all commits until it runs."""
        self._moved.append((bucket, tuple(high)))
        if not self._waking and self._loop is not None and not self._loop.is_closed():
            self._waking = True
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._waking = False  # reset first: a commit from now on schedules another wake
        woken: dict[Connection, None] = {}
        while self._moved:
            bucket, vbuckets = self._moved.popleft()
            for vbucket in vbuckets:
                for connection in self._followers.get((bucket, vbucket), ()):
                    connection.streams.wake(vbucket)
                    woken[connection] = None
                receiver = self._receivers.get((bucket, vbucket))
                if receiver is not None:
                    receiver.state_changed(vbucket)
        self.durability.woken()
        for connection in woken:
            connection.pump()
