"""A simulated network: connections whose bytes arrive late, in pieces, or not at all.

Bytes of one direction of a connection arrive in order; everything else depends on the seed. A
partition holds bytes and new connections back until it ends. A half-open connection swallows what
is sent on it and says nothing, until a reset that comes much later.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from .scheduler import Process, Scheduler

#: Seconds until a connection whose bytes are swallowed is reset: nobody should wait for that.
_LATE_RESET: Final = 3600.0
#: The most bytes that arrive at once.
_PIECE: Final = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings:
    """What a network is like when nothing is broken."""

    #: Seconds that bytes are under way, at least and usually at most.
    least_delay: float = 0.0001
    delay: float = 0.002
    #: The part of pieces that are late, and by how much at most.
    late: float = 0.05
    late_by: float = 0.3
    #: The part of deliveries that are cut at any byte.
    torn: float = 0.2


class Network:
    """All connections of a world."""

    def __init__(
        self,
        scheduler: Scheduler,
        chance: random.Random,
        settings: NetworkSettings,
        trace: Callable[..., None],
    ) -> None:
        self.scheduler = scheduler
        self.chance = chance
        self.settings = settings
        self.trace = trace
        self.links: list[Link] = []
        self._listeners: dict[int, tuple[Process, Callable[[], asyncio.BaseProtocol]]] = {}
        #: Until when two processes, by name, cannot reach each other.
        self._partitions: dict[frozenset[str], float] = {}
        #: Until when a process receives only so many bytes a second.
        self._slow: dict[str, tuple[float, float]] = {}
        self._numbers = 0

    # ---- faults --------------------------------------------------------------------------

    def partition(self, one: str, other: str, seconds: float) -> None:
        """Two processes cannot reach each other for a while."""
        pair = frozenset((one, other))
        until = self.scheduler.now + seconds
        self._partitions[pair] = max(until, self._partitions.get(pair, 0.0))

    def slow_reader(self, name: str, seconds: float, rate: float) -> None:
        """A process receives only ``rate`` bytes a second for a while."""
        self._slow[name] = (self.scheduler.now + seconds, rate)

    def heal(self) -> None:
        """Ends every partition and every slowness. Half-open connections stay as they are."""
        self._partitions.clear()
        self._slow.clear()
        for link in self.links:
            for end in link.ends:
                end.pump(0.0)

    def held_until(self, one: str, other: str) -> float:
        """Until when bytes between two processes are held back; 0 if they are not."""
        until = self._partitions.get(frozenset((one, other)), 0.0)
        return until if until > self.scheduler.now else 0.0

    def rate_of(self, name: str) -> float | None:
        until, rate = self._slow.get(name, (0.0, 0.0))
        return rate if until > self.scheduler.now else None

    def delay(self) -> float:
        """How long the next bytes are under way."""
        settings, chance = self.settings, self.chance
        if chance.random() < settings.late:
            return chance.uniform(settings.delay, settings.late_by)
        return chance.uniform(settings.least_delay, settings.delay)

    # ---- connections ---------------------------------------------------------------------

    def listen(
        self, process: Process, port: int, factory: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        self._listeners[port] = (process, factory)

    async def connect(
        self, process: Process, factory: Callable[[], asyncio.BaseProtocol], port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Opens a connection to the process that listens on a port."""
        await asyncio.sleep(self.delay())
        while True:
            peer, accept = self._listeners.get(port, (None, None))
            if peer is None or accept is None or not peer.alive:
                raise ConnectionRefusedError(111, f"nothing listens on port {port}")
            until = self.held_until(process.name, peer.name)
            if not until:
                break
            await asyncio.sleep(until - self.scheduler.now + self.delay())
        self._numbers += 1
        link = Link(self, self._numbers, process, peer)
        self.links.append(link)
        self.trace("connect", link.name)
        theirs = peer.call(accept)
        link.ends[1].begin(theirs)
        protocol = factory()
        link.ends[0].begin(protocol)
        return link.ends[0], protocol

    def process_ended(self, process: Process) -> None:
        """Ends the connections of a process that was killed."""
        for port, (owner, _) in list(self._listeners.items()):
            if owner is process:
                del self._listeners[port]
        for link in list(self.links):
            if any(end.process is process for end in link.ends):
                link.reset("the peer's process ended")

    def forget(self, link: Link) -> None:
        if link in self.links:
            self.links.remove(link)

    def alive_links(self) -> list[Link]:
        return [link for link in self.links if not link.silent]


class Link:
    """One connection: its two ends, the connecting one first."""

    def __init__(self, network: Network, number: int, one: Process, other: Process) -> None:
        self.network = network
        self.name = f"{one.name}->{other.name}#{number}"
        self.silent = False
        self.ends = (_End(self, one, number), _End(self, other, number))
        self.ends[0].peer, self.ends[1].peer = self.ends[1], self.ends[0]

    def reset(self, why: str) -> None:
        """Both ends learn, after a while, that the connection is gone."""
        self.network.trace("reset", self.name, why)
        self.network.forget(self)
        for end in self.ends:
            end.lose_after(self.network.delay(), ConnectionResetError(104, why))

    def go_silent(self, late_reset: float = _LATE_RESET) -> None:
        """What is sent is swallowed; much later the connection is reset."""
        if not self.silent:
            self.silent = True
            self.network.trace("silent", self.name)
            for end in self.ends:
                end.swallow()
            self.network.scheduler.after(late_reset, lambda: self.reset("nobody answers"))


class _End(asyncio.Transport):
    """One end of a connection, with the pause and resume behaviour of a socket's transport."""

    peer: _End

    def __init__(self, link: Link, process: Process, number: int) -> None:
        super().__init__({"peername": ("127.0.0.1", 20_000 + number)})
        self.process = process
        self._link = link
        self._protocol: Any = None
        #: Bytes that were written and have not arrived.
        self._outgoing = bytearray()
        self._under_way = False
        self._clear_at = 0.0
        self._high, self._low = 64 * 1024, 16 * 1024
        self._writing_paused = False
        self._reading = True
        self._closing = False
        self._ended = False
        self._lost = False

    def begin(self, protocol: Any) -> None:
        self._protocol = protocol
        self.process.call(lambda: protocol.connection_made(self))

    # ---- what arrives --------------------------------------------------------------------

    def pump(self, delay: float | None = None) -> None:
        """Lets written bytes arrive at the peer, later."""
        network, peer = self._link.network, self.peer
        if self._under_way or self._lost or self._link.silent:
            return
        if not self._outgoing and not (self._closing and not self._ended):
            return
        self._under_way = True
        scheduler = network.scheduler
        when = scheduler.now + (network.delay() if delay is None else delay)
        held = network.held_until(self.process.name, peer.process.name)
        scheduler.at(max(when, self._clear_at, held), self._arrive)

    def _arrive(self) -> None:
        self._under_way = False
        network, peer = self._link.network, self.peer
        if self._lost or self._link.silent or peer._lost:
            return
        if network.held_until(self.process.name, peer.process.name):
            self.pump()
            return
        if not peer._reading:
            return  # `resume_reading` pumps again
        size = min(len(self._outgoing), _PIECE)
        if size > 1 and network.chance.random() < network.settings.torn:
            size = network.chance.randint(1, size)
        rate = network.rate_of(peer.process.name)
        if rate is not None and size:
            size = min(size, max(1, int(rate / 20)))
            self._clear_at = network.scheduler.now + size / rate
        if size:
            data = bytes(self._outgoing[:size])
            del self._outgoing[:size]
            network.trace("bytes", self._link.name, self.process.name, size)
            peer.process.loop.call_soon(peer._receive, data)
            if self._writing_paused and len(self._outgoing) <= self._low and self.process.alive:
                self._writing_paused = False
                self.process.loop.call_soon(self._resume_writing)
        elif self._closing and not self._ended:
            self._ended = True
            peer.process.loop.call_soon(peer._end_of_file)
            self.lose_after(0.0, None)
            return
        self.pump()

    def _resume_writing(self) -> None:
        if not self._lost:
            self._protocol.resume_writing()

    def _receive(self, data: bytes) -> None:
        if self._lost or self._closing:
            return
        protocol = self._protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            while data and not self._lost:
                space = memoryview(protocol.get_buffer(len(data)))
                size = min(len(space), len(data))
                space[:size] = data[:size]
                protocol.buffer_updated(size)
                data = data[size:]
        else:
            protocol.data_received(data)

    def _end_of_file(self) -> None:
        if not self._lost and not self._closing and not self._protocol.eof_received():
            self.close()

    def swallow(self) -> None:
        self._outgoing.clear()

    def lose_after(self, seconds: float, error: Exception | None) -> None:
        self._link.network.scheduler.after(
            seconds, lambda: self.process.loop.call_soon(self._lose, error)
        )

    def _lose(self, error: Exception | None) -> None:
        self._closing = True
        if not self._lost:
            self._lost = True
            self._outgoing.clear()
            self._link.network.forget(self._link)
            self._protocol.connection_lost(error)

    # ---- asyncio.Transport ---------------------------------------------------------------

    def write(self, data: Any) -> None:
        if self._lost or self._closing or not self.process.alive:
            return
        if self._link.silent:
            return
        self._outgoing += data
        if len(self._outgoing) > self._high and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()
        self.pump()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return len(self._outgoing)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def is_reading(self) -> bool:
        return self._reading

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self.peer.pump()

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            if self._link.silent:
                self.lose_after(0.0, None)
            self.pump()

    def abort(self) -> None:
        self._outgoing.clear()
        if not self._closing or not self._lost:
            self._closing = True
            self.lose_after(0.0, None)
            if self.process.alive and not self._link.silent and not self._ended:
                self._ended = True
                self.peer.lose_after(
                    self._link.network.delay(), ConnectionResetError(104, "reset by the peer")
                )

    def can_write_eof(self) -> bool:
        return False
