"""`Consumer`: the blocking client, which yields the changes of a bucket in a for loop.

The engine runs on an event loop in a background thread, so that noops of the nodes are answered
while the application processes changes. Deliveries wait in a queue; flow control limits its size.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import closing, suppress
from typing import Any, Final, Self, TypeVar

import pyarrow as pa

from ..errors import InternalError
from ..session.consumer_events import Event, Rows
from ..session.stream_position import Position
from .changes import Change
from .streaming.consumer_base import LEASE_TICK, ConsumerBase, Needs, NextEvent, ReadingStatus
from .streaming.inbox import Closed, Delivery, Failed
from .transport.async_connection import AsyncConnection

_T = TypeVar("_T")

#: Finished bytes are returned to the engine's thread in portions of this part of the buffer,
#: because each call into another thread has a cost.
_WORTH_TELLING: Final = 1 / 16


class Consumer(ConsumerBase):
    """Reads the changes of a bucket.

        with Consumer("couchbase://127.0.0.1/default", end="now") as consumer:
            for change in consumer:
                print(change.key, change.value)

    Options are those of `ConsumerSettings`. With a checkpoint store, reading resumes where `save`
    was last called. ``on_rollback`` is called in the application's thread, before any change of the
    new branch is handed out. Changes after its ``to_seqno`` are then no longer part of the bucket's
    history. A document that was changed both before and after ``to_seqno`` has its older version
    again, and the server does not send that version a second time. A flush of the bucket is a
    rollback to seqno 0.

    Consumers with the same ``group`` share the vbuckets of the bucket: each change goes to one of
    them, and again to another one if it was not saved. ``members`` is where they meet: a directory,
    an address of an object store, a bucket, or a `GroupStore`; by default the bucket that is read.
    A member that is not heard of for ``lease`` seconds is replaced. ``on_assigned`` and
    ``on_revoked`` are called, in the application's thread, when vbuckets come and go; before
    ``on_revoked`` returns is the time to call `save`.
    """

    def _prepare(self) -> None:
        self._deliveries: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    # ---- lifecycle -----------------------------------------------------------------------

    def start(self) -> Self:
        """Connects to the bucket and starts streaming; a with block calls it automatically."""
        self._start_once()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=_run, args=(self._loop, self._deliveries), name="upriver consumer", daemon=True
        )
        self._thread.start()
        try:
            self._call(self._begin(self._deliveries.put))
        except BaseException:
            self.close()
            raise
        return self

    def _start_again(self, start: Mapping[int, Position], end: Mapping[int, int]) -> None:
        """Streams other seqno ranges over the open connections, after the last ones have ended.

        Raises `ConnectionFailed` if no connection is open, or any other error of starting. After
        an error the consumer can only be closed.
        """
        self._give_back(0)
        self._call(self._begin_again(start, end))

    def close(self) -> None:
        """Closes all connections and ends a loop that waits in another thread.

        Does not save a checkpoint.
        """
        if self._closed:
            return
        if self._loop is not None and self._thread is not None:
            self._call(self._end())
            self._closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
        self._closed = True
        self._deliveries.put(Delivery(Closed()))

    async def _end(self) -> None:
        await self._end_engine()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _call(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        if self._loop is None or self._closed:
            coroutine.close()
            raise RuntimeError("the consumer is closed")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    # ---- reading -------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Change]:
        """Yields changes one by one, until the requested end.

        If a loop is left early, the next loop continues with the next change.
        """
        inbox = self._inbox
        yield from inbox.changes()
        while (event := self._wait_for(self._next_event(whole=False), None)) is not None:
            if isinstance(event, Rows):
                yield from inbox.changes()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yields changes as Arrow batches with the schema `upriver.consumer.SCHEMA`."""
        while (event := self.poll()) is not None:
            if isinstance(event, Rows):
                yield event.batch

    def events(self) -> Iterator[Event]:
        """Yields all events: rows, rollbacks, opened and ended streams, collection changes."""
        while (event := self.poll()) is not None:
            yield event

    def poll(self, timeout: float | None = None) -> Event | None:
        """Returns the next event; None at the requested end, or after ``timeout`` seconds."""
        return self._wait_for(self._next_event(whole=True), timeout)

    def _wait_for(self, event: NextEvent, timeout: float | None) -> Event | None:
        """Does what ``event`` needs, and returns its result; None after ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with closing(event):
            delivery: Delivery | None = None
            while True:
                try:
                    need = event.send(delivery)
                except StopIteration as done:
                    found: Event | None = done.value
                    return found
                if need is Needs.DELIVERY:
                    delivery = self._receive(deadline)
                    if delivery is None:
                        return None
                    continue
                delivery = None
                if need is Needs.PAUSE:
                    if deadline is not None and time.monotonic() >= deadline:
                        return None
                    time.sleep(LEASE_TICK)
                elif self._on_revoked is not None:
                    self._on_revoked(need)

    def _receive(self, deadline: float | None) -> Delivery | None:
        """Returns the next delivery; None if there is none until the deadline."""
        self._give_back(int(self._settings.buffer * _WORTH_TELLING))
        with suppress(queue.Empty):
            return self._deliveries.get_nowait()
        self._give_back(0)
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        with suppress(queue.Empty):
            return self._deliveries.get(timeout=left)
        return None

    def _give_back(self, at_least: int) -> None:
        owed = self._inbox.owed(at_least=at_least)
        if owed and self._loop is not None:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                self._loop.call_soon_threadsafe(_give_all_back, owed)

    def close_stream(self, vbucket: int) -> None:
        """Closes the stream of one vbucket, whose changes are not handed out any more.

        Reading goes on with the other vbuckets, and ends when the streams of all are closed or at
        their end. `events` yields a `StreamFinished` with the reason ``CLOSED``. The position of
        the vbucket stays after its last change that was handed out, so another consumer can go on
        from there. The server is told by Close Stream; drafts 002 and 000 lack it, and there the
        next message of the stream is refused, at which the server ends it.
        """
        self._in_use()
        self._call(self._close_stream(vbucket))

    # ---- position and status -------------------------------------------------------------

    def save(self) -> None:
        """Saves the application's position to the checkpoint store."""
        self._save(self.position())

    def status(self) -> ReadingStatus:
        """Connected nodes, open streams, and seqnos received and handed out."""
        self._in_use()
        return self._call(self._status_there())

    async def _status_there(self) -> ReadingStatus:
        return self._status()

    def _hear_out(self) -> None:
        """Waits until everything is delivered that the nodes have sent by now."""
        self._call(self._engine.discovery.hear_out())

    def high_seqnos(self) -> dict[int, int]:
        """The high seqno of each vbucket, asked of the nodes."""
        return self._call(self._engine.discovery.high_seqnos())


def _run(loop: asyncio.AbstractEventLoop, deliveries: queue.SimpleQueue[Delivery]) -> None:
    """Runs the engine's event loop. If the loop fails, the application gets an InternalError."""
    try:
        loop.run_forever()
    except BaseException as fault:
        error = InternalError(f"the consumer's event loop ended: {fault!r}")
        deliveries.put(Delivery(Failed(error)))
        raise


def _give_all_back(owed: list[tuple[AsyncConnection, int]]) -> None:
    for connection, size in owed:
        connection.give_back(size)
