"""Pauses and resumes the reading of a connection, by its memory and that of all connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from .memory_limit import SMALL
from .receive_buffer import ReceiveBuffer
from .send_buffer import SendBuffer

if TYPE_CHECKING:
    from ..server import Server
    from .connection import Connection

#: Seconds after which the size of the transport's write buffer is checked again.
_RECHECK_SECONDS: Final = 1.0


class ReadLimiter:
    """Accounts the buffers of one connection, and reads only while there is room."""

    def __init__(
        self,
        connection: Connection,
        server: Server,
        inbox: ReceiveBuffer,
        outbox: SendBuffer,
        check: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._buffers = server.buffers
        self._backlog = server.settings.max_backlog
        self._inbox = inbox
        self._outbox = outbox
        self._check = check
        self._loop = asyncio.get_running_loop()
        self._recheck: asyncio.TimerHandle | None = None
        self._reading = True

    def apply(self, transport: asyncio.Transport, *, identified: bool) -> None:
        held, awaited = self._inbox.held, self._inbox.awaited
        limit = self._backlog if identified else min(self._backlog, SMALL)
        wanted = max(held, awaited)
        room = self._buffers.admits(self._connection, wanted)
        unsent = self._outbox.size
        self._buffers.hold(self._connection, (wanted if room else held) + unsent)
        if unsent and self._recheck is None:  # the transport does not report when it has sent
            self._recheck = self._loop.call_later(_RECHECK_SECONDS, self._check_again)
        # A packet that has begun must be read to its end, however long it is.
        reads = room and (held < awaited or held <= (limit if self._reading else limit // 2))
        if reads is not self._reading and not self._connection.closing:
            self._reading = reads
            if reads:
                transport.resume_reading()
            else:
                transport.pause_reading()

    def _check_again(self) -> None:
        self._recheck = None
        self._check()

    def cancel(self) -> None:
        if self._recheck is not None:
            self._recheck.cancel()
