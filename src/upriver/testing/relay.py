"""One connection through a proxy: bytes both ways, and what happens to them.

    running ──both sides ended──> closed
       ├── a fault ends one direction within it ──> that side still gets what came before ──> closed
       └── reset by a side, by a fault or on command ──> both reset

Everything here is for the proxy's own thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from dataclasses import dataclass
from typing import Any, Final

from .misfortune import Ending, Faults, Misfortune

__all__ = ["CHUNK", "ChaosCounts", "Gate", "Relay", "cancelled"]

#: Bytes that are read at once, and so the most that one direction keeps beside its buffers.
CHUNK: Final = 64 * 1024
#: Linger for no time: closing a socket resets its connection.
_RESET: Final = struct.pack("ii", 1, 0)

_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(slots=True)
class ChaosCounts:
    """What a proxy has done so far."""

    connections: int = 0
    #: Of these, that found no server.
    unreachable: int = 0
    cuts: int = 0
    truncations: int = 0
    corruptions: int = 0
    delays: int = 0
    bytes_to_client: int = 0
    bytes_to_server: int = 0


class Gate:
    """What all connections of a proxy meet in one direction."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        #: Bytes until the next one ends; None if that was not asked for.
        self.allowed: int | None = None
        #: The opcode of the packet behind which the next connection ends.
        self.behind: int | None = None
        #: Set while it is no stall.
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.passed = 0

    def allow(self, chunk: bytes) -> tuple[bytes, bool]:
        """What of a chunk may pass, and whether its connection ends behind that."""
        if self.allowed is None:
            return chunk, False
        if len(chunk) < self.allowed:
            self.allowed -= len(chunk)
            return chunk, False
        chunk, self.allowed = chunk[: self.allowed], None
        return chunk, True


class Relay:
    """A client's connection and the one to the server that belongs to it."""

    def __init__(
        self, client: _Streams, to_client: Gate, to_server: Gate, counts: ChaosCounts, seed: str
    ) -> None:
        self._client = client
        self._to_client = to_client
        self._to_server = to_server
        self._counts = counts
        self._seed = seed

    async def run(self, target: tuple[str, int] | None) -> None:
        """Relays until it is over; cancelling it resets both sides."""
        sides = [self._client]
        try:
            server = await self._reach(target)
            if server is None:
                self._counts.unreachable += 1
                return
            sides.append(server)
            if await self._relay(server):
                sides.clear()
                await _close(self._client[1])
                await _close(server[1])
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
        """Passes bytes on until both sides have ended; false if both shall be reset."""
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
                    await _let_go(near)
                    return False
            return True
        finally:
            await cancelled(*both)

    async def _pass(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, gate: Gate, name: str
    ) -> Ending | None:
        """Passes bytes on in one direction until they end, and says if they ended too early."""
        misfortune = Misfortune(f"{self._seed} {name}")
        try:
            while chunk := await source.read(CHUNK):
                if misfortune.faults is not gate.faults:
                    misfortune.expect(gate.faults)
                await gate.flowing.wait()
                chunk, last = gate.allow(chunk)
                struck = misfortune.strike(chunk, gate.behind)
                if struck.met:
                    gate.behind = None
                self._counts.corruptions += struck.corruptions
                await self._deliver(struck.data, sink, gate, misfortune)
                if struck.ending is Ending.CUT:
                    self._counts.cuts += 1
                    return Ending.CUT
                if last or struck.ending is Ending.TRUNCATED:
                    self._counts.truncations += 1
                    sink.write_eof()
                    return Ending.TRUNCATED
            sink.write_eof()
        except OSError:  # a side has reset its connection
            return Ending.CUT
        return None

    async def _deliver(
        self, data: bytes, sink: asyncio.StreamWriter, gate: Gate, misfortune: Misfortune
    ) -> None:
        pause = misfortune.pause()
        if pause:
            self._counts.delays += 1
            await asyncio.sleep(pause)
        for piece in misfortune.fragments(data):
            await gate.flowing.wait()
            sink.write(piece)
            gate.passed += len(piece)
            await sink.drain()
            await asyncio.sleep(0)  # others have their turn between the pieces


async def cancelled(*tasks: asyncio.Task[Any]) -> None:
    """Ends tasks, and returns when they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _let_go(side: _Streams) -> None:
    """Waits for a side that was told of the end, because a reset could overtake that."""
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


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
