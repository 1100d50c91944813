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


def test_small_packets_are_sent_at_once() -> None:
    """Else a client that does not answer waits for 40 ms, in the middle of a burst of changes."""

    async def is_delayed() -> bool:
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        class Server(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                plain = transport.get_extra_info("socket")
                answer.set_result(not plain.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

        listener = Listener(Server, tls=None, handshake_seconds=1, established=lambda: 0, limit=10)
        port = await listener.start("127.0.0.1", 0)
        with socket.create_connection(("127.0.0.1", port)):
            await answer
            await listener.close()
        return answer.result()

    assert not asyncio.run(is_delayed())
