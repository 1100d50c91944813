"""A network that breaks on command: a proxy between clients and one server.

It runs in a thread of its own and is told what to do from any other. What has been done when a
call returns is done. It keeps little: who does not read stops the one who writes.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from ..errors import ConfigError
from .misfortune import Faults
from .relay import CHUNK, ChaosCounts, Gate, Relay, cancelled

__all__ = ["ChaosProxy", "Direction"]

_T = TypeVar("_T")


class Direction:
    """One of the two ways through a proxy, with its own faults."""

    def __init__(self, proxy: ChaosProxy, gate: Gate) -> None:
        self._proxy = proxy
        self._gate = gate

    @property
    def faults(self) -> Faults:
        """What goes wrong by chance; others can be set at any time, for all connections."""
        return self._gate.faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._gate.faults = faults

    def cut_after(self, size: int) -> None:
        """Lets so many more bytes through, then ends the connection that has the last of them.

        That happens once. All of these bytes arrive.
        """
        if size < 1:
            raise ConfigError(f"a connection is cut after at least 1 byte, not {size}")
        self._gate.allowed = size

    def cut_behind(self, opcode: int) -> None:
        """Lets everything through up to the next packet with this opcode, and that too.

        Then its connection ends, once. 0x56 is DCP's snapshot marker, 0x57 a mutation.
        """
        if not 0 <= opcode <= 0xFF:
            raise ConfigError(f"an opcode is one byte, not {opcode}")
        self._gate.behind = opcode

    def stall(self) -> None:
        """Lets nothing through, while connections stay."""
        self._proxy.run(self._stall())

    def resume(self) -> None:
        """Ends a stall; nothing was lost."""
        self._proxy.run(self._resume())

    async def _stall(self) -> None:
        self._gate.flowing.clear()

    async def _resume(self) -> None:
        self._gate.flowing.set()


class ChaosProxy:
    """A TCP proxy on a free port of 127.0.0.1, with faults on demand.

        with ChaosProxy(seed=7) as proxy:
            with TemporaryProducer(advertise=(proxy.host, proxy.port)) as producer:
                proxy.target = (producer.host, producer.port)
                reader = connect(producer.source)
                proxy.to_client.faults = Faults(cut_every=50_000)
                proxy.cut()

    ``faults`` are for both directions; `to_client` and `to_server` have their own, to change.
    Connections are numbered, and each draws its faults from the seed and its number.
    """

    host: Final = "127.0.0.1"

    def __init__(
        self,
        target: tuple[str, int] | None = None,
        *,
        seed: int = 0,
        faults: Faults | None = None,
    ) -> None:
        #: Where connections lead to from now on; without one they are reset.
        self.target = target
        self._down = Gate(faults or Faults())
        self._up = Gate(faults or Faults())
        self.to_client = Direction(self, self._down)
        self.to_server = Direction(self, self._up)
        self._seed = seed
        self._counts = ChaosCounts()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="upriver chaos proxy")
        #: In the order of their beginnings.
        self._relays: dict[asyncio.Task[None], None] = {}
        self._listener: asyncio.Server | None = None
        #: Keeps the port while nobody listens on it.
        self._place = socket.socket()

    # ---- life ----------------------------------------------------------------------------

    def start(self) -> Self:
        self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._place.bind((self.host, 0))
        self._thread.start()
        self.accept()
        return self

    def stop(self) -> None:
        if self._thread.is_alive():
            self.run(self._finish())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()
        self._place.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Runs something in the proxy's thread, and returns when it is done."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    # ---- where and what ------------------------------------------------------------------

    @property
    def port(self) -> int:
        port: int = self._place.getsockname()[1]
        return port

    @property
    def counts(self) -> ChaosCounts:
        """What was done so far."""
        return self.run(self._copy_counts())

    @property
    def connections(self) -> int:
        """How many there are now."""
        return len(self._relays)

    async def _copy_counts(self) -> ChaosCounts:
        return replace(
            self._counts, bytes_to_client=self._down.passed, bytes_to_server=self._up.passed
        )

    # ---- faults --------------------------------------------------------------------------

    def cut(self, newest: int | None = None) -> int:
        """Resets all connections, or so many of the newest; returns how many."""
        return self.run(self._cut(newest))

    def cut_after(self, size: int) -> None:
        """`Direction.cut_after` for what clients are sent."""
        self.to_client.cut_after(size)

    def stall(self) -> None:
        """Lets nothing through in either direction, while connections stay."""
        self.to_client.stall()
        self.to_server.stall()

    def resume(self) -> None:
        """Ends a stall; nothing was lost."""
        self.to_client.resume()
        self.to_server.resume()

    def refuse(self) -> None:
        """Refuses new connections, as a port on which nobody listens; older ones stay."""
        self.run(self._refuse())

    def accept(self) -> None:
        """Takes new connections again, on the same port."""
        self.run(self._accept())

    async def _cut(self, newest: int | None) -> int:
        tasks = list(self._relays)
        victims = tasks if newest is None else tasks[len(tasks) - min(newest, len(tasks)) :]
        await cancelled(*victims)
        self._counts.cuts += len(victims)
        return len(victims)

    async def _refuse(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _accept(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(
                self._connected, self.host, self.port, limit=CHUNK, reuse_port=True
            )

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._counts.connections += 1
        seed = f"{self._seed} {self._counts.connections}"
        relay = Relay((reader, writer), self._down, self._up, self._counts, seed)
        task = self._loop.create_task(relay.run(self.target))
        self._relays[task] = None
        task.add_done_callback(lambda done: self._ended(done, writer))

    def _ended(self, relay: asyncio.Task[None], writer: asyncio.StreamWriter) -> None:
        del self._relays[relay]
        writer.transport.abort()  # for one that was cancelled before it began

    async def _finish(self) -> None:
        await self._refuse()
        own = asyncio.current_task()
        # all of them: a connection that was just accepted is not among the relays yet
        await cancelled(*(task for task in asyncio.all_tasks() if task is not own))
