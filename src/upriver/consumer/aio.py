"""The asyncio client: the same reading as the blocking one, on the caller's own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

import pyarrow as pa

from ..session.events import Event, Rows
from .changes import Change
from .delivery import Closed, Delivery, Finished
from .reading import Reading
from .status import ReadingStatus, status_of

__all__ = ["AsyncConsumer"]


class AsyncConsumer(Reading):
    """Reads the changes of a bucket.

        async with AsyncConsumer("couchbase://127.0.0.1/default", end="now") as consumer:
            async for change in consumer:
                print(change.key, change.value)

    Everything is as in `Consumer`; ``on_rollback`` is called on the event loop.
    """

    _block = "an async with"

    def _prepare(self) -> None:
        self._inbox: asyncio.Queue[Delivery] = asyncio.Queue()

    # ---- life ----------------------------------------------------------------------------

    async def start(self) -> Self:
        """Finds the bucket and begins to read; an async with block does it by itself."""
        await self._begin(self._inbox.put_nowait)
        return self

    async def close(self) -> None:
        """Hangs up, and ends a loop that waits in another task; saves nothing."""
        self._closed = True
        if self._running is not None:
            await self._engine.stop()
        self._inbox.put_nowait(Delivery(Closed()))

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # ---- reading -------------------------------------------------------------------------

    async def __aiter__(self) -> AsyncIterator[Change]:
        """Changes one by one, until the end that was asked for.

        A loop that was left goes on where it was.
        """
        desk = self._desk
        for change in desk.changes():
            yield change
        while (event := await self._next(whole=False)) is not None:
            if isinstance(event, Rows):
                for change in desk.changes():
                    yield change

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """Changes by the thousand, as columns (`upriver.wire.columns.SCHEMA`)."""
        async for event in self.events():
            if isinstance(event, Rows):
                yield event.batch

    async def events(self) -> AsyncIterator[Event]:
        """Everything that happens: rows, rollbacks, streams that open and end, collections."""
        while (event := await self.next_event()) is not None:
            yield event

    async def next_event(self) -> Event | None:
        """The next event; None at the end of the reading."""
        rest = None if self._closed else self._desk.rest()
        return rest or await self._next(whole=True)

    async def _next(self, *, whole: bool) -> Event | None:
        desk = self._desk
        while not (self._finished or self._closed):
            desk.check()
            desk.done()
            for connection, size in desk.owed():
                connection.give_back(size)
            event = desk.take(await self._inbox.get(), whole=whole)
            if isinstance(event, Finished):
                self._finished = True
            elif event is not None and not isinstance(event, Closed):
                return event
        return None

    # ---- where it is ---------------------------------------------------------------------

    def status(self) -> ReadingStatus:
        """What is connected, what flows, and how far the reading is."""
        return status_of(self._engine, self._desk)

    async def high_seqnos(self) -> dict[int, int]:
        """The newest seqno that the nodes have of each vbucket."""
        return await self._engine.high_seqnos()
