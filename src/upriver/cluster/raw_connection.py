"""An authenticated connection to a node that sends and receives raw packets.

Used by the replication relay between two nodes. It parses headers only.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

from ..consumer.consumer_settings import ConsumerSettings
from ..consumer.topology.questions import command
from ..consumer.transport.access import Access
from ..consumer.transport.async_connection import AsyncConnection
from ..consumer.transport.connection_errors import reason_of
from ..consumer.transport.connection_string import Address, Source
from ..errors import ConnectionFailed, DecodeError
from ..model import Datatype
from ..wire import kv_messages as kv
from ..wire import messages as m
from ..wire.dialects import Dcp
from ..wire.framing import Framer
from ..wire.protocol_enums import Feature, OpenFlag

#: Bytes that are read at once, and the size of the send buffer above which sending waits.
_READ: Final = 256 * 1024
#: The timeouts of connecting and authenticating, and of each answer, in seconds.
_SETTINGS: Final = ConsumerSettings(name="relay", connect_timeout=10.0, answer_timeout=10.0)
#: The features that a replica needs to be identical to its active copy.
_FEATURES: Final = (
    Feature.SELECT_BUCKET,
    Feature.XERROR,
    Feature.JSON,
    Feature.XATTR,
    Feature.SNAPPY,
    Feature.COLLECTIONS,
)
#: The flags of Open for the sending and for the receiving node.
PRODUCER: Final = (
    OpenFlag.PRODUCER
    | OpenFlag.INCLUDE_XATTRS
    | OpenFlag.INCLUDE_DELETE_TIMES
    | OpenFlag.INCLUDE_DELETED_USER_XATTRS
)
CONSUMER: Final = OpenFlag.CONSUMER


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A node's address and bucket, and the credentials for it."""

    address: Address
    bucket: str
    access: Access
    #: The node's name; a consumer sends it to its producer.
    name: str = ""
    #: The node's cluster, and the manager's epoch; 0 for a server outside of a cluster.
    cluster: str = ""
    epoch: int = 0

    def __str__(self) -> str:
        return f"{self.name} ({self.address})" if self.name else str(self.address)

    def connection(
        self, settings: ConsumerSettings, features: Iterable[Feature] | None = None
    ) -> AsyncConnection:
        """A connection to the node that is not open yet."""
        source = Source((self.address,), self.bucket)
        dialect = Dcp(collections=True)
        return AsyncConnection(
            self.address, source, self.access, settings, dialect, features=features
        )

    def opening(self, name: str, flags: OpenFlag) -> m.Open:
        """The request that opens a connection for streams; a consumer is told its own name."""
        if not self.name or flags & OpenFlag.PRODUCER:
            return m.Open(name=name, flags=flags)
        value = json.dumps({"consumer_name": self.name}).encode()
        return m.Open(name=name, flags=flags, value=value, datatype=Datatype.JSON)

    def token(self, ticket: int = 0, **more: str) -> kv.SetCtrlToken:
        """The token of this manager for the node; with a ticket it renews the node's lease."""
        content = {"cluster": self.cluster, "node": self.name, "ticket": ticket, **more}
        return kv.SetCtrlToken(
            token=self.epoch, value=json.dumps(content).encode(), datatype=Datatype.JSON
        )


class Wire:
    """One connection, opened for change streams. Its errors name the node."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, where: str
    ) -> None:
        self.where = where
        self._reader = reader
        self._writer = writer
        self._framer = Framer()

    @classmethod
    async def open(cls, endpoint: Endpoint, name: str, flags: OpenFlag) -> Self:
        """Connects, authenticates and opens; raises `ConnectionFailed` or `StatusError`."""
        where = str(endpoint)
        connection = endpoint.connection(_SETTINGS, _FEATURES)
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_READ, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        try:
            await connection.open(streams=False)
            if endpoint.epoch:
                await connection.run(command(endpoint.token(), f"SetCtrlToken at {where}"))
            opening = command(endpoint.opening(name, flags), f"Open {name} at {where}")
            transport = await connection.hand_over(opening, protocol)
        except ConnectionFailed as problem:
            problem.where = where
            raise
        finally:
            connection.close()
        return cls(reader, asyncio.StreamWriter(transport, protocol, reader, loop), where)

    async def packets(self) -> list[bytes]:
        """The next packets; `ConnectionFailed` at the end of the connection."""
        while True:
            try:
                data = await self._reader.read(_READ)
                packets = list(self._framer.feed(data))
            except OSError as problem:
                raise self._lost(problem) from None
            except DecodeError as problem:
                raise ConnectionFailed(
                    f"sent bytes that are no packet: {problem}",
                    "it is tried again",
                    where=self.where,
                ) from None
            if not data:
                raise ConnectionFailed(
                    "closed the connection", "see what its log says", where=self.where
                )
            if packets:
                return packets

    async def send(self, data: bytes) -> None:
        """Sends packets; waits while the send buffer is full."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as problem:
            raise self._lost(problem) from None

    def _lost(self, problem: OSError) -> ConnectionFailed:
        return ConnectionFailed(
            f"was lost: {reason_of(problem)}", "it is tried again", where=self.where
        )

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone already
            self._writer.transport.abort()
