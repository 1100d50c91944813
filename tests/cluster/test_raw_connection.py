"""The relay's connection to a node: it loses no bytes when it takes over, and names the node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from upriver.cluster.node_link import NodeLink
from upriver.cluster.raw_connection import PRODUCER, Endpoint, Wire
from upriver.cluster.replication_relay import ReplicationRelay
from upriver.consumer.consumer_settings import ConsumerSettings
from upriver.consumer.transport.access import Access
from upriver.consumer.transport.connection_string import Address
from upriver.errors import ConnectionFailed, Status, StatusError, UpriverError
from upriver.model import VBucketState
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp
from upriver.wire.framing import Framer
from upriver.wire.protocol_enums import Command

DIALECT = Dcp(collections=True)
#: What a node may send as soon as a connection is open.
NOOPS = [DIALECT.encode(m.StreamNoop(opaque=number)) for number in range(5)]


class Node:
    """A node that does what a test wants after Open."""

    def __init__(self, after: Callable[[asyncio.StreamWriter], Awaitable[None]] | None) -> None:
        self._after = after
        #: Answers to other requests than those of opening a connection, by the type of request.
        self.statuses: dict[type[m.Request], Status] = {}
        self.connections: list[tuple[Any, asyncio.StreamWriter]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append((asyncio.current_task(), writer))
        framer = Framer()
        while data := await reader.read(1 << 16):
            for packet in framer.feed(data):
                request = DIALECT.decode(packet)
                if isinstance(request, kv.Hello):
                    writer.write(
                        DIALECT.encode(
                            kv.HelloResponse(opaque=request.opaque, features=request.features)
                        )
                    )
                    continue
                assert isinstance(request, m.Request)
                status = self.statuses.get(type(request), Status.SUCCESS)
                command = Command.OPEN if isinstance(request, m.Open) else Command.SELECT_BUCKET
                answer = m.PlainResponse(command=command, opaque=request.opaque, status=status)
                writer.write(DIALECT.encode(answer))
                if isinstance(request, m.Open) and self._after is not None:
                    await self._after(writer)

    async def stop(self) -> None:
        for task, writer in self.connections:
            writer.transport.abort()
            await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def serving(
    after: Callable[[asyncio.StreamWriter], Awaitable[None]] | None = None,
    **statuses: Status,
) -> AsyncIterator[Endpoint]:
    node = Node(after)
    node.statuses = {getattr(kv, name, None) or getattr(m, name): x for name, x in statuses.items()}
    server = await asyncio.start_server(node.serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        try:
            yield Endpoint(Address("127.0.0.1", port), "default", Access(), "n1")
        finally:
            await node.stop()


async def received(wire: Wire, size: int) -> list[bytes]:
    packets: list[bytes] = []
    async with asyncio.timeout(30):
        while len(packets) < size:
            packets += await wire.packets()
    return packets


@pytest.mark.parametrize("cut", [0, 1, 24, 30, 24 * len(NOOPS)])
def test_what_comes_with_the_answer_to_open_is_not_lost(cut: int) -> None:
    sent = b"".join(NOOPS)

    async def after(writer: asyncio.StreamWriter) -> None:
        writer.write(sent[:cut])  # in one piece with the answer
        await writer.drain()
        await asyncio.sleep(0)
        writer.write(sent[cut:])

    async def run() -> list[bytes]:
        async with serving(after) as endpoint:
            wire = await Wire.open(endpoint, "relay", PRODUCER)
            try:
                return await received(wire, len(NOOPS))
            finally:
                wire.close()

    assert asyncio.run(run()) == NOOPS


def failure_of(doing: Callable[[Endpoint], Awaitable[object]], **statuses: Status) -> UpriverError:
    """The error of what is done with a node that closes the connection after Open."""

    async def close(writer: asyncio.StreamWriter) -> None:
        writer.write(b"\xff" * 24 if not statuses else b"")
        writer.close()

    async def run() -> UpriverError:
        async with serving(close, **statuses) as endpoint:
            with pytest.raises(UpriverError) as failed:
                await doing(endpoint)
            return failed.value

    return asyncio.run(run())


def test_a_node_that_cannot_be_reached_is_named() -> None:
    endpoint = Endpoint(Address("127.0.0.1", 1), "default", Access(), "n7")
    with pytest.raises(ConnectionFailed, match=r"n7 \(127\.0\.0\.1:1\) cannot be reached"):
        asyncio.run(Wire.open(endpoint, "relay", PRODUCER))


def test_a_refused_open_names_the_node_and_the_status() -> None:
    problem = failure_of(lambda node: Wire.open(node, "relay", PRODUCER), Open=Status.NO_ACCESS)
    assert isinstance(problem, StatusError)
    assert problem.status is Status.NO_ACCESS
    assert "Open relay at n1 (127.0.0.1:" in str(problem)


def test_bytes_that_are_no_packet_name_the_node() -> None:
    async def listen(endpoint: Endpoint) -> None:
        wire = await Wire.open(endpoint, "relay", PRODUCER)
        try:
            await wire.packets()
        finally:
            wire.close()

    problem = failure_of(listen)
    assert isinstance(problem, ConnectionFailed)
    assert problem.where.startswith("n1 (127.0.0.1:")
    assert "no packet" in problem.problem


def test_a_relay_says_which_node_was_lost() -> None:
    async def relay(endpoint: Endpoint) -> None:
        async with serving() as other:
            passing = await ReplicationRelay.open(endpoint, other, "relay", lambda vbucket: None)
            async with asyncio.timeout(30):
                await passing.run()

    problem = failure_of(relay)
    assert isinstance(problem, ConnectionFailed)
    assert problem.where.startswith("n1 (127.0.0.1:")


def test_a_refused_command_names_node_vbucket_and_status() -> None:
    async def run() -> str:
        async with serving(SetVBucket=Status.NOT_MY_VBUCKET) as endpoint:
            link = NodeLink(endpoint)
            connection = link._connection = endpoint.connection(ConsumerSettings(name="test"))
            await connection.open(streams=False)
            with pytest.raises(StatusError) as failed:
                await link.set_states([(6, VBucketState.DEAD), (7, VBucketState.ACTIVE)])
            link.close()
            assert failed.value.status is Status.NOT_MY_VBUCKET
            return str(failed.value)

    told = asyncio.run(run())
    assert "SetVBucket of vbucket 6 to dead at n1 (127.0.0.1:" in told
    assert "refused with NOT_MY_VBUCKET" in told
