"""Where a bucket is and what of it is wanted: found out once before reading, kept up to date after.

Which draft the servers speak, which node has which vbucket, what the collections are called, where
the reading starts and ends. It asks, and never streams.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

from ..errors import (
    AuthenticationFailed,
    BucketNotFound,
    ConfigError,
    ConnectionFailed,
    ProtocolError,
    RemoteProtocolError,
    Status,
    StatusError,
    UpriverError,
)
from ..model import FailoverLog, Snapshot, StreamOffset
from ..session.position import Position
from ..wire import kv
from ..wire import messages as m
from ..wire.dialects import Dcp
from ..wire.names import Feature, RequestedState
from .access import Access
from .checkpoint import Checkpoint
from .collections import CollectionEvent, Collections
from .node import NodeConnection
from .readers import Backoff
from .settings import DIALECTS, ConsumerSettings
from .source import Address, Source
from .topology import ClusterMap, Node

__all__ = ["Bearings", "take_bearings"]


class Bearings:
    """What is known of a bucket and of what is wanted of it."""

    def __init__(self, source: Source, access: Access, settings: ConsumerSettings) -> None:
        self._source = source
        self._access = access
        self._settings = settings
        self.dialect: str = settings.dialect
        self.map: ClusterMap
        self.collections = Collections()
        #: What a stream request says of collections.
        self.filter = b""
        self.positions: Mapping[int, Position] = {}
        self.ends: Mapping[int, int] = {}
        #: Connections that were opened on the way, ready to carry streams.
        self.connections: list[NodeConnection] = []

    # ---- connecting ----------------------------------------------------------------------

    def _connection(self, address: Address, dialect: str) -> NodeConnection:
        kind = DIALECTS[dialect]
        return NodeConnection(address, self._source, self._access, self._settings, kind())

    async def connect(self, address: Address) -> NodeConnection:
        """A connection for streams."""
        connection = self._connection(address, self.dialect)
        await connection.open()
        return connection

    async def _connect_too(self, address: Address) -> None:
        self.connections.append(await self.connect(address))

    async def _reach(self) -> NodeConnection:
        """A connection to any node of the source, in the draft it turns out to speak."""
        trouble: UpriverError | None = None
        for address in self._source.hosts:
            try:
                return await self._agree_on_dialect(address)
            except (AuthenticationFailed, BucketNotFound):
                raise
            except (ConnectionFailed, ProtocolError, StatusError) as error:
                trouble = trouble or error
        assert trouble is not None
        raise trouble

    async def _agree_on_dialect(self, address: Address) -> NodeConnection:
        """Tries the drafts, newest first, unless one was chosen."""
        if self.dialect != "auto":
            return await self.connect(address)
        trouble: UpriverError | None = None
        for name in DIALECTS:
            connection = self._connection(address, name)
            try:
                await connection.open()
                if await _understands(connection):
                    self.dialect = name
                    return connection
            except (AuthenticationFailed, BucketNotFound):
                raise
            except (ConnectionFailed, ProtocolError, StatusError) as error:
                trouble = trouble or error
                if not connection.reached:
                    break  # none reaches further than another
                if connection.features or (isinstance(error, StatusError) and error.retriable):
                    break  # it speaks this one, and what it refuses is something else
            connection.close()
            if self._access.user or self._settings.needs_dcp:
                break  # the drafts know neither users nor what is asked for
        raise trouble or ConnectionFailed("speaks no draft that we know", "check the address")

    @asynccontextmanager
    async def asking(
        self, address: Address, connections: Iterable[NodeConnection]
    ) -> AsyncIterator[NodeConnection]:
        """A connection that a node can be asked on: its own, or one for the occasion.

        The connections of the older drafts know only streams.
        """
        for connection in connections:
            if connection.address == address and isinstance(connection.dialect, Dcp):
                yield connection
                return
        connection = self._connection(address, "dcp")
        try:
            await connection.open(streams=False)
            yield connection
        finally:
            connection.close()

    # ---- the map -------------------------------------------------------------------------

    def parse_map(self, text: bytes, reached: Address) -> ClusterMap:
        found = ClusterMap.parse(
            text, reached=reached, tls=self._source.tls, network=self._settings.network
        )
        if found.bucket not in ("", self._source.bucket):
            raise RemoteProtocolError(f"{reached} sent the map of the bucket {found.bucket!r}")
        return found

    async def ask_map(self, connections: Sequence[NodeConnection]) -> ClusterMap:
        """The map as the first that answers has it: who is connected, then who is known."""
        connected = [connection.address for connection in connections]
        known = [node.address for node in self.map.nodes]
        trouble: UpriverError | None = None
        for address in dict.fromkeys((*connected, *known, *self._source.hosts)):
            try:
                return await self._map_of(address, connections)
            except (ConnectionFailed, ProtocolError, StatusError) as error:
                trouble = trouble or error
        raise trouble or ConnectionFailed("is not known", "give a host")

    async def _map_of(self, address: Address, connections: Iterable[NodeConnection]) -> ClusterMap:
        async with self.asking(address, connections) as connection:
            answer = await connection.ask(kv.GetClusterConfig())
        if answer.status is not Status.SUCCESS or not isinstance(answer, m.PlainResponse):
            raise StatusError(answer.status, request=f"the cluster map of {address}")
        return self.parse_map(answer.value, address)

    async def _find_map(self, connection: NodeConnection) -> ClusterMap:
        try:
            return await self._map_of(connection.address, [connection])
        except (StatusError, ConnectionFailed) as problem:
            wanted = self._settings.vbuckets
            answered = isinstance(problem, StatusError) and not problem.retriable
            if wanted is None or (isinstance(connection.dialect, Dcp) and not answered):
                raise
            # a server from before cluster maps: it has everything that it is asked for
            return ClusterMap(
                rev=0,
                epoch=0,
                bucket=self._source.bucket,
                bucket_uuid="",
                nodes=(Node(0, connection.address),),
                vbuckets=((0,),) * (max(wanted) + 1),
            )

    # ---- what is wanted ------------------------------------------------------------------

    def note(self, event: CollectionEvent) -> None:
        """A collection or scope came or went."""
        self.collections = self.collections.with_event(event)

    async def _learn_collections(self, connection: NodeConnection) -> None:
        settings = self._settings
        if Feature.COLLECTIONS in connection.features:
            answer = await connection.ask(kv.GetManifest())
            if answer.status is Status.SUCCESS and isinstance(answer, m.PlainResponse):
                self.collections = Collections.parse(answer.value)
        elif settings.collections or settings.scope:
            raise ConfigError(f"{connection.address} has no collections")
        if settings.scope:
            scope = self.collections.scope_id(settings.scope)
            self.filter = json.dumps({"scope": f"{scope:x}"}).encode()
        elif settings.collections:
            ids = [f"{self.collections.id_of(name):x}" for name in settings.collections]
            self.filter = json.dumps({"collections": ids}).encode()

    async def look_again(
        self, settings: ConsumerSettings, connections: Sequence[NodeConnection]
    ) -> None:
        """What must be known before other ranges are read: collections, and what is wanted now."""
        self._settings = settings
        if not connections:
            raise ConnectionFailed("is not connected any more", "connect again")
        try:
            async with asyncio.timeout(settings.connect_timeout):
                await self._learn_collections(connections[0])
        except TimeoutError:
            raise ConnectionFailed("gave no sign of life", "connect again") from None
        await self._decide_range()

    def _wanted(self) -> list[int]:
        count = len(self.map.vbuckets)
        wanted = self._settings.vbuckets
        end = self._settings.end
        if wanted is None:
            wanted = frozenset(range(count) if isinstance(end, str) else end)
        elif not isinstance(end, str):
            wanted &= frozenset(end)
        beyond = sorted(vbucket for vbucket in wanted if not 0 <= vbucket < count)
        if beyond:
            raise ConfigError(f"the bucket has the vbuckets 0 to {count - 1}, not {beyond[0]}")
        if not wanted:
            raise ConfigError("there is no vbucket to read")
        return sorted(wanted)

    async def _decide_range(self) -> None:
        start, end = self._settings.start, self._settings.end
        wanted = self._wanted()
        highs = await self.high_seqnos(self.connections) if "now" in (start, end) else {}
        if start == "beginning":
            self.positions = dict.fromkeys(wanted, Position())
        elif start == "now":
            found = await asyncio.gather(*(self._now(vb, highs.get(vb, 0)) for vb in wanted))
            self.positions = dict(zip(wanted, found, strict=True))
        elif isinstance(start, Checkpoint):
            start.require_same_bucket(
                bucket=self._source.bucket,
                bucket_uuid=self.map.bucket_uuid,
                vbuckets=len(self.map.vbuckets),
            )
            self.positions = {vb: start.position(vb) for vb in wanted}
        elif isinstance(start, Mapping):
            self.positions = {vb: start.get(vb, Position()) for vb in wanted}
        else:
            raise ConfigError(f"{start!r} is no place to start")
        if end == "now":
            self.ends = {vb: highs.get(vb, 0) for vb in wanted}
        elif isinstance(end, Mapping):
            self.ends = {vb: end[vb] for vb in wanted}
        elif end != "never":
            raise ConfigError(f"{end!r} is no place to end")

    async def _now(self, vbucket: int, high: int) -> Position:
        """The position behind everything that is there."""
        if not high:
            return Position()
        log = await self.failover_log(vbucket, self.connections)
        offset = StreamOffset(log.newest.vbuuid, high, Snapshot(high, high))
        return Position(offset, log, (high,))

    # ---- facts ---------------------------------------------------------------------------

    async def high_seqnos(self, connections: Iterable[NodeConnection]) -> dict[int, int]:
        """The newest seqno of each vbucket that some node is active for."""
        connections = list(connections)
        addresses = self._owners(range(len(self.map.vbuckets)))
        answers = await asyncio.gather(*(self._highs_of(a, connections) for a in addresses))
        highs: dict[int, int] = {}
        for answer in answers:
            if not isinstance(answer, kv.AllSeqnosResponse):
                raise StatusError(answer.status, request="the high seqnos")
            highs.update(answer.seqnos)
        return highs

    async def _highs_of(
        self, address: Address, connections: Iterable[NodeConnection]
    ) -> m.Response:
        async with self.asking(address, connections) as connection:
            return await connection.ask(kv.GetAllSeqnos(state=RequestedState.ACTIVE))

    def _owners(self, vbuckets: Iterable[int]) -> set[Address]:
        nodes = map(self.map.owner, vbuckets)
        return {node.address for node in nodes if node is not None}

    async def failover_log(
        self, vbucket: int, connections: Iterable[NodeConnection]
    ) -> FailoverLog:
        """The history that the node of a vbucket serves, newest branch first."""
        node = self.map.owner(vbucket)
        for connection in connections:
            if node is not None and connection.address == node.address:
                answer = await connection.ask(m.FailoverLogRequest(vbucket=vbucket))
                if isinstance(answer, m.FailoverLogResponse) and answer.failover_log:
                    return FailoverLog(answer.failover_log).sanitised()
                raise StatusError(answer.status, request=f"the failover log of vbucket {vbucket}")
        raise ConnectionFailed(f"has no vbucket {vbucket}", "is the cluster whole?")


async def _understands(connection: NodeConnection) -> bool:
    """Whether a server, as far as can be told before there is a stream, speaks the draft."""
    if isinstance(connection.dialect, Dcp):
        # one that grants nothing at all is of the time of draft 001
        granted = connection.granted
        return bool(connection.features or granted.window or granted.noop_interval)
    await connection.ask(m.FailoverLogRequest(vbucket=0))  # which every draft can answer
    return True


async def take_bearings(source: Source, access: Access, settings: ConsumerSettings) -> Bearings:
    """Finds a bucket, and everything that must be known before it is read.

    While the settings say to wait, it begins anew when a node cannot be reached or is lost.
    """
    if settings.dialect not in ("auto", "dcp") and access.user:
        raise ConfigError(f"draft {settings.dialect} knows no users")
    loop = asyncio.get_running_loop()
    deadline = loop.time() + settings.wait_at_start
    backoff = Backoff(settings.retry_first, settings.retry_most)
    while True:
        bearings = Bearings(source, access, settings)
        trouble: UpriverError
        try:
            first = await bearings._reach()
        except (AuthenticationFailed, BucketNotFound):
            raise
        except (ConnectionFailed, ProtocolError, StatusError) as error:
            trouble = error
        else:
            try:
                await _look_around(bearings, first)
                return bearings
            except (AuthenticationFailed, BucketNotFound):
                raise
            except ConnectionFailed as error:  # it was lost on the way
                trouble = error
            except StatusError as error:  # a node that warms up does not answer everything yet
                if not error.retriable:
                    raise
                trouble = error
        pause = backoff.next_pause()
        if loop.time() + pause > deadline:
            raise trouble
        await asyncio.sleep(pause)


async def _look_around(bearings: Bearings, first: NodeConnection) -> None:
    """Asks, beginning with the first node that was reached, what there is and who has it."""
    try:
        bearings.map = await bearings._find_map(first)
        await bearings._learn_collections(first)
        owners = bearings._owners(bearings._wanted())
        if first.address in owners:
            bearings.connections.append(first)
        else:
            first.close()
        # a node that is away is the engine's business, unless it has to be asked
        await asyncio.gather(
            *(bearings._connect_too(address) for address in owners - {first.address}),
            return_exceptions=True,
        )
        await bearings._decide_range()
    except BaseException:
        for connection in (first, *bearings.connections):
            connection.close()
        raise
