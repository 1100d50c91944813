"""The blocking client: changes of a bucket in a for loop.

The engine runs on an event loop in a thread of its own, so that nodes are answered while the
application thinks; what it reads waits in a queue that flow control keeps small.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import pyarrow as pa

from ..session.events import Event, Rows
from .access import Access
from .changes import Change
from .checkpoint import Checkpoint, CheckpointStore
from .collections import Collections
from .delivery import Closed, Delivery, Finished
from .desk import Desk, Rollback
from .engine import Engine
from .node import NodeConnection
from .settings import ConsumerSettings, settings_for
from .source import Source
from .status import ReadingStatus, status_of

__all__ = ["Consumer"]

_T = TypeVar("_T")

#: Threads are told of room only when it is worth it: this part of a node's buffer.
_WORTH_TELLING: Final = 1 / 16


class Consumer:
    """Reads the changes of a bucket.

        with Consumer("couchbase://127.0.0.1/default", end="now") as consumer:
            for change in consumer:
                print(change.key, change.value)

    Options are those of `ConsumerSettings`. With a checkpoint store it goes on where `save` was
    last called. ``on_rollback`` is called, in the application's thread, before anything of a new
    branch is handed out: what was told after its ``to_seqno`` never happened. A document that was
    changed before and after it has its older version again, which nobody sends a second time.
    """

    def __init__(
        self,
        source: str | Source,
        *,
        access: Access | None = None,
        checkpoint: CheckpointStore | None = None,
        on_rollback: Callable[[Rollback], None] | None = None,
        settings: ConsumerSettings | None = None,
        **options: Any,
    ) -> None:
        self._source = Source.parse(source) if isinstance(source, str) else source
        self._access = access or Access()
        self._settings = settings_for(settings, options, checkpoint)
        self._store = checkpoint
        self._on_rollback = on_rollback
        self._inbox: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._running: tuple[Engine, Desk] | None = None
        self._finished = False
        self._closed = False

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
            self._call(self._begin())
        except BaseException:
            self.close()
            raise
        return self

    async def _begin(self) -> None:
        engine = Engine(self._source, self._access, self._settings, self._inbox.put)
        bearings = await engine.start()
        desk = Desk(
            self._source,
            self._settings,
            bearings,
            on_rollback=self._on_rollback,
            checkpoint=self._store,
        )
        self._running = engine, desk

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

    @property
    def _engine(self) -> Engine:
        return self._in_use()[0]

    @property
    def _desk(self) -> Desk:
        return self._in_use()[1]

    def _in_use(self) -> tuple[Engine, Desk]:
        if self._running is None:
            raise RuntimeError("the consumer is not running: use it in a with block")
        return self._running

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

    @property
    def finished(self) -> bool:
        """Whether everything up to the end was handed out."""
        return self._finished

    def _give_back(self, desk: Desk, at_least: int) -> None:
        owed = desk.owed(at_least=at_least)
        if owed and self._loop is not None:
            with suppress(RuntimeError):  # it was closed meanwhile
                self._loop.call_soon_threadsafe(_give_all_back, owed)

    # ---- where it is ---------------------------------------------------------------------

    def position(self) -> Checkpoint:
        """Where the application is: after everything that was handed to it."""
        return self._desk.checkpoint()

    def save(self) -> None:
        """Saves that to the checkpoint store."""
        self._desk.save()

    def status(self) -> ReadingStatus:
        """What is connected, what flows, and how far the reading is."""
        self._in_use()
        return self._call(self._status())

    async def _status(self) -> ReadingStatus:
        return status_of(self._engine, self._desk)

    def high_seqnos(self) -> dict[int, int]:
        """The newest seqno that the nodes have of each vbucket."""
        return self._call(self._engine.high_seqnos())

    @property
    def collections(self) -> Collections:
        """What the collections are called."""
        return self._engine.bearings.collections


def _give_all_back(owed: list[tuple[NodeConnection, int]]) -> None:
    for connection, size in owed:
        connection.give_back(size)
