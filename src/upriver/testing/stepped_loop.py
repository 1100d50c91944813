"""A deterministic asyncio event loop with a manual clock, run step by step by its owner.

It has no sockets and no selector. Its clock stands still until it is moved, and a server that
listens on it gets its connections from `SteppedLoop.connect`. An exception in a callback is raised
by the call that ran it, so that a fault of the server fails the test.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack, cast

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")
_Call = tuple[asyncio.Handle, Callable[..., object], tuple[Any, ...], contextvars.Context]


class SteppedLoop(asyncio.AbstractEventLoop):
    """The part of an event loop that the server needs, run one callback at a time."""

    def __init__(self, *, others: Callable[[], object]) -> None:
        """``others`` waits until work that callbacks gave to other threads is done."""
        self._others = others
        self._now = 0.0
        self._ready: deque[_Call] = deque()
        #: Callbacks from other threads; they run after the current step, at whatever point of it
        #: they arrived.
        self._arrived: deque[_Call] = deque()
        self._timers: list[tuple[float, int, _Call]] = []
        self._order = itertools.count()
        self._faults: list[BaseException] = []
        self._listener: _Listener | None = None
        self._closed = False

    # ---- called by the owner -------------------------------------------------------------

    @contextmanager
    def running(self) -> Iterator[None]:
        """Makes it the running loop in the block; then waits for work in other threads."""
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            yield
        finally:
            asyncio._set_running_loop(outer)
            self._others()

    def step(self) -> bool:
        """Runs the oldest ready callback; false if nothing was ready."""
        if self._faults:
            raise self._faults.pop()
        while self._arrived:
            self._ready.append(self._arrived.popleft())
        while self._ready:
            handle, callback, arguments, context = self._ready.popleft()
            if handle.cancelled():
                continue
            with self.running():
                context.run(callback, *arguments)
            return True
        return False

    def settle(self) -> None:
        """Runs until nothing is ready. The clock does not move."""
        while self.step():
            pass

    def advance(self, seconds: float) -> None:
        """Moves the clock: timers that become due run in their order, each at its time."""
        until = self._now + seconds
        self.settle()
        while self._timers and self._timers[0][0] <= until:
            self._now, _, call = heapq.heappop(self._timers)
            self._ready.append(call)
            self.settle()
        self._now = until

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Runs a coroutine to its end, moving the clock to its timers as needed."""
        task: asyncio.Task[_T] = self.create_task(coroutine)
        self.settle()
        while not task.done():
            self.advance(self._timers[0][0] - self._now)
        return task.result()

    def connect(self) -> asyncio.BaseProtocol:
        """The protocol of a new connection to the server that listens on this loop."""
        if self._listener is None:
            raise ConnectionRefusedError("nobody listens")
        with self.running():
            return self._listener.factory()

    # ---- asyncio.AbstractEventLoop -------------------------------------------------------

    def time(self) -> float:
        return self._now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return asyncio._get_running_loop() is self

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True
        self._ready.clear()
        self._arrived.clear()
        self._timers.clear()

    def call_soon(
        self,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        context = context or contextvars.copy_context()
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append((handle, callback, args, context))
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        context = context or contextvars.copy_context()
        handle = asyncio.Handle(callback, args, self, context)
        self._arrived.append((handle, callback, args, context))
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        context = context or contextvars.copy_context()
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._order), (handle, callback, args, context)))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Called by asyncio; a cancelled timer is skipped when it becomes due."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, **options)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._faults.append(context.get("exception") or RuntimeError(context["message"]))

    async def create_server(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], *args: Any, **options: Any
    ) -> asyncio.Server:
        host, port = args
        self._listener = _Listener(protocol_factory, (host, port))
        return cast("asyncio.Server", self._listener)


class _Address:
    """The part of a listening socket that the server uses."""

    def __init__(self, name: tuple[str, int]) -> None:
        self._name: Final = name

    def getsockname(self) -> tuple[str, int]:
        return self._name


class _Listener:
    """The listening server that `create_server` returns, without a network."""

    def __init__(
        self, factory: Callable[[], asyncio.BaseProtocol], address: tuple[str, int]
    ) -> None:
        self.factory = factory
        self.sockets = (_Address(address),)

    def close(self) -> None:
        """There is nothing to close: the loop is dropped together with the server."""
