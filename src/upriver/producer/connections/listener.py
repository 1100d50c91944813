"""Listening sockets: accepts a few connections at a time, up to a limit, and logs briefly.

asyncio's own server logs a stack trace for every connection that it cannot accept, and it does not
count connections before their TLS handshake has ended: clients that connect and then stay silent
would use up all file descriptors. Here a connection counts from the moment it is accepted.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from asyncio import sslproto
from collections.abc import Callable
from functools import partial
from typing import Final

from .strangers import Strangers

logger = logging.getLogger("upriver.producer")

#: Length of the operating system's queue of connections that wait to be accepted.
_QUEUE: Final = 1024
#: Connections that are accepted before the loop serves its other sockets.
_AT_ONCE: Final = 16
#: TLS handshakes under way at once. A client needs milliseconds for one, so above this number the
#: oldest is aborted: clients that connect and stay silent cannot block others. The number is larger
#: than `_AT_ONCE`, so that the oldest handshake has had time to start.
_MAX_HANDSHAKES: Final = 256
#: Bytes that asyncio allocates for what it reads from a TLS connection, idle ones too: 256 KiB
#: each by default, which is more than a gigabyte for 5,000 connections.
_TLS_BUFFER: Final = 64 * 1024
#: Seconds until the next attempt after accept() failed for lack of descriptors or memory.
_RETRY_SECONDS: Final = 1.0
#: Seconds between two log lines about refused connections.
_REFUSED_SECONDS: Final = 1.0
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Listener:
    """Listens on one address and makes a protocol for each connection that it accepts."""

    def __init__(
        self,
        factory: Callable[[], asyncio.Protocol],
        *,
        tls: ssl.SSLContext | None,
        handshake_seconds: float,
        established: Callable[[], int],
        limit: int,
        strangers: Strangers | None = None,
        name: str = "",
        released: Callable[[], None] = lambda: None,
    ) -> None:
        """``established`` counts the connections that ``factory`` made and that are still open.

        While these and the ones in a handshake reach ``limit``, a further connection takes the
        place of the oldest of ``strangers``, or is closed at once if there is none. The caller adds
        its connections to them, and the listener its handshakes. ``name`` identifies the
        listener in the log. ``released`` is called when a handshake ended without a connection, and
        its memory is free.
        """
        self._factory = factory
        self._tls = tls
        if tls is not None:
            _limit_tls_buffers()
        self._handshake_seconds = handshake_seconds
        self._established = established
        self._limit = limit
        self._strangers = Strangers() if strangers is None else strangers
        self._name = f"{name}: " if name else ""
        self._released = released
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        #: TLS handshakes under way, oldest first, with their sockets.
        self._greetings: dict[asyncio.Task[bool], socket.socket] = {}
        #: Accepted sockets whose task has not run yet: nothing else would close them.
        self._unstarted: set[socket.socket] = set()
        #: How often accept() failed for lack of descriptors or memory.
        self.exhausted = 0
        #: Connections refused, and dropped for others, since the last log line about them, and when
        #: that was written.
        self._refused, self._dropped, self._logged = 0, 0, float("-inf")

    async def start(self, host: str, port: int) -> int:
        """Starts to listen; returns the port."""
        found = await self._loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                self._sockets.append(_listening(family, (address[0], port, *address[2:])))
                port = self._sockets[0].getsockname()[1]  # 0: any free one, the same for all
        except BaseException:
            await self.close()
            raise
        for listening in self._sockets:
            self._loop.add_reader(listening, self._accept, listening)
        return port

    async def close(self) -> None:
        """Stops listening and ends all handshakes."""
        for listening in self._sockets:
            self._loop.remove_reader(listening)
            listening.close()
        self._sockets.clear()
        for connection in self._unstarted:
            connection.close()
        self._unstarted.clear()
        ended = list(self._greetings)
        for greeting in ended:
            greeting.cancel()
        await asyncio.gather(*ended, return_exceptions=True)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, peer = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as problem:
                if problem.errno in _EXHAUSTED:
                    self._pause(listening, problem)
                    return
                continue  # the peer has closed the connection before it was accepted
            # without TLS a connection is established at once, and would be counted twice
            in_handshake = len(self._greetings) if self._tls else 0
            if self._established() + in_handshake >= self._limit and not self.makes_room(peer):
                connection.close()
                continue
            if self._tls and len(self._greetings) >= _MAX_HANDSHAKES:
                self._drop(next(iter(self._greetings)))
            connection.setblocking(False)
            self._unstarted.add(connection)
            greeting = self._loop.create_task(self._greet(connection))
            self._greetings[greeting] = connection
            if self._tls:
                self._strangers.add(greeting, partial(self._drop, greeting))
            greeting.add_done_callback(self._greeted)

    def _greeted(self, greeting: asyncio.Task[bool]) -> None:
        self._greetings.pop(greeting, None)
        self._strangers.discard(greeting)
        if greeting.cancelled() or not greeting.result():
            self._released()

    def _drop(self, greeting: asyncio.Task[bool]) -> bool:
        """Ends a handshake, whose place is free at once."""
        self._strangers.discard(greeting)
        connection = self._greetings.pop(greeting)
        if connection in self._unstarted:
            self._unstarted.discard(connection)
            connection.close()
        greeting.cancel()
        return True

    def makes_room(self, peer: object) -> bool:
        """Drops a stranger for a connection above the limit; false if there is none.

        Logs it, at most one line a second.
        """
        made = self._strangers.drop_oldest()
        self._dropped += made
        self._refused += not made
        now = self._loop.time()
        if now - self._logged >= _REFUSED_SECONDS:
            logger.warning(
                "%sthere are %d connections, which is the limit: %d refused, and %d dropped for "
                "others before they had said who they are; the last one came from %s",
                *(self._name, self._limit, self._refused, self._dropped, peer),
            )
            self._refused, self._dropped, self._logged = 0, 0, now
        return made

    def _pause(self, listening: socket.socket, problem: OSError) -> None:
        """Stops accepting for a moment: the socket stays readable, so the loop would spin."""
        self.exhausted += 1
        logger.error("%sa connection cannot be accepted: %s", self._name, problem.strerror)
        self._loop.remove_reader(listening)
        self._loop.call_later(_RETRY_SECONDS, self._resume, listening)

    def _resume(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            self._loop.add_reader(listening, self._accept, listening)

    async def _greet(self, connection: socket.socket) -> bool:
        """Runs the TLS handshake, if any. Returns whether a connection was established."""
        self._unstarted.discard(connection)
        try:
            await self._loop.connect_accepted_socket(
                self._factory,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=self._handshake_seconds if self._tls else None,
            )
        except OSError:  # the peer disconnected, or does not speak TLS
            connection.close()
        except Exception:
            connection.close()
            logger.exception("a connection could not be set up")
        else:
            return True
        return False


def _limit_tls_buffers() -> None:
    """Makes asyncio allocate less for each TLS connection. Only this attribute can set it."""
    size = getattr(sslproto.SSLProtocol, "max_size", 0)
    if size > _TLS_BUFFER:
        sslproto.SSLProtocol.max_size = _TLS_BUFFER


def _listening(family: int, address: tuple[object, ...]) -> socket.socket:
    # asyncio turns off the delay of small packets only for sockets that name their protocol
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(address)
        listening.listen(_QUEUE)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening
