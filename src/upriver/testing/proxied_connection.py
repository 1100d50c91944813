"""One connection through the chaos proxy: forwards bytes both ways and applies the faults.

    running ──both sides ended──> closed
       ├── a fault truncates one direction ──> its receiver gets the bytes before ──> closed
       └── reset by a side, by a fault or on command ──> both reset

Everything here runs in the proxy's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from dataclasses import dataclass
from typing import Any, Final

from .network_faults import Ending, FaultInjector, Faults

#: Bytes that are read at once, and so the most that one direction holds besides its buffers.
CHUNK: Final = 64 * 1024
#: SO_LINGER with no time: closing the socket resets its connection.
_RESET: Final = struct.pack("ii", 1, 0)

_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(slots=True)
class ChaosCounts:
    """Connections, faults and bytes of a proxy so far."""

    connections: int = 0
    #: Connections for which no server could be reached.
    unreachable: int = 0
    cuts: int = 0
    truncations: int = 0
    corruptions: int = 0
    delays: int = 0
    bytes_to_client: int = 0
    bytes_to_server: int = 0


class Gate:
    """The state of one direction that all connections of a proxy share."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        #: Bytes until the connection that carries them is ended; None for no such limit.
        self.allowed: int | None = None
        #: The opcode of the packet after which its connection is ended.
        self.behind: int | None = None
        #: Cleared during a stall.
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.passed = 0

    def allow(self, chunk: bytes) -> tuple[bytes, bool]:
        """The part of a chunk that may pass, and whether its connection ends after it."""
        if self.allowed is None:
            return chunk, False
        if len(chunk) < self.allowed:
            self.allowed -= len(chunk)
            return chunk, False
        chunk, self.allowed = chunk[: self.allowed], None
        return chunk, True


class ProxiedConnection:
    """A client's connection and the matching connection to the server."""

    def __init__(
        self, client: _Streams, to_client: Gate, to_server: Gate, counts: ChaosCounts, seed: str
    ) -> None:
        self._client = client
        self._to_client = to_client
        self._to_server = to_server
        self._counts = counts
        self._seed = seed

    async def run(self, target: tuple[str, int] | None) -> None:
        """Forwards until the connection ends; cancelling it resets both sides."""
        sides = [self._client]
        try:
            server = await self._reach(target)
            if server is None:
                self._counts.unreachable += 1
                return
            sides.append(server)
            if await self._relay(server):
                await _close(self._client[1], server[1])
                sides.clear()
        finally:
            await _reset(*(writer for _, writer in sides))

    async def _reach(self, target: tuple[str, int] | None) -> _Streams | None:
        if target is None:
            return None
        try:
            return await asyncio.open_connection(*target, limit=CHUNK)
        except OSError:
            return None

    async def _relay(self, server: _Streams) -> bool:
        """Forwards bytes until both sides have ended; false if both must be reset."""
        client = self._client
        down = asyncio.create_task(self._pass(server[0], client[1], self._to_client, "down"))
        up = asyncio.create_task(self._pass(client[0], server[1], self._to_server, "up"))
        both = {down, up}
        try:
            waiting = both
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                endings = {task: task.result() for task in done}
                if Ending.CUT in endings.values():
                    return False
                if Ending.TRUNCATED in endings.values():
                    await cancelled(*waiting)
                    near, far = (client, server) if endings.get(down) else (server, client)
                    await _reset(far[1])
                    await _drain(near)
                    return False
            return True
        finally:
            await cancelled(*both)

    async def _pass(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, gate: Gate, name: str
    ) -> Ending | None:
        """Forwards one direction until its end; returns how a fault ended it, if one did."""
        injector = FaultInjector(f"{self._seed} {name}")
        try:
            while chunk := await source.read(CHUNK):
                if injector.faults is not gate.faults:
                    injector.configure(gate.faults)
                await gate.flowing.wait()
                chunk, last = gate.allow(chunk)
                faulted = injector.apply(chunk, gate.behind)
                if faulted.met:
                    gate.behind = None
                self._counts.corruptions += faulted.corruptions
                await self._deliver(faulted.data, sink, gate, injector)
                if faulted.ending is Ending.CUT:
                    self._counts.cuts += 1
                    return Ending.CUT
                if last or faulted.ending is Ending.TRUNCATED:
                    self._counts.truncations += 1
                    sink.write_eof()
                    return Ending.TRUNCATED
            sink.write_eof()
        except OSError:  # a side has reset its connection
            return Ending.CUT
        return None

    async def _deliver(
        self, data: bytes, sink: asyncio.StreamWriter, gate: Gate, injector: FaultInjector
    ) -> None:
        pause = injector.pause()
        if pause:
            self._counts.delays += 1
            await asyncio.sleep(pause)
        for piece in injector.fragments(data):
            await gate.flowing.wait()
            sink.write(piece)
            gate.passed += len(piece)
            await sink.drain()
            await asyncio.sleep(0)  # lets other connections run between the pieces


async def cancelled(*tasks: asyncio.Task[Any]) -> None:
    """Cancels tasks and waits for their end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _drain(side: _Streams) -> None:
    """Waits until a side closes after the end of its stream: a reset could overtake the data."""
    with contextlib.suppress(OSError):
        while await side[0].read(CHUNK):
            pass


async def _reset(*writers: asyncio.StreamWriter) -> None:
    for writer in writers:
        transport_socket: socket.socket = writer.get_extra_info("socket")
        with contextlib.suppress(OSError):  # it is closed already
            transport_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        writer.transport.abort()
    for writer in writers:
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _close(*writers: asyncio.StreamWriter) -> None:
    for writer in writers:
        writer.close()
    for writer in writers:
        with contextlib.suppress(OSError):
            await writer.wait_closed()
