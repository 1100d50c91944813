"""Simulated threads: blocking code that gives way to the scheduler wherever it would wait.

Each is a real thread, but only one of them runs at any moment, while the scheduler waits for it. It
runs until it pauses; then the scheduler goes on, and it decides when the thread is resumed. So the
seed decides the order, as it does for callbacks. A thread of a process that was killed is never
resumed; when the world ends, each pause raises `Killed`, and nothing that a ``finally`` does then
has an effect.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from .scheduler import Process

_T = TypeVar("_T")
_running = threading.local()


class Killed(BaseException):
    """The simulated process of a thread has ended."""


def current() -> SimulatedThread | None:
    """The simulated thread that runs now; None in the thread of the scheduler."""
    return getattr(_running, "thread", None)


class SimulatedThread:
    """A thread of a simulated process."""

    def __init__(self, process: Process, work: Callable[[], object]) -> None:
        self.process = process
        self._work = work
        self._real: threading.Thread | None = None
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self._is_paused = self._is_woken = self._is_over = False
        self._pauses = 0
        self._fault: BaseException | None = None
        self._waiting: list[SimulatedThread] = []
        process.loop.call_soon(self._resume)

    @property
    def is_alive(self) -> bool:
        return not self._is_over and self.process.alive

    def check(self) -> None:
        """Raises `Killed` if its process is gone."""
        if not self.process.alive:
            raise Killed

    # ---- called in it --------------------------------------------------------------------

    def pause(self, seconds: float | None = None) -> bool:
        """Gives way until `wake` is called, which is the result, or the time is over."""
        self.check()
        if not self._is_woken:
            self._is_paused = True
            self._pauses += 1
            if seconds is not None:
                number = self._pauses
                self.process.loop.call_later(seconds, lambda: self._time_over(number))
            self._back.release()
            self._go.acquire()
            self.check()
        was_woken, self._is_woken = self._is_woken, False
        return was_woken

    def sleep(self, seconds: float) -> None:
        """Pauses for a time, whatever wakes it meanwhile."""
        until = self.process.time() + seconds
        self.pause(seconds)
        while (left := until - self.process.time()) > 0:
            self.pause(left)

    def wait_until(self, condition: Callable[[], bool], seconds: float | None) -> bool:
        """Pauses until a condition holds; false if the time is over before."""
        until = None if seconds is None else self.process.time() + seconds
        while not condition():
            left = None if until is None else until - self.process.time()
            if left is not None and left <= 0:
                return False
            self.pause(left)
        return True

    # ---- called by others ----------------------------------------------------------------

    def wake(self) -> None:
        """Ends its pause, or the next one if it has none."""
        self._is_woken = True
        if self._is_paused:
            self._is_paused = False
            self.process.loop.call_soon(self._resume)

    def join(self, seconds: float | None = None) -> None:
        waiting = current()
        assert waiting is not None, "only a simulated thread can wait for another one"
        self._waiting.append(waiting)
        waiting.wait_until(lambda: self._is_over, seconds)

    def end(self) -> None:
        """Lets it end, after its process has."""
        assert not self.process.alive
        if self._real is not None and not self._is_over:
            self._hand_over()
            self._real.join()

    # ---- taking turns --------------------------------------------------------------------

    def _time_over(self, number: int) -> None:
        if self._is_paused and number == self._pauses:
            self._is_paused = False
            self._resume()

    def _resume(self) -> None:
        if self._real is None:
            self._real = threading.Thread(target=self._run, daemon=True)
            self._real.start()
        self._hand_over()
        if self._fault is not None:
            raise self._fault

    def _hand_over(self) -> None:
        self._go.release()
        self._back.acquire()

    def _run(self) -> None:
        _running.thread = self
        self._go.acquire()
        try:
            self.check()
            self._work()
        except Killed:
            pass
        except BaseException as fault:
            self._fault = fault
        self._is_over = True
        if self.process.alive:
            for other in self._waiting:
                other.wake()
        self._back.release()


class Threads:
    """The simulated threads of a world."""

    def __init__(self) -> None:
        self._all: list[SimulatedThread] = []

    def start(self, process: Process, work: Callable[[], object]) -> SimulatedThread:
        thread = SimulatedThread(process, work)
        self._all.append(thread)
        return thread

    def end_all(self) -> None:
        """Ends every thread, after the world has ended."""
        for thread in self._all:
            thread.process.alive = False
        for thread in self._all:
            thread.end()
        self._all.clear()


class SimulatedEvent:
    """`threading.Event` for simulated threads."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: list[SimulatedThread] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        waiting, self._waiting = self._waiting, []
        for thread in waiting:
            thread.wake()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        thread = current()
        assert thread is not None
        self._waiting.append(thread)
        return thread.wait_until(lambda: self._is_set, timeout)


class SimulatedLock:
    """`threading.Lock` for simulated threads, which may pause while they hold it."""

    def __init__(self) -> None:
        self._is_held = False
        self._waiting: list[SimulatedThread] = []

    def acquire(self, blocking: bool = True) -> bool:
        if self._is_held and not blocking:
            return False
        while self._is_held:
            thread = current()
            assert thread is not None
            self._waiting.append(thread)
            thread.wait_until(lambda: not self._is_held, None)
        self._is_held = True
        return True

    def release(self) -> None:
        self._is_held = False
        waiting, self._waiting = self._waiting, []
        for thread in waiting:
            thread.wake()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *raised: object) -> None:
        self.release()


class SimulatedQueue:
    """`queue.SimpleQueue` for simulated threads; anybody may put something in it."""

    def __init__(self, empty: type[Exception]) -> None:
        self._empty = empty
        self._held: deque[Any] = deque()
        self._waiting: list[SimulatedThread] = []

    def put(self, item: Any) -> None:
        self._held.append(item)
        waiting, self._waiting = self._waiting, []
        for thread in waiting:
            thread.wake()

    def get_nowait(self) -> Any:
        if not self._held:
            raise self._empty
        return self._held.popleft()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        thread = current()
        assert thread is not None

        def is_there() -> bool:
            if not self._held:
                self._waiting.append(thread)
            return bool(self._held)

        thread.wait_until(is_there, timeout)
        return self.get_nowait()

    def __len__(self) -> int:
        return len(self._held)


def block_on(
    process: Process, coroutine: Coroutine[Any, Any, _T], seconds: float | None = None
) -> _T:
    """Runs a coroutine on the loop of a process; the simulated thread waits for its result."""
    thread = current()
    assert thread is not None
    results: list[_T] = []
    faults: list[BaseException] = []

    async def work() -> None:
        try:
            results.append(await coroutine)
        except BaseException as fault:
            faults.append(fault)
        thread.wake()

    try:
        thread.check()
    except Killed:
        coroutine.close()
        raise
    task = process.spawn(work())
    if not thread.wait_until(lambda: bool(results or faults), seconds):
        task.cancel()
        raise TimeoutError(f"not done in {seconds:g} s")
    if faults:
        raise faults[0]
    return results[0]


class SimulatedClock:
    """The module ``time``: in a simulated thread the clocks are those of its process."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def monotonic(self) -> float:
        thread = current()
        return time.monotonic() if thread is None else thread.process.time()

    def time(self) -> float:
        return self.time_ns() / 1e9

    def time_ns(self) -> int:
        thread = current()
        return time.time_ns() if thread is None else thread.process.wall()

    def sleep(self, seconds: float) -> None:
        thread = current()
        if thread is None:
            time.sleep(seconds)
        else:
            thread.sleep(seconds)
