"""A real producer without sockets: its connections are driven by the test, step by step.

Store, bucket, streams and connections are those of the server; only the network, the event loop
and the clock are the test's. So a sans-I/O client can be wired to it, and a schedule of steps
has the same outcome whenever it is run.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from ..model import VBucketState
from ..producer.node import Node
from ..producer.server import Server
from ..producer.settings import ServerSettings
from ..store import Bucket, BucketSettings, Store
from .script import BucketScript, settings_for_tests
from .stepped_loop import SteppedLoop

__all__ = ["MemoryLink", "MemoryProducer"]

_T = TypeVar("_T")

#: Files here are in memory where there is such a place, so that a commit waits for no disk.
_IN_MEMORY: Final = Path("/dev/shm")
#: When every such producer begins, in nanoseconds since 1970: a day in November 2023.
_BEGINNING: Final = 1_700_000_000 * 10**9


class MemoryProducer(BucketScript):
    """A producer whose owner decides when it works.

        with MemoryProducer(vbuckets=2) as producer:
            link = producer.connect()
            link.send(request)
            producer.write(b"key", b"value")
            producer.settle()
            answer = link.receive()

    Nothing happens between calls. ``settle`` lets everything happen that can, ``step`` one thing,
    ``advance`` has time pass as well: without it no noop is sent, nobody is given up, nothing
    expires. It is for one thread.

    It takes about 20 ms to start. ``reset`` costs a quarter of that, for many examples in a row.
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
        self._settings = settings or ServerSettings()
        self._bucket_settings = bucket_settings or settings_for_tests(vbuckets)
        self._loop = SteppedLoop(others=self._await_commits)  # type: ignore[abstract]
        self._links: list[MemoryLink] = []
        self._numbers = itertools.count(1)
        self._bucket: Bucket | None = None
        self._life = ExitStack()

    # ---- life ----------------------------------------------------------------------------

    def start(self) -> Self:
        with ExitStack() as life:
            home = life.enter_context(
                tempfile.TemporaryDirectory(
                    prefix="upriver-", dir=_IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None
                )
            )
            store = life.enter_context(Store(home, wall=self._wall))
            self._bucket = store.create_bucket(self._bucket_name, self._bucket_settings)
            node = Node(store, self._settings, default_bucket=self._bucket_name, wall=self._wall)
            server = _PromptServer(node, self._settings)
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def reset(self) -> None:
        """Cuts every link and takes every document out: vbuckets are active and begin anew.

        Collections and the time stay; for others, make another producer.
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
        if self._bucket is None:
            raise RuntimeError("the producer is not running: use it in a with block")
        return self._bucket

    # ---- connections and steps -----------------------------------------------------------

    def connect(self) -> MemoryLink:
        """A new connection, of which the server has heard nothing so far."""
        protocol = self._loop.connect()
        assert isinstance(protocol, asyncio.Protocol)
        link = MemoryLink(_Transport(self._loop, protocol, next(self._numbers)))
        self._links = [other for other in self._links if not other.closed]
        self._links.append(link)
        return link

    def settle(self) -> None:
        """Works until there is nothing to do: writes are committed, streams are sent.

        As far as they can be: what nobody receives holds its connection up in the end, and so
        does a flow-control window that is full.
        """
        self._loop.settle()

    def step(self) -> bool:
        """Does one thing that is due, the oldest; false if there was none."""
        return self._loop.step()

    def advance(self, seconds: float) -> None:
        """Has time pass, for the server's timers and for the documents in the store."""
        self._loop.advance(seconds)

    def _wall(self) -> int:
        return _BEGINNING + int(self._loop.time() * 10**9)

    def _await_commits(self) -> None:
        """Waits for the thread that commits, so that its pace decides nothing."""
        if self._bucket is not None and not self._bucket.closed:
            self._bucket.submit(()).result()


class MemoryLink:
    """A client's end of a connection. Made by `MemoryProducer.connect`."""

    def __init__(self, transport: _Transport) -> None:
        self._transport = transport

    def send(self, data: bytes) -> None:
        """Has bytes arrive at the server; it works on them at once, as far as it can."""
        self._transport.deliver(data)

    def receive(self, limit: int | None = None) -> bytes:
        """What the server has written and nobody received yet, up to ``limit`` bytes.

        A server that had stopped because too much was unread goes on when little is left.
        """
        return self._transport.take(limit)

    def cut(self) -> None:
        """Ends the connection for both sides; what was not received is lost."""
        self._transport.lose(ConnectionResetError("the link was cut"))

    @property
    def unread(self) -> int:
        """How many bytes `receive` would return without a limit."""
        return self._transport.get_write_buffer_size()

    @property
    def closed(self) -> bool:
        """Whether the connection is over, and everything that came of it received."""
        return self._transport.lost


class _PromptServer(Server):
    """Runs what is slow at once, because a thread would end whenever it likes."""

    def in_thread(self, call: Callable[[], _T]) -> Future[_T]:
        done: Future[_T] = Future()
        try:
            done.set_result(call())
        except Exception as error:
            done.set_exception(error)
        return done


class _Transport(asyncio.Transport):
    """The server's end of a connection, with the manners of a socket's."""

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

    # ---- for the client ------------------------------------------------------------------

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
        """The connection is over."""
        self._closing = True
        if not self.lost:
            self.lost = True
            self._unread.clear()
            self._undelivered.clear()
            with self._loop.running():
                self._protocol.connection_lost(error)

    # ---- for the server ------------------------------------------------------------------

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
