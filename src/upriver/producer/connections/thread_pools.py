"""Thread pools for work that would block the event loop, one for each class of work.

Slow work of one class does not delay another class. A connection has at most one task under way.
Still, the queue of each class is bounded; if it is full, clients get a temporary failure.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

from ...errors import Status, StoreRefusal
from ..keyvalue import BackgroundWork

_T = TypeVar("_T")

#: Threads of each class. The interpreter runs one thread at a time, so more threads help only if
#: the work waits for the disk or a commit, or releases the GIL, as hashing does.
_THREADS: Final = {
    BackgroundWork.HASHING: 2,
    BackgroundWork.SEARCHING: 1,
    BackgroundWork.EDITING: 4,
    BackgroundWork.COMPACTING: 1,
    BackgroundWork.ADMINISTERING: 2,
    BackgroundWork.REPLICATING: 4,
}
#: Tasks that may wait in a class: some seconds of typical work.
MOST_WAITING: Final = 512
#: Never refused, because such work comes only from the few replication streams of this node.
_UNBOUNDED: Final = frozenset({BackgroundWork.REPLICATING})


class ThreadPools:
    """The thread pools of one server. Threads are started when they are first needed."""

    def __init__(self) -> None:
        self._pools = {
            work: ThreadPoolExecutor(count, thread_name_prefix=f"upriver {work.value}")
            for work, count in _THREADS.items()
        }
        self._waiting = dict.fromkeys(BackgroundWork, 0)
        self._lock = threading.Lock()

    def submit(self, work: BackgroundWork, call: Callable[[], _T]) -> Future[_T]:
        """Runs a call in a thread of its class; raises a `StoreRefusal` if its queue is full."""
        with self._lock:
            if self._waiting[work] >= MOST_WAITING and work not in _UNBOUNDED:
                raise StoreRefusal(
                    Status.TEMPORARY_FAILURE, f"too much {work.value} is waiting; try again later"
                )
            self._waiting[work] += 1
        future = self._pools[work].submit(call)
        future.add_done_callback(lambda _: self._done(work))
        return future

    def _done(self, work: BackgroundWork) -> None:
        with self._lock:
            self._waiting[work] -= 1

    def close(self) -> None:
        """Finishes the tasks under way and ends the threads."""
        for pool in self._pools.values():
            pool.shutdown(wait=True)
