"""The blocking client: changes of a bucket in a for loop.

The engine runs on an event loop in a thread of its own, so that nodes are answered while the
application thinks; what it reads waits in a queue that flow control keeps small.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import pyarrow as pa

from ..session.events import Event, Rows
from ..session.position import Position
from .changes import Change
from .delivery import Closed, Delivery, Finished
from .desk import Desk
from .node import NodeConnection
from .reading import Reading
from .status import ReadingStatus, status_of

__all__ = ["Consumer"]

_T = TypeVar("_T")

#: Threads are told of room only when it is worth it: this part of a node's buffer.
_WORTH_TELLING: Final = 1 / 16


class Consumer(Reading):
    """Reads the changes of a bucket.

        with Consumer("couchbase://127.0.0.1/default", end="now") as consumer:
            for change in consumer:
                print(change.key, change.value)

    Options are those of `ConsumerSettings`. With a checkpoint store it goes on where `save` was
    last called. ``on_rollback`` is called, in the application's thread, before anything of a new
    branch is handed out: what was told after its ``to_seqno`` never happened. A document that was
    changed before and after it has its older version again, which nobody sends a second time.
    """

    def _prepare(self) -> None:
        self._inbox: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    # ---- life ----------------------------------------------------------------------------

    def start(self) -> Self:
        """Finds the bucket and begins to read; a with block does it by itself."""
        if self._loop is not None or self._closed:
            raise RuntimeError("a consumer is started once: make another one")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="upriver consumer", daemon=True
        )
        self._thread.start()
        try:
            self._call(self._begin(self._inbox.put))
        except BaseException:
            self.close()
            raise
        return self

    def start_again(self, start: Mapping[int, Position], end: Mapping[int, int]) -> None:
        """Reads other ranges after the last ones were read to their end, where it is connected.

        `ConnectionFailed` if it is not any more, or what goes wrong while beginning; it can then
        only be closed.
        """
        self._give_back(self._desk, 0)
        self._call(self._begin_again(start, end))

    def close(self) -> None:
        """Hangs up, and ends a loop that waits in another thread; saves nothing."""
        if self._closed:
            return
        if self._loop is not None and self._thread is not None:
            self._call(self._end())
            self._closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
        self._closed = True
        self._inbox.put(Delivery(Closed()))

    async def _end(self) -> None:
        if self._running is not None:
            await self._engine.stop()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _call(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        if self._loop is None or self._closed:
            coroutine.close()
            raise RuntimeError("the consumer is closed")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    # ---- reading -------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Change]:
        """Changes one by one, until the end that was asked for.

        A loop that was left goes on where it was.
        """
        desk = self._desk
        yield from desk.changes()
        while (event := self._next(None, whole=False)) is not None:
            if isinstance(event, Rows):
                yield from desk.changes()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Changes by the thousand, as columns (`upriver.wire.columns.SCHEMA`)."""
        for event in self.events():
            if isinstance(event, Rows):
                yield event.batch

    def events(self) -> Iterator[Event]:
        """Everything that happens: rows, rollbacks, streams that open and end, collections."""
        while (event := self.poll()) is not None:
            yield event

    def poll(self, timeout: float | None = None) -> Event | None:
        """The next event; None at the end of the reading, or after ``timeout`` seconds."""
        rest = None if self._closed else self._desk.rest()
        return rest or self._next(timeout, whole=True)

    def _next(self, timeout: float | None, *, whole: bool) -> Event | None:
        desk = self._desk
        while not (self._finished or self._closed):
            desk.check()
            desk.done()
            self._give_back(desk, int(self._settings.buffer * _WORTH_TELLING))
            try:
                delivery = self._inbox.get_nowait()
            except queue.Empty:
                self._give_back(desk, 0)
                try:
                    delivery = self._inbox.get(timeout=timeout)
                except queue.Empty:
                    return None
            event = desk.take(delivery, whole=whole)
            if isinstance(event, Finished):
                self._finished = True
            elif event is not None and not isinstance(event, Closed):
                return event
        return None

    def _give_back(self, desk: Desk, at_least: int) -> None:
        owed = desk.owed(at_least=at_least)
        if owed and self._loop is not None:
            with suppress(RuntimeError):  # it was closed meanwhile
                self._loop.call_soon_threadsafe(_give_all_back, owed)

    # ---- where it is ---------------------------------------------------------------------

    def status(self) -> ReadingStatus:
        """What is connected, what flows, and how far the reading is."""
        self._in_use()
        return self._call(self._status())

    async def _status(self) -> ReadingStatus:
        return status_of(self._engine, self._desk)

    def high_seqnos(self) -> dict[int, int]:
        """The newest seqno that the nodes have of each vbucket."""
        return self._call(self._engine.high_seqnos())


def _give_all_back(owed: list[tuple[NodeConnection, int]]) -> None:
    for connection, size in owed:
        connection.give_back(size)
