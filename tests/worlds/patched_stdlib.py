"""The machine that blocking code of a simulated process stands on: clocks, threads and sockets.

Pipelines, drivers and tasks are blocking code. In the block of `machine`, the modules of it that
are named here find simulated ones where they look for ``time``, ``threading``, ``socket`` and the
consumer's thread. Code in threads that are not simulated finds the real ones, as before.
"""

from __future__ import annotations

import asyncio
import queue
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any, Final, Self, TypeVar

from upriver import batches, consumer, files, tables
from upriver.batches import task_reader
from upriver.consumer.client import Consumer
from upriver.consumer.streaming.inbox import Closed, Delivery
from upriver.consumer.transport import blocking_connection
from upriver.tables import lag, lease, pipeline, pipeline_watch
from upriver.tables.upkeep import version_retention

from .network import Network
from .scheduler import Process
from .threads import (
    SimulatedClock,
    SimulatedEvent,
    SimulatedLock,
    SimulatedQueue,
    SimulatedThread,
    Threads,
    block_on,
    current,
)

_T = TypeVar("_T")
#: The packages whose modules find the simulated clocks.
_PACKAGES: Final = tuple(f"{package.__name__}." for package in (batches, consumer, files, tables))


@contextmanager
def machine(
    network: Network,
    threads: Threads,
    child_of: Callable[[Process], Process],
    is_running: Callable[[str, int], bool],
) -> Iterator[None]:
    """Puts simulated parts in place, in a block.

    ``child_of`` makes the process whose loop a consumer of a process has. ``is_running`` says
    whether a host has a process of a number.
    """
    clock = SimulatedClock()
    ours = [module for name, module in list(sys.modules.items()) if name.startswith(_PACKAGES)]
    clocked = [module for module in ours if vars(module).get("time") is time]
    reading = [module for module in ours if vars(module).get("Consumer") is Consumer]
    make = _consumers(child_of)
    select = SimpleNamespace(select=_select)
    threading_ = _Threading(threads)
    places: list[tuple[ModuleType, dict[str, Any]]] = [
        *((module, {"time": clock}) for module in clocked),
        (blocking_connection, {"socket": _Sockets(network), "select": select}),
        *((one, {"threading": threading_}) for one in (blocking_connection, lag)),
        *((one, {"threading": threading_}) for one in (pipeline, pipeline_watch)),
        (lease, {"threading": threading_, "os": SimpleNamespace(getpid=_pid)}),
        (lease, {"socket": SimpleNamespace(gethostname=_host), "_process_space": _host}),
        (lease, {"_started": _started_by(is_running)}),
        (version_retention, {"ThreadPoolExecutor": _OneAfterTheOther}),
        *((module, {"Consumer": make}) for module in reading),
        (task_reader, {"keep": lambda key, consumer: consumer.close()}),
    ]
    with ExitStack() as stack:
        for module, parts in places:
            stack.enter_context(replaced(module, **parts))
        yield


@contextmanager
def replaced(module: ModuleType, **parts: Any) -> Iterator[None]:
    """Gives names of a module another meaning, in a block."""
    before = {name: getattr(module, name) for name in parts}
    vars(module).update(parts)
    try:
        yield
    finally:
        vars(module).update(before)


def _process() -> Process:
    thread = current()
    assert thread is not None
    return thread.process


# ---- what a machine says of itself -------------------------------------------------------


def _host() -> str:
    """Drivers whose numbers are equal modulo 2 run on one host."""
    return f"host{_pid() % 2}"


def _pid() -> int:
    return _process().number


def _started_by(is_running: Callable[[str, int], bool]) -> Callable[[int], str]:
    return lambda pid: f"start of {pid}" if is_running(_host(), pid) else ""


# ---- threads -----------------------------------------------------------------------------


class _Threading:
    """The module ``threading``, for modules whose threads are simulated."""

    Event = SimulatedEvent
    Lock = SimulatedLock

    def __init__(self, threads: Threads) -> None:
        self._threads = threads

    def Thread(  # noqa: N802
        self,
        *,
        target: Callable[..., object],
        args: tuple[Any, ...] = (),
        name: str = "",
        daemon: bool = True,
    ) -> _Thread:
        return _Thread(self._threads, _process(), lambda: target(*args))


class _Thread:
    """`threading.Thread`."""

    def __init__(self, threads: Threads, process: Process, work: Callable[[], object]) -> None:
        self._threads = threads
        self._process = process
        self._work = work
        self._started: SimulatedThread | None = None

    def start(self) -> None:
        self._started = self._threads.start(self._process, self._work)

    def join(self, timeout: float | None = None) -> None:
        assert self._started is not None
        self._started.join(timeout)


class _OneAfterTheOther:
    """`ThreadPoolExecutor` without threads."""

    def __init__(self, size: int) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        pass

    def map(self, work: Callable[..., Any], *given: Any) -> Iterator[Any]:
        return map(work, *given)


# ---- sockets -----------------------------------------------------------------------------


class _Sockets:
    """The module ``socket``, as far as a blocking connection needs it."""

    IPPROTO_TCP = TCP_NODELAY = SHUT_RDWR = 0

    def __init__(self, network: Network) -> None:
        self._network = network

    def create_connection(self, address: tuple[str, int], timeout: float) -> _Socket:
        process = _process()
        connecting = self._network.connect(process, _Socket, address[1])
        _, made = block_on(process, connecting, timeout)
        assert isinstance(made, _Socket)
        return made


class _Socket(asyncio.Protocol):
    """A blocking socket over a connection of the simulated network."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._over = False
        self._error: Exception | None = None
        self._timeout: float | None = None
        self._reader: SimulatedThread | None = None
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._wake()

    def eof_received(self) -> bool:
        self._over = True
        self._wake()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._over, self._error = True, error
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None:
            self._reader.wake()

    def is_readable(self) -> bool:
        return bool(self._received) or self._over

    def setsockopt(self, *option: int) -> None:
        pass

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def sendall(self, data: Any) -> None:
        if self._over:
            raise self._error or BrokenPipeError(32, "Broken pipe")
        self._transport.write(bytes(data))

    def recv(self, size: int) -> bytes:
        self._reader = current()
        assert self._reader is not None
        if not self._reader.wait_until(self.is_readable, self._timeout):
            raise TimeoutError("timed out")
        if not self._received and self._error is not None:
            raise self._error
        data = bytes(self._received[:size])
        del self._received[:size]
        return data

    def shutdown(self, how: int) -> None:
        self._over = True
        self._wake()

    def close(self) -> None:
        self._transport.close()


def _select(readable: list[_Socket], *others: Any) -> tuple[list[_Socket], list[Any], list[Any]]:
    return [one for one in readable if one.is_readable()], [], []


# ---- consumers ---------------------------------------------------------------------------


def _consumers(child_of: Callable[[Process], Process]) -> Callable[..., Consumer]:
    def made(*given: Any, **named: Any) -> Consumer:
        return _ThreadedConsumer(child_of(_process()), *given, **named)

    return made


class _ThreadedConsumer(Consumer):
    """The blocking consumer. In place of its thread it has a process with an event loop."""

    def __init__(self, process: Process, *given: Any, **named: Any) -> None:
        self._process = process
        super().__init__(*given, **named)

    def _prepare(self) -> None:
        super()._prepare()
        self._deliveries = SimulatedQueue(queue.Empty)  # type: ignore[assignment]

    def start(self) -> Self:
        self._start_once()
        self._loop = self._process.loop
        try:
            self._call(self._begin(self._deliveries.put))
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        if self._closed:
            return
        try:
            if self._loop is not None and self._process.alive and current() is not None:
                self._call(self._end_engine())
        finally:
            self._closed = True
            if self._process.alive:
                self._process.kill()
        self._deliveries.put(Delivery(Closed()))

    def _call(self, coroutine: Any) -> Any:
        if self._loop is None or self._closed:
            coroutine.close()
            raise RuntimeError("the consumer is closed")
        return block_on(self._process, coroutine)
