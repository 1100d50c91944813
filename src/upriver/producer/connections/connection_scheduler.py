"""Shares the event loop between connections: each works for a bounded time, then the next one.

    asks ──> NEW ──turn──┬──> done, and it was short: LIGHT
             LIGHT ──────┤
             BULK ───────┴──> more to do, or it was long: BULK

A round serves LIGHT connections first, then NEW ones, then BULK ones, at least one of each, until
its time is over; then the event loop polls its sockets. So a small request waits for at most one
turn of each other kind, however many connections have more work waiting, and none starves.

A turn can be long because one large document is read in one piece. A connection that had such a
turn stays BULK for a while, although it may have nothing to do until its peer has read the
document.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import Final, Protocol

logger = logging.getLogger("upriver.producer")

#: Seconds of one turn. Much shorter turns would spend their time on switching; a longer turn delays
#: the requests of all other connections.
TURN_SECONDS: Final = 0.001
#: Packets of one turn: about as many simple requests as fit into its time.
TURN_PACKETS: Final = 256
#: Seconds of turns between two polls of the sockets; a poll costs some ten microseconds.
_ROUND_SECONDS: Final = 0.004
#: Seconds of CPU time that make a turn a long one, and for how long that is remembered.
_LONG_TURN: Final = 0.005
_REMEMBERED: Final = 1.0


class Load(IntEnum):
    """The expected work of a connection's next turn, in the order of serving."""

    LIGHT = 0
    NEW = 1
    BULK = 2


class Worker(Protocol):
    """A connection as the scheduler sees it. The scheduler sets the attributes."""

    #: Whether it waits for a turn.
    queued: bool
    #: At first `Load.NEW`.
    load: Load
    #: Until when it is BULK because of a long turn; at first 0.
    heavy_until: float

    def work(self, until: float) -> bool:
        """Works until that time or until nothing is left; returns whether anything is left."""

    def failed(self) -> None:
        """Called when a turn raised an exception."""


class ConnectionScheduler:
    """The queues of one event loop. Only its thread may use them."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, used: Callable[[], float] = time.thread_time
    ) -> None:
        """``used`` is the CPU time of the thread: on a busy host, wall time is too long."""
        self._loop = loop
        self._used = used
        self._queues: tuple[deque[Worker], ...] = tuple(deque() for _ in Load)
        self._scheduled = False
        #: The connection whose turn it is, and whether it has requested another one.
        self._serving: Worker | None = None
        self._again = False
        #: Number of turns so far.
        self.taken = 0

    def ask(self, worker: Worker) -> None:
        """Queues a connection for a turn."""
        if worker is self._serving:
            self._again = True  # queued after its turn, which shows how much work it has
        elif not worker.queued:
            self._enqueue(worker)

    def work_now(self, worker: Worker) -> None:
        """Gives a connection its turn at once if no other waits and it has little to do."""
        if any(self._queues) or worker.queued or self._load(worker) is Load.BULK:
            self.ask(worker)
        else:
            self._turn(worker)

    def _load(self, worker: Worker) -> Load:
        return Load.BULK if self._loop.time() < worker.heavy_until else worker.load

    def _enqueue(self, worker: Worker) -> None:
        worker.queued = True
        self._queues[self._load(worker)].append(worker)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            # Not the round itself: the event loop would start it before it reads the sockets that
            # it polls next, so that requests which arrived meanwhile would wait for one more round.
            self._loop.call_soon(self._loop.call_soon, self._round)

    def _round(self) -> None:
        self._scheduled = False
        end = self._loop.time() + _ROUND_SECONDS
        for queue in self._queues:
            for _ in range(len(queue)):
                self._turn(queue.popleft())
                if self._loop.time() >= end:
                    break
        if any(self._queues):
            self._schedule()

    def _turn(self, worker: Worker) -> None:
        self._serving, self._again = worker, False
        worker.queued = False
        self.taken += 1
        begun = self._used()
        try:
            more = worker.work(self._loop.time() + TURN_SECONDS)
        except Exception:
            logger.exception("a connection's turn failed")
            more = False
            worker.failed()
        self._serving = None
        worker.load = Load.BULK if more else Load.LIGHT
        if self._used() - begun >= _LONG_TURN:
            worker.heavy_until = self._loop.time() + _REMEMBERED
        if more or self._again:
            self._enqueue(worker)
