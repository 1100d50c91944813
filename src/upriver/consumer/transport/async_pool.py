"""asyncio connection pool: opens connections to nodes, detects the dialect, runs conversations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from ...errors import (
    AuthenticationFailed,
    BucketNotFound,
    ConnectionFailed,
    StatusError,
    UpriverError,
)
from ...wire import messages as m
from ...wire.dialects import Dcp
from ...wire.dialects.by_name import DIALECTS
from ..consumer_settings import ConsumerSettings
from ..topology.cluster_view import (
    NODE_TROUBLE,
    ClusterConversation,
    Pause,
    Topology,
    Visit,
    VisitOutcome,
)
from ..topology.questions import server_version
from .access import Access
from .async_connection import AsyncConnection
from .connection_string import Address

_T = TypeVar("_T")

#: The first release whose stream request has snapshot fields; older builds speak draft 001.
_FIRST_RELEASE: Final = (3, 0, 1)
#: After a node sent nothing in answer to the newest dialect, it gets this part of
#: ``connect_timeout`` for each older draft. The older drafts must be tried, because some of their
#: nodes take the first packet for an incomplete one and wait for the rest. But most silent ports
#: are no Couchbase node at all, and the user should not wait a minute for that error.
_OF_A_SILENT_NODE: Final = 1 / 4


class AsyncNodes:
    """Pool of connections by address; those in ``connections`` were opened for streams."""

    def __init__(self, topology: Topology, access: Access, settings: ConsumerSettings) -> None:
        self.topology = topology
        self.connections: dict[Address, AsyncConnection] = {}
        #: The dialect of the servers; "auto" until one was detected.
        self._dialect: str = settings.dialect
        self._access = access
        self._settings = settings

    def close(self) -> None:
        for connection in list(self.connections.values()):
            connection.close()
        self.connections.clear()
        self._dialect = self._settings.dialect

    def forget(self, connection: AsyncConnection) -> None:
        """Removes a lost connection from the pool."""
        if self.connections.get(connection.address) is connection:
            del self.connections[connection.address]

    # ---- connecting ----------------------------------------------------------------------

    def _connection(self, address: Address, dialect: str) -> AsyncConnection:
        kind = DIALECTS[dialect]
        return AsyncConnection(address, self.topology.source, self._access, self._settings, kind())

    async def connect(self, address: Address) -> AsyncConnection:
        """Returns the stream connection to a node; opens it if there is none."""
        connection = self.connections.get(address)
        if connection is None or connection.lost is not None:
            connection = await self._open(address)
            self.connections[address] = connection
            self.topology.learn_features(address, connection.features)
        return connection

    async def _open(self, address: Address) -> AsyncConnection:
        """Opens a connection in the servers' dialect; tries all dialects if it is not known."""
        if self._dialect != "auto":
            connection = self._connection(address, self._dialect)
            await connection.open()
            return connection
        trouble: UpriverError | None = None
        patience = self._settings.connect_timeout
        for name, kind in DIALECTS.items():
            if self._access.user and not kind.opens_connections:
                break  # this draft and those after it have no authentication
            connection = self._connection(address, name)
            try:
                await connection.open(patience=patience)
                if await _understands(connection, patience):
                    self._dialect = name
                    return connection
            except (AuthenticationFailed, BucketNotFound):
                raise
            except NODE_TROUBLE as error:
                trouble = trouble or error
                if not connection.reached:
                    break  # without a TCP connection no other dialect can work
                if connection.features or (isinstance(error, StatusError) and error.retriable):
                    break  # the node speaks this dialect; the error has another cause
            if not connection.heard_any:
                patience = self._settings.connect_timeout * _OF_A_SILENT_NODE
            connection.close()
            if self._settings.needs_dcp:
                break  # the older drafts lack features that the settings need
        raise trouble or ConnectionFailed(
            "speaks no draft that we know", "check the address", where=str(address)
        )

    async def reach_any(self) -> AsyncConnection:
        """Returns a stream connection to the first node that can be reached."""
        trouble: UpriverError | None = None
        for address in self.topology.addresses(self.connections):
            try:
                connection = await self.connect(address)
                self.topology.reached(address)
                return connection
            except (AuthenticationFailed, BucketNotFound):
                raise
            except NODE_TROUBLE as error:
                trouble = trouble or error
        raise trouble or ConnectionFailed("is not known", "give a host")

    # ---- requests ------------------------------------------------------------------------

    @asynccontextmanager
    async def asking(self, address: Address) -> AsyncIterator[AsyncConnection]:
        """Yields a connection for requests: the stream connection, or else a temporary one.

        In the older drafts a stream connection answers only stream requests.
        """
        connection = self.connections.get(address)
        if connection is not None and connection.lost is None and connection.dialect.negotiates:
            yield connection
            return
        connection = self._connection(address, Dcp.name)
        try:
            await connection.open(streams=False)
            spoken = DIALECTS.get(self._dialect)
            if spoken is not None and spoken.negotiates:  # older drafts have no collections
                self.topology.learn_features(address, connection.features)
            yield connection
        finally:
            connection.close()

    async def run(self, conversation: ClusterConversation[_T]) -> _T:
        """Runs a conversation to its end; makes the visits of one step at the same time."""
        try:
            step = next(conversation)
            while True:
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                    step = conversation.send([])
                else:
                    step = conversation.send(await asyncio.gather(*map(self.visit, step)))
        except StopIteration as done:
            result: _T = done.value
            return result

    async def visit(self, visit: Visit) -> VisitOutcome:
        try:
            if visit.streaming:
                return await (await self.connect(visit.address)).run_all(visit.talks)
            async with self.asking(visit.address) as connection:
                return await connection.run_all(visit.talks)
        except NODE_TROUBLE as error:
            return error


async def _understands(connection: AsyncConnection, patience: float) -> bool:
    """Whether the server speaks the connection's dialect, as far as is known without streams."""
    if connection.dialect.negotiates:
        granted = connection.granted
        if connection.features or granted.window or granted.noop_interval:
            return True
        # Release 3.0.2 does not know HELLO but accepts DCP controls. A server that accepts neither
        # speaks draft 001, with its shorter stream request, unless its version says otherwise.
        version = await connection.run(server_version())
        return version is not None and version >= _FIRST_RELEASE
    # every draft can answer this request
    await connection.ask(m.FailoverLogRequest(vbucket=0), patience=patience)
    return True
