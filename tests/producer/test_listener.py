"""The listening socket, without a server behind it."""

from __future__ import annotations

import asyncio
import socket

from upriver.producer.connections.listener import Listener


def test_a_connection_that_was_just_accepted_is_closed_with_its_listener() -> None:
    async def closed_at_once() -> bytes:
        listener = Listener(
            asyncio.Protocol, tls=None, handshake_seconds=1, established=lambda: 0, limit=10
        )
        port = await listener.start("127.0.0.1", 0)
        with socket.create_connection(("127.0.0.1", port)) as client:
            listener._accept(listener._sockets[0])
            await listener.close()
            return client.recv(1)

    assert asyncio.run(closed_at_once()) == b""
