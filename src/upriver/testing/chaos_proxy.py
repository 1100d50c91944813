"""A TCP proxy between clients and one server that injects network faults on command.

It runs in its own thread; its methods may be called from any other and return when they have taken
effect. It buffers little: a side that does not read holds up the side that writes.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, Final, Self, TypeVar
from weakref import WeakMethod

from .._unclosed import warn_unclosed
from ..errors import ConfigError
from .network_faults import Faults
from .proxied_connection import CHUNK, ChaosCounts, Gate, ProxiedConnection, cancelled

_T = TypeVar("_T")


class Direction:
    """One direction through a proxy, with its own faults."""

    def __init__(self, proxy: ChaosProxy, gate: Gate) -> None:
        self._proxy = proxy
        self._gate = gate

    @property
    def faults(self) -> Faults:
        """The random faults of this direction; may be replaced at any time, for all connections."""
        return self._gate.faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._gate.faults = faults

    def cut_after(self, size: int) -> None:
        """Forwards ``size`` more bytes, then ends the connection that carried the last of them.

        Happens once. All of these bytes arrive.
        """
        if size < 1:
            raise ConfigError(f"cut_after: size is {size}; it must be 1 byte or more")
        self._gate.allowed = size

    def cut_behind(self, opcode: int) -> None:
        """Forwards everything up to and including the next packet with this opcode.

        Then ends its connection, once. 0x56 is DCP's snapshot marker, 0x57 a mutation.
        """
        if not 0 <= opcode <= 0xFF:
            raise ConfigError(f"cut_behind: opcode is {opcode}; it must be 0 to 255")
        self._gate.behind = opcode

    def stall(self) -> None:
        """Stops forwarding; connections stay open."""
        self._proxy.run(self._stall())

    def resume(self) -> None:
        """Ends a stall; no bytes were lost."""
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
    Connections are numbered; the faults of each follow from the seed and its number.
    """

    host: Final = "127.0.0.1"

    def __init__(
        self,
        target: tuple[str, int] | None = None,
        *,
        seed: int = 0,
        faults: Faults | None = None,
    ) -> None:
        #: The server that new connections are forwarded to; without one they are reset.
        self.target = target
        self._down = Gate(faults or Faults())
        self._up = Gate(faults or Faults())
        self.to_client = Direction(self, self._down)
        self.to_server = Direction(self, self._up)
        self._seed = seed
        self._counts = ChaosCounts()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="upriver chaos proxy")
        #: Oldest first.
        self._relays: dict[asyncio.Task[None], None] = {}
        self._listener: asyncio.Server | None = None
        #: Reserves the port while the proxy does not listen on it.
        self._place = socket.socket()

    # ---- start and stop ------------------------------------------------------------------

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

    def __del__(self) -> None:
        if self._thread.is_alive():
            where = f"{self.host}:{self.port}"
            warn_unclosed(self, where, "use it in a with block, or call stop()")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Runs a coroutine in the proxy's thread and returns its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    # ---- address and counts --------------------------------------------------------------

    @property
    def port(self) -> int:
        port: int = self._place.getsockname()[1]
        return port

    @property
    def counts(self) -> ChaosCounts:
        """Connections, faults and bytes so far."""
        return self.run(self._copy_counts())

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._relays)

    async def _copy_counts(self) -> ChaosCounts:
        return replace(
            self._counts, bytes_to_client=self._down.passed, bytes_to_server=self._up.passed
        )

    # ---- faults --------------------------------------------------------------------------

    def cut(self, newest: int | None = None) -> int:
        """Resets all connections, or the ``newest`` n of them; returns how many."""
        return self.run(self._cut(newest))

    def cut_after(self, size: int) -> None:
        """`Direction.cut_after` for the bytes to clients."""
        self.to_client.cut_after(size)

    def stall(self) -> None:
        """Stops forwarding in both directions; connections stay open."""
        self.to_client.stall()
        self.to_server.stall()

    def resume(self) -> None:
        """Ends a stall; no bytes were lost."""
        self.to_client.resume()
        self.to_server.resume()

    def refuse(self) -> None:
        """Refuses new connections, like a port without a listener; existing ones stay."""
        self.run(self._refuse())

    def accept(self) -> None:
        """Accepts new connections again, on the same port."""
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
            # The thread must not keep a proxy alive that its user has dropped.
            connected = WeakMethod(self._connected)

            def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                if accept := connected():
                    accept(reader, writer)
                else:
                    writer.transport.abort()

            self._listener = await asyncio.start_server(
                accepted, self.host, self.port, limit=CHUNK, reuse_port=True
            )

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._counts.connections += 1
        seed = f"{self._seed} {self._counts.connections}"
        relay = ProxiedConnection((reader, writer), self._down, self._up, self._counts, seed)
        task = self._loop.create_task(relay.run(self.target))
        self._relays[task] = None
        task.add_done_callback(lambda done: self._ended(done, writer))

    def _ended(self, relay: asyncio.Task[None], writer: asyncio.StreamWriter) -> None:
        del self._relays[relay]
        writer.transport.abort()  # if the task was cancelled before it started

    async def _finish(self) -> None:
        await self._refuse()
        # Until no task is left but this one: a connection that was just accepted is not among the
        # relays yet, and asyncio drops its socket if the task that accepts it is cancelled.
        while len(asyncio.all_tasks()) > 1:
            await cancelled(*self._relays)
            await asyncio.sleep(0)
