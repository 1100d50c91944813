"""`AsyncConsumer`: the asyncio client, with the interface of `Consumer`, on the caller's loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Self

import pyarrow as pa

from ..session.consumer_events import Event, Rows
from .changes import Change
from .streaming.consumer_base import LEASE_TICK, ConsumerBase, Needs, NextEvent, ReadingStatus
from .streaming.inbox import Closed, Delivery


class AsyncConsumer(ConsumerBase):
    """Reads the changes of a bucket.

        async with AsyncConsumer("couchbase://127.0.0.1/default", end="now") as consumer:
            async for change in consumer:
                print(change.key, change.value)

    Options and methods are those of `Consumer`; ``on_rollback`` is called on the event loop, and
    ``on_revoked`` of a group may be a coroutine function. An event loop that is blocked for half a
    lease stops the member's heartbeats.
    """

    _block = "an async with"

    def _prepare(self) -> None:
        self._deliveries: asyncio.Queue[Delivery] = asyncio.Queue()
        self._saving = asyncio.Lock()

    # ---- lifecycle -----------------------------------------------------------------------

    async def start(self) -> Self:
        """Connects to the bucket and starts streaming; async with calls it automatically."""
        self._start_once()
        try:
            await self._begin(self._deliveries.put_nowait)
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        """Closes all connections and ends a loop that waits in another task.

        Does not save a checkpoint.
        """
        self._closed = True
        await self._end_engine()
        self._deliveries.put_nowait(Delivery(Closed()))

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    # ---- reading -------------------------------------------------------------------------

    async def __aiter__(self) -> AsyncIterator[Change]:
        """Yields changes one by one, until the requested end.

        If a loop is left early, the next loop continues with the next change.
        """
        inbox = self._inbox
        for change in inbox.changes():
            yield change
        while (event := await self._wait_for(self._next_event(whole=False))) is not None:
            if isinstance(event, Rows):
                for change in inbox.changes():
                    yield change

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """Yields changes as Arrow batches with the schema `upriver.consumer.SCHEMA`."""
        while (event := await self.poll()) is not None:
            if isinstance(event, Rows):
                yield event.batch

    async def events(self) -> AsyncIterator[Event]:
        """Yields all events: rows, rollbacks, opened and ended streams, collection changes."""
        while (event := await self.poll()) is not None:
            yield event

    async def poll(self, timeout: float | None = None) -> Event | None:
        """Returns the next event; None at the requested end, or after ``timeout`` seconds."""
        try:
            async with asyncio.timeout(timeout):
                return await self._wait_for(self._next_event(whole=True))
        except TimeoutError:
            return None

    async def _wait_for(self, event: NextEvent) -> Event | None:
        """Does what ``event`` needs, and returns its result."""
        with closing(event):
            delivery: Delivery | None = None
            while True:
                try:
                    need = event.send(delivery)
                except StopIteration as done:
                    found: Event | None = done.value
                    return found
                delivery = None
                if need is Needs.DELIVERY:
                    for connection, size in self._inbox.owed():
                        connection.give_back(size)
                    delivery = await self._deliveries.get()
                elif need is Needs.PAUSE:
                    await asyncio.sleep(LEASE_TICK)
                elif self._on_revoked is not None:
                    called = self._on_revoked(need)
                    if inspect.isawaitable(called):
                        await called

    async def close_stream(self, vbucket: int) -> None:
        """Closes the stream of one vbucket, whose changes are not handed out any more.

        Reading goes on with the other vbuckets, and ends when the streams of all are closed or at
        their end. `events` yields a `StreamFinished` with the reason ``CLOSED``. The position of
        the vbucket stays after its last change that was handed out, so another consumer can go on
        from there. The server is told by Close Stream; drafts 002 and 000 lack it, and there the
        next message of the stream is refused, at which the server ends it.
        """
        await self._close_stream(vbucket)

    # ---- position and status -------------------------------------------------------------

    async def save(self) -> None:
        """Saves the application's position to the checkpoint store.

        The store is called in another thread, so that a slow disk does not block the event loop.
        """
        async with self._saving:  # so that an older position never overwrites a newer one
            await asyncio.to_thread(self._save, self.position())

    def status(self) -> ReadingStatus:
        """Connected nodes, open streams, and seqnos received and handed out."""
        return self._status()

    async def high_seqnos(self) -> dict[int, int]:
        """The high seqno of each vbucket, asked of the nodes."""
        return await self._engine.discovery.high_seqnos()
