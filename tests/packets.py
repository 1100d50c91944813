"""Reading packets from a socket."""

from __future__ import annotations

import socket
from typing import Self

from upriver.wire.framing import Framer


class Packets:
    """Packets in the order in which they come, until the other side closes the connection.

    One that did not come in time can be asked for again.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._framer = Framer()
        self._received: list[bytes] = []

    def __iter__(self) -> Self:
        return self

    def next(self) -> bytes:
        """The next packet; `ConnectionError` if there is none."""
        for packet in self:
            return packet
        raise ConnectionError("the other side closed the connection")

    def __next__(self) -> bytes:
        while not self._received:
            chunk = self._connection.recv(1 << 18)
            if not chunk:
                raise StopIteration
            self._received += self._framer.feed(chunk)
        return self._received.pop(0)
