"""An authenticated connection to a node that sends and receives raw packets.

Used by the replication relay between two nodes. It parses headers only.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, replace
from typing import Final, Self

from .. import __version__
from ..consumer.transport.access import Access
from ..consumer.transport.async_connection import converse
from ..consumer.transport.connection_string import Address
from ..errors import ConnectionFailed, Status, StatusError
from ..model import Datatype
from ..session.client_handshake import FIRST_OPAQUE, Introduction, introduce
from ..wire import kv_messages as kv
from ..wire import messages as m
from ..wire.dialects import Dcp
from ..wire.framing import Framer
from ..wire.names import Feature, OpenFlag

#: Bytes that are read at once, and the size of the send buffer above which sending waits.
_READ: Final = 256 * 1024
#: The timeout of connecting and authenticating, in seconds.
_PATIENCE: Final = 10.0
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

_DIALECT: Final = Dcp(collections=True)


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

    def token(self, ticket: int = 0, **more: str) -> kv.SetCtrlToken:
        """The token of this manager for the node; with a ticket it renews the node's lease."""
        content = {"cluster": self.cluster, "node": self.name, "ticket": ticket, **more}
        return kv.SetCtrlToken(
            token=self.epoch, value=json.dumps(content).encode(), datatype=Datatype.JSON
        )


class Wire:
    """One connection, opened for change streams."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._framer = Framer()
        self._opaque = FIRST_OPAQUE

    @classmethod
    async def open(cls, endpoint: Endpoint, name: str, flags: OpenFlag) -> Self:
        """Connects, authenticates and opens; raises `ConnectionFailed` or `StatusError`."""
        address = endpoint.address
        try:
            async with asyncio.timeout(_PATIENCE):
                reader, writer = await asyncio.open_connection(
                    address.host, address.port, limit=_READ
                )
        except OSError as problem:  # a timeout is one
            raise ConnectionFailed(
                f"cannot be reached: {problem}", "is the node running?", where=str(address)
            ) from None
        wire = cls(reader, writer)
        try:
            async with asyncio.timeout(_PATIENCE):
                introduction = Introduction(
                    agent=f"upriver-cluster/{__version__}",
                    bucket=endpoint.bucket,
                    features=_FEATURES,
                    credentials=endpoint.access.credentials(),
                )
                await converse(introduce(introduction), wire.ask)
                if endpoint.epoch:
                    known = await wire.ask(endpoint.token())
                    if known.status is not Status.SUCCESS:
                        raise StatusError(known.status, request="SetCtrlToken")
                opening = m.Open(name=name, flags=flags)
                if endpoint.name and not flags & OpenFlag.PRODUCER:
                    value = json.dumps({"consumer_name": endpoint.name}).encode()
                    opening = replace(opening, value=value, datatype=Datatype.JSON)
                answer = await wire.ask(opening)
                if answer.status is not Status.SUCCESS:
                    raise StatusError(answer.status, request=f"Open {name}")
        except TimeoutError:
            wire.close()
            raise ConnectionFailed(
                "does not answer", "is it stopped?", where=str(address)
            ) from None
        except BaseException:
            wire.close()
            raise
        return wire

    async def ask(self, request: m.Request) -> m.Response:
        """The response to a request; no other request may be outstanding."""
        opaque, self._opaque = self._opaque, self._opaque + 1
        await self.send(_DIALECT.encode(replace(request, opaque=opaque)))
        while True:
            for packet in await self.packets():
                message = _DIALECT.decode(packet)
                if isinstance(message, m.Response) and message.opaque == opaque:
                    return message

    async def packets(self) -> list[bytes]:
        """The next packets; `ConnectionFailed` at the end of the connection."""
        while True:
            try:
                data = await self._reader.read(_READ)
            except OSError as problem:
                raise ConnectionFailed(f"was lost: {problem}", "it is tried again") from None
            if not data:
                raise ConnectionFailed("closed the connection", "see what its log says")
            packets = list(self._framer.feed(data))
            if packets:
                return packets

    async def send(self, data: bytes) -> None:
        """Sends packets; waits while the send buffer is full."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as problem:
            raise ConnectionFailed(f"was lost: {problem}", "it is tried again") from None

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone already
            self._writer.transport.abort()
