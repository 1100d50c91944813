"""The deadlines of a connection: authentication, farewell, keepalive and takeover, on one timer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from ...wire import messages as m

if TYPE_CHECKING:
    from ..server import Server
    from .connection import Connection

#: Seconds between two checks of a producer's keepalive, and of a takeover under way.
_REPLICA_SECONDS: Final = 1.0
_TAKEOVER_SECONDS: Final = 0.05
#: The shortest delay of a timer, so that one that fires slightly too early does not spin.
_LEAST_SECONDS: Final = 0.001
#: Seconds that a peer gets to read the remaining data before its connection is aborted. A peer that
#: reads nothing would otherwise hold memory and a file descriptor for ever.
_FAREWELL_SECONDS: Final = 5.0


class Deadlines:
    """Closes a connection whose deadline has passed, and sends a noop when one is due."""

    def __init__(self, connection: Connection, server: Server) -> None:
        self._connection = connection
        self._server = server
        self._loop = asyncio.get_running_loop()
        #: When the client must have authenticated; while closing, when the connection is aborted.
        self._deadline = self._loop.time() + server.settings.authentication_time
        self._timer: asyncio.TimerHandle | None = None

    def set_timer(self) -> None:
        """Sets one timer for the next deadline; an idle connection has none."""
        due = max(self._next_look(), self._loop.time() + _LEAST_SECONDS)
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
            self._timer = None
        if due < float("inf"):
            self._timer = self._loop.call_at(due, self._on_time)

    def begin_farewell(self) -> None:
        """Gives the peer of a closing connection its last seconds."""
        self._deadline = self._loop.time() + _FAREWELL_SECONDS

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _on_time(self) -> None:
        self._timer = None
        self._look(self._loop.time())
        if self._connection in self._server.connections:
            self.set_timer()

    def _next_look(self) -> float:
        connection = self._connection
        if connection.closing:
            return self._deadline
        due = float("inf") if connection.identified else self._deadline
        if connection.replica is not None:
            due = min(due, self._loop.time() + _REPLICA_SECONDS)
        if connection.streams.takes_over:
            due = min(due, self._loop.time() + _TAKEOVER_SECONDS)
        options = connection.client.options
        return due if options is None else min(due, options.keepalive.next_look())

    def _look(self, now: float) -> None:
        connection = self._connection
        late = now >= self._deadline
        if connection.closing:
            if late:
                connection.abort()
            return
        if late and not connection.identified:
            connection.close("it did not authenticate in time")
            return
        if connection.replica is not None and not connection.replica.commands.tick(now):
            connection.close("nothing was received from its producer for too long")
            return
        connection.streams.tick(now)
        options = connection.client.options
        if options is None:
            return
        if options.keepalive.is_gone(now):
            connection.close("nothing was received from it for too long")
            return
        opaque = options.keepalive.due(now)
        if opaque is not None and connection.dialect.negotiates:
            connection.reply(m.StreamNoop(opaque=opaque))
