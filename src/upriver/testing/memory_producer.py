"""An in-memory producer without sockets or real time, driven by a test step by step.

Store, bucket, streams and connections are those of the server; only the network, the event loop and
the clock are replaced. A sans-I/O client can be connected to it directly, and a schedule of steps
always has the same outcome.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import ssl
import tempfile
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from ..model import VBucketState
from ..producer.connections.connection import Connection
from ..producer.connections.connection_scheduler import ConnectionScheduler
from ..producer.keyvalue import BackgroundWork
from ..producer.server import Server
from ..producer.server_context import ServerContext
from ..producer.server_settings import ServerSettings
from ..store import Bucket, BucketSettings, Store
from .producer_base import BucketScript, settings_for_tests
from .stepped_loop import SteppedLoop

_T = TypeVar("_T")

#: A file system in memory, if the machine has one, so that commits do not wait for a disk.
_IN_MEMORY: Final = Path("/dev/shm")
#: The initial time of every such producer, in nanoseconds since 1970: in November 2023.
_BEGINNING: Final = 1_700_000_000 * 10**9


class MemoryProducer(BucketScript):
    """A producer that works only when the test lets it.

        with MemoryProducer(vbuckets=2) as producer:
            link = producer.connect()
            link.send(request)
            producer.write(b"key", b"value")
            producer.settle()
            answer = link.receive()

    Nothing happens between calls. ``settle`` runs everything that is ready, ``step`` one callback,
    ``advance`` moves the clock: without it no noop is sent, no connection times out, nothing
    expires. It must be used from one thread.

    It takes about 20 ms to start; ``reset`` takes a quarter of that, for many examples in a row.
    """

    def __init__(
        self,
        *,
        vbuckets: int = 4,
        bucket: str = "default",
        settings: ServerSettings | None = None,
        bucket_settings: BucketSettings | None = None,
    ) -> None:
        self._bucket_name = bucket
        self._settings = replace(settings or ServerSettings(), http_port=None)
        self._bucket_settings = bucket_settings or settings_for_tests(vbuckets)
        self._loop = SteppedLoop(others=self._await_commits)  # type: ignore[abstract]
        self._links: list[MemoryLink] = []
        self._numbers = itertools.count(1)
        self._bucket: Bucket | None = None
        self._life = ExitStack()

    # ---- start and stop ------------------------------------------------------------------

    def start(self) -> Self:
        with ExitStack() as life:
            home = life.enter_context(
                tempfile.TemporaryDirectory(
                    prefix="upriver-", dir=_IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None
                )
            )
            store = life.enter_context(Store(home, wall=self._wall))
            self._bucket = store.create_bucket(self._bucket_name, self._bucket_settings)
            node = ServerContext(
                store, self._settings, default_bucket=self._bucket_name, wall=self._wall
            )
            server = _PromptServer(node, self._settings, self._await_commits)
            self._loop.run(server.start())
            life.callback(lambda: self._loop.run(server.stop()))
            self._life = life.pop_all()
        return self

    def stop(self) -> None:
        for link in self._links:
            link.cut()
        self._life.close()
        self._bucket = None
        self._loop.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def reset(self) -> None:
        """Cuts every link and empties the bucket; all vbuckets are active, with a new history.

        Collections and the time stay as they are.
        """
        for link in self._links:
            link.cut()
        self._links.clear()
        bucket = self.bucket
        for vbucket in range(bucket.settings.vbuckets):
            if bucket.state(vbucket) is not VBucketState.ACTIVE:
                bucket.set_state(vbucket, VBucketState.ACTIVE)
        bucket.flush()
        self.settle()

    @property
    def bucket(self) -> Bucket:
        """The bucket, once everything that clients have written so far is committed.

        A change that a test makes now comes after those, whatever the speed of the thread that
        commits.
        """
        if self._bucket is None:
            raise RuntimeError("the producer is not running: use it in a with block")
        self._await_commits()
        return self._bucket

    # ---- connections and steps -----------------------------------------------------------

    def connect(self) -> MemoryLink:
        """Opens a new connection to the server."""
        protocol = self._loop.connect()
        assert isinstance(protocol, asyncio.Protocol)
        link = MemoryLink(_Transport(self._loop, protocol, next(self._numbers)))
        self._links = [other for other in self._links if not other.closed]
        self._links.append(link)
        return link

    def settle(self) -> None:
        """Runs until nothing is ready: writes are committed and streams are sent.

        A connection stops earlier if its bytes are not received or its flow-control window is full.
        """
        self._loop.settle()

    def step(self) -> bool:
        """Runs the oldest callback that is ready; false if there was none."""
        return self._loop.step()

    def advance(self, seconds: float) -> None:
        """Moves the clock, for the server's timers and for the expiry of documents."""
        self._loop.advance(seconds)

    def _wall(self) -> int:
        return _BEGINNING + int(self._loop.time() * 10**9)

    def _await_commits(self) -> None:
        """Waits for the thread that commits, so that its speed does not affect the outcome."""
        if self._bucket is not None and not self._bucket.closed:
            self._bucket.submit(()).result()


class MemoryLink:
    """The client's end of an in-memory connection, made by `MemoryProducer.connect`."""

    def __init__(self, transport: _Transport) -> None:
        self._transport = transport

    def send(self, data: bytes) -> None:
        """Delivers bytes to the server, which processes them at once as far as it can."""
        self._transport.deliver(data)

    def receive(self, limit: int | None = None) -> bytes:
        """Bytes that the server has sent and that were not received yet, up to ``limit``.

        A server that paused because too much was unread resumes when little is left.
        """
        return self._transport.take(limit)

    def cut(self) -> None:
        """Ends the connection for both sides; bytes that were not received are lost."""
        self._transport.lose(ConnectionResetError("the link was cut"))

    @property
    def unread(self) -> int:
        """How many bytes `receive` would return without a limit."""
        return self._transport.get_write_buffer_size()

    @property
    def closed(self) -> bool:
        """Whether the connection has ended and all its bytes were received."""
        return self._transport.lost


class _PromptServer(Server):
    """A server that runs slow work inline: the end of a thread would not be deterministic."""

    def __init__(
        self, node: ServerContext, settings: ServerSettings, await_commits: Callable[[], None]
    ) -> None:
        super().__init__(node, settings)
        self._await_commits = await_commits

    def make_scheduler(self, loop: asyncio.AbstractEventLoop) -> ConnectionScheduler:
        """A turn begins when what earlier turns have written is committed, and takes no time."""

        def used() -> float:
            self._await_commits()
            return loop.time()

        return ConnectionScheduler(loop, used)

    async def listen(self, tls: ssl.SSLContext | None) -> int:
        """Connections come from the loop, not from a socket."""
        loop = asyncio.get_running_loop()
        await loop.create_server(lambda: Connection(self), self.settings.host, self.settings.port)
        return self.settings.port

    def in_thread(self, work: BackgroundWork, call: Callable[[], _T]) -> Future[_T]:
        done: Future[_T] = Future()
        try:
            done.set_result(call())
        except Exception as error:
            done.set_exception(error)
        return done


class _Transport(asyncio.Transport):
    """The server's end of a connection, with the pause and resume behaviour of a socket's."""

    def __init__(self, loop: SteppedLoop, protocol: asyncio.Protocol, number: int) -> None:
        super().__init__({"peername": ("memory", number)})
        self._loop = loop
        self._protocol = protocol
        self._unread = bytearray()
        self._undelivered: deque[bytes] = deque()
        self._high = self._low = 0
        self._writing_paused = False
        self._reading = True
        self._closing = False
        self.lost = False
        with loop.running():
            protocol.connection_made(self)

    # ---- called by the client ------------------------------------------------------------

    def deliver(self, data: bytes) -> None:
        if self._closing:
            raise ConnectionResetError("the server has closed the connection")
        self._undelivered.append(data)
        self._hand_over()

    def _hand_over(self) -> None:
        with self._loop.running():
            while self._undelivered and self._reading and not self._closing:
                self._protocol.data_received(self._undelivered.popleft())

    def take(self, limit: int | None) -> bytes:
        taken = bytes(self._unread[:limit])
        del self._unread[: len(taken)]
        if self._writing_paused and len(self._unread) <= self._low:
            self._writing_paused = False
            with self._loop.running():
                self._protocol.resume_writing()
        if self._closing and not self._unread:
            self.lose(None)
        return taken

    def lose(self, error: Exception | None) -> None:
        """Ends the connection and notifies the server's protocol."""
        self._closing = True
        if not self.lost:
            self.lost = True
            self._unread.clear()
            self._undelivered.clear()
            with self._loop.running():
                self._protocol.connection_lost(error)

    # ---- called by the server (asyncio.Transport) ----------------------------------------

    def write(self, data: Any) -> None:
        if self.lost:
            return
        self._unread += data
        if len(self._unread) > self._high and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high is not None
        self._high = high
        self._low = high // 4 if low is None else low  # as asyncio's own transports

    def get_write_buffer_size(self) -> int:
        return len(self._unread)

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._loop.call_soon(self._hand_over)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            if not self._unread:
                self._loop.call_soon(self.lose, None)

    def abort(self) -> None:
        self._closing = True
        self._unread.clear()
        self._loop.call_soon(self.lose, None)
