"""A raw connection to a node: let in as anybody is, then packets as they come.

For whoever stands between two nodes and passes their packets on. It looks at headers only.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, replace
from typing import Final, Self

from .. import __version__
from ..consumer.access import Access
from ..consumer.node import converse
from ..consumer.source import Address
from ..errors import ConnectionFailed, Status, StatusError
from ..model import Datatype
from ..session.introduction import FIRST_OPAQUE, Introduction, introduce
from ..wire import messages as m
from ..wire.dialects import Dcp
from ..wire.framing import Framer
from ..wire.names import Feature, OpenFlag

__all__ = ["CONSUMER", "PRODUCER", "Endpoint", "Wire"]


#: Bytes that are read at once, and that may wait to be sent before nothing more is taken.
_READ: Final = 256 * 1024
#: Seconds to be let in.
_PATIENCE: Final = 10.0
#: All that a copy needs to be the same as the original.
_FEATURES: Final = (
    Feature.SELECT_BUCKET,
    Feature.XERROR,
    Feature.JSON,
    Feature.XATTR,
    Feature.SNAPPY,
    Feature.COLLECTIONS,
)
#: How a node is opened that shall send, and one that shall receive.
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
    """A node's bucket, and who we are there."""

    address: Address
    bucket: str
    access: Access
    #: What the node is called; one that is a consumer tells its producer.
    name: str = ""


class Wire:
    """One connection, opened for change streams."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._framer = Framer()
        self._opaque = FIRST_OPAQUE

    @classmethod
    async def open(cls, endpoint: Endpoint, name: str, flags: OpenFlag) -> Self:
        """Connects and opens; `ConnectionFailed` or `StatusError` if that cannot be."""
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
        """The answer to a request, while nothing else is under way."""
        opaque, self._opaque = self._opaque, self._opaque + 1
        await self.send(_DIALECT.encode(replace(request, opaque=opaque)))
        while True:
            for packet in await self.packets():
                message = _DIALECT.decode(packet)
                if isinstance(message, m.Response) and message.opaque == opaque:
                    return message

    async def packets(self) -> list[bytes]:
        """The next packets; `ConnectionFailed` when there are no more."""
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
        """Sends packets, and waits while too much of them waits."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as problem:
            raise ConnectionFailed(f"was lost: {problem}", "it is tried again") from None

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone already
            self._writer.transport.abort()
