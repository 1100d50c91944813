"""Simulated time and simulated processes: one scheduler decides which of them runs next.

Every process has an event loop of its own (`ProcessLoop`) with its own clocks. The scheduler picks,
by the seed, one of the processes that have something to do, runs one round of its callbacks, and
moves the time on when nobody has anything to do. A process can be stopped for a while, or killed:
its callbacks never run again, and what it had in memory is gone.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import random
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple, Unpack

from upriver.testing.stepped_loop import SteppedLoop

if TYPE_CHECKING:
    from .network import Network

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

#: The true time at which every world begins, in nanoseconds since 1970: in November 2023.
BEGINNING: Final = 1_700_000_000 * 10**9
#: Rounds of callbacks in one world. More mean that something spins without any time passing.
_MOST_ROUNDS: Final = 200_000


class Stuck(AssertionError):
    """A world does not come to an end."""


class Scheduler:
    """The true time, and everything that will happen."""

    def __init__(self, chance: random.Random) -> None:
        self.now = 0.0
        self._chance = chance
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        #: Processes with callbacks, in the order in which they became ready.
        self._ready: dict[Process, None] = {}
        self.rounds = 0

    def at(self, when: float, event: Callable[[], object]) -> None:
        """Calls ``event`` at a true time, or now if that is over."""
        heapq.heappush(self._events, (max(when, self.now), next(self._order), event))

    def after(self, seconds: float, event: Callable[[], object]) -> None:
        self.at(self.now + seconds, event)

    def is_ready(self, process: Process) -> None:
        """Notes that a process has callbacks to run."""
        self._ready[process] = None

    def run(self, until: Callable[[], bool], *, before: float) -> bool:
        """Runs until a condition holds; false if the time ``before`` came first."""
        while not until():
            if not self.step(before):
                return until()
        return True

    def step(self, before: float) -> bool:
        """Runs one round of one process, or the next event; false if there is none in time."""
        if self._ready:
            self.rounds += 1
            if self.rounds > _MOST_ROUNDS:
                raise Stuck("the world spins: a process has always something to do")
            waiting = list(self._ready)
            process = waiting[0] if len(waiting) == 1 else self._chance.choice(waiting)
            del self._ready[process]
            process.loop.round()
            return True
        if not self._events or self._events[0][0] > before:
            self.now = max(self.now, before)
            return False
        self.now, _, event = heapq.heappop(self._events)
        event()
        return True


class Process:
    """A simulated process: an event loop, a monotonic clock and a wall clock."""

    def __init__(
        self, name: str, scheduler: Scheduler, network: Network, *, rate: float = 1.0
    ) -> None:
        """``rate`` is how fast its clocks run."""
        self.name = name
        #: Of its world, in the order in which they were started.
        self.number = 0
        self.scheduler = scheduler
        self.network = network
        self.alive = True
        #: Until when it is stopped, as by SIGSTOP.
        self.stopped_until = 0.0
        #: Seconds by which its wall clock is wrong.
        self.skew = 0.0
        self._rate = rate
        #: What its monotonic clock has shown: rounding must not make it go back.
        self._shown = 0.0
        self.loop = ProcessLoop(self)  # type: ignore[abstract]

    def time(self) -> float:
        """Its monotonic clock."""
        self._shown = max(self._shown, self.scheduler.now * self._rate)
        return self._shown

    def is_past(self, when: float) -> None:
        """Notes that its monotonic clock shows at least ``when``."""
        self._shown = max(self._shown, when)

    def true_delay(self, when: float) -> float:
        """True seconds until its monotonic clock shows ``when``."""
        return max(0.0, when / self._rate - self.scheduler.now)

    def wall(self) -> int:
        """Its wall clock, in nanoseconds since 1970."""
        return BEGINNING + int((self.time() + self.skew) * 1e9)

    def spawn(self, coroutine: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Starts a task in it. An exception that ends the task ends the world."""
        with self.loop.running():
            task: asyncio.Task[_T] = self.loop.create_task(coroutine)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if self.alive and not task.cancelled() and (fault := task.exception()) is not None:
            self.loop.call_soon(_raise, fault)

    def call(self, function: Callable[[], _T]) -> _T:
        """Calls a function in it, at once."""
        with self.loop.running():
            return function()

    def stop_for(self, seconds: float) -> None:
        """It does nothing for a while; its clocks go on."""
        self.stopped_until = max(self.stopped_until, self.scheduler.now + seconds)

    def kill(self) -> None:
        """It never runs again."""
        self.alive = False
        self.network.process_ended(self)

    def dispose(self) -> None:
        """Lets its tasks end, after the world has ended. They reach nobody any more."""
        self.alive = False
        self.loop.dispose()


def _raise(fault: BaseException) -> None:
    raise fault


class ProcessLoop(SteppedLoop):
    """The event loop of a process. Its sockets are those of the simulated network."""

    def __init__(self, process: Process) -> None:
        super().__init__(others=lambda: None)
        self._process = process
        self._alive_tasks: dict[asyncio.Task[Any], None] = {}
        self._disposing = False

    def round(self) -> None:
        """Runs the callbacks that are ready now, but not those that they add."""
        process = self._process
        if not process.alive:
            return
        if process.stopped_until > process.scheduler.now:
            process.scheduler.at(process.stopped_until, self._wake)
            return
        for _ in range(len(self._ready) + len(self._arrived)):
            if not self.step() or not process.alive:
                break
        if self._ready or self._arrived:
            self._wake()

    def _wake(self) -> None:
        if self._process.alive:
            self._process.scheduler.is_ready(self._process)

    @property
    def tasks(self) -> int:
        """How many tasks are not done."""
        return len(self._alive_tasks)

    @property
    def alive_tasks(self) -> list[asyncio.Task[Any]]:
        """The tasks that have not ended."""
        return list(self._alive_tasks)

    def dispose(self) -> None:
        """Cancels every task and runs what that causes."""
        self._disposing = True
        for _ in range(20):
            for task in list(self._alive_tasks):
                task.cancel()
            for _ in range(10_000):
                try:
                    if not self.step():
                        break
                except Exception:  # of a process that is gone
                    continue
            if not self._alive_tasks:
                break
        self._faults.clear()
        self.close()

    # ---- asyncio.AbstractEventLoop -------------------------------------------------------

    def time(self) -> float:
        return self._process.time()

    def call_soon(
        self,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        handle = super().call_soon(callback, *args, context=context)
        self._wake()
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        context = context or contextvars.copy_context()
        handle = asyncio.TimerHandle(when, callback, args, self, context)

        def due() -> None:
            if self._process.alive and not handle.cancelled():
                self._process.is_past(when)
                self._ready.append((handle, callback, args, context))
                self._wake()

        self._process.scheduler.after(self._process.true_delay(when), due)
        return handle

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task = super().create_task(coro, **options)
        self._alive_tasks[task] = None
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._alive_tasks.pop(task, None)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._process.alive and not self._disposing:
            super().call_exception_handler(context)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> asyncio.Future[Any]:
        """Runs it at once: a thread would end at a time that no seed decides."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        return await self._process.network.connect(self._process, protocol_factory, port)

    async def create_server(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], *args: Any, **options: Any
    ) -> asyncio.Server:
        server = await super().create_server(protocol_factory, *args, **options)
        self._process.network.listen(self._process, args[1], protocol_factory)
        return server
