"""A client of a world: it reads and writes documents and remembers what it was told.

It speaks the real protocol over the simulated network. An operation without an answer is kept as
one that may have happened.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from upriver.consumer.consumer_settings import ConsumerSettings
from upriver.consumer.topology.cluster_map import vbucket_of
from upriver.consumer.transport.access import Access
from upriver.consumer.transport.async_connection import AsyncConnection
from upriver.consumer.transport.connection_string import Address, Source
from upriver.errors import Status, UpriverError
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp
from upriver.wire.frameinfo import Durability
from upriver.wire.protocol_enums import DurabilityLevel

from .linearizability import EXPIRE, FLUSH, Operation

#: The operations that clients make.
KINDS: Final = (
    "get",
    "set",
    "add",
    "replace",
    "delete",
    "append",
    "prepend",
    "increment",
    "touch",
    "cas",
)
_SETTINGS: Final = ConsumerSettings(name="client", connect_timeout=2.0, answer_timeout=4.0)
#: The answers that say that nothing was changed.
_REFUSED: Final = frozenset(
    {
        Status.TEMPORARY_FAILURE,
        Status.BUSY,
        Status.NOT_MY_VBUCKET,
        Status.SYNC_WRITE_IN_PROGRESS,
        Status.SYNC_WRITE_RECOMMIT_IN_PROGRESS,
        Status.DURABILITY_IMPOSSIBLE,
        Status.BAD_DELTA,
        Status.NOT_INITIALISED,
        Status.LOCKED,
    }
)
#: How often an operation is tried at other nodes, or again, while it is refused.
_TRIES: Final = 4
_FAR_FUTURE: Final = 1_900_000_000
#: A Set of a document that expires after `_SOON` seconds.
EXPIRING: Final = "expiring"
_SOON: Final = 2
#: Milliseconds for a durable write.
_DURABLE_MS: Final = 3000


class Wish:
    """An operation that a client is told to make."""

    def __init__(self, kind: str, key: bytes, value: bytes, level: DurabilityLevel) -> None:
        self.kind = kind
        self.key = key
        self.value = value
        self.level = level


class Client:
    """One client. Its operations are made one after the other."""

    def __init__(
        self, name: str, source: str, vbuckets: int, clock: Callable[[], int], access: Access
    ) -> None:
        """``clock`` counts everything that happens in the world, for the order of operations."""
        self.name = name
        self.operations: list[Operation] = []
        self.refusals = 0
        self._source = Source.parse(source)
        self._vbuckets = vbuckets
        self._clock = clock
        self._access = access
        self._wishes: asyncio.Queue[Wish] = asyncio.Queue()
        self._connections: dict[Address, AsyncConnection] = {}
        self._owners: list[Address | None] = []
        self._cas: dict[bytes, int] = {}
        self.idle = True

    def wish(self, wish: Wish) -> None:
        self.idle = False
        self._wishes.put_nowait(wish)

    async def run(self) -> None:
        while True:
            wish = await self._wishes.get()
            await self._make(wish)
            self.idle = self._wishes.empty()

    async def read(self, key: bytes) -> Operation | None:
        """Reads a key until it is answered; None if it is never."""
        for _ in range(30):
            made = await self._make(Wish("get", key, b"", DurabilityLevel.NONE))
            if made is not None:
                return made
            await asyncio.sleep(1.0)
        return None

    async def _make(self, wish: Wish) -> Operation | None:
        """Makes one operation; returns it if it was answered."""
        cas = self._cas.get(wish.key, 0) if wish.kind == "cas" else 0
        kind = "set" if wish.kind in ("cas", EXPIRING) else wish.kind
        durable = wish.level is not DurabilityLevel.NONE and kind not in ("get", "touch", FLUSH)
        request = self._request(kind, wish, cas)
        if durable:
            timed = Durability(wish.level, _DURABLE_MS)
            request = replace(request, frames=(timed,))
        for tried in range(_TRIES):
            operation = Operation(
                self.name, wish.key, kind, wish.value, cas, durable, invoked=self._clock()
            )
            try:
                connection = await self._connect(wish.key)
            except (UpriverError, OSError):
                await asyncio.sleep(0.2)
                continue
            if wish.kind == EXPIRING:
                ends = Operation(self.name, wish.key, EXPIRE, wish.value, invoked=operation.invoked)
                self.operations.append(ends)
            operation.port = connection.address.port
            try:
                answer = await connection.ask(request)
            except UpriverError:
                self._drop(connection)
                self._owners = []
                if kind != "get":
                    self.operations.append(operation)
                return None
            operation.returned = self._clock()
            if answer.status is Status.NOT_MY_VBUCKET:
                self._learn(getattr(answer, "value", b""))
            if answer.status in _REFUSED:
                self.refusals += 1
                await asyncio.sleep(0.1 * (tried + 1))
                continue
            return self._note(operation, answer)
        return None

    def _note(self, operation: Operation, answer: m.Response) -> Operation | None:
        """Remembers what an operation was told."""
        self.operations.append(operation)
        if answer.status is Status.SYNC_WRITE_AMBIGUOUS:
            operation.returned = None
            return None
        operation.status = answer.status
        if answer.status is Status.SUCCESS:
            operation.result_cas = getattr(answer, "cas", 0)
            if isinstance(answer, kv.CounterResponse):
                operation.result = b"%d" % answer.value
            elif isinstance(answer, kv.DocumentResponse):
                operation.result = answer.value
                self._cas[operation.key] = answer.cas
        return operation

    def _request(self, kind: str, wish: Wish, cas: int) -> m.Request:
        vbucket = vbucket_of(wish.key, self._vbuckets)
        key, value = wish.key, wish.value
        if kind == "get":
            return kv.Get(key=key, vbucket=vbucket, collection=0)
        if kind == "set":
            expiry = _SOON if wish.kind == EXPIRING else 0
            return kv.Set(
                key=key, vbucket=vbucket, value=value, cas=cas, collection=0, expiry=expiry
            )
        if kind == "add":
            return kv.Add(key=key, vbucket=vbucket, value=value, collection=0)
        if kind == "replace":
            return kv.Replace(key=key, vbucket=vbucket, value=value, collection=0)
        if kind == "delete":
            return kv.Delete(key=key, vbucket=vbucket, collection=0)
        if kind == "append":
            return kv.Append(key=key, vbucket=vbucket, value=value, collection=0)
        if kind == "prepend":
            return kv.Prepend(key=key, vbucket=vbucket, value=value, collection=0)
        if kind == "increment":
            return kv.Increment(key=key, vbucket=vbucket, initial=int(value), collection=0)
        if kind == "touch":
            return kv.Touch(key=key, vbucket=vbucket, expiry=_FAR_FUTURE, collection=0)
        if kind == FLUSH:
            return kv.FlushAll()
        raise ValueError(f"there is no operation {kind}")

    # ---- connections ---------------------------------------------------------------------

    async def _connect(self, key: bytes) -> AsyncConnection:
        address = self._address(key)
        connection = self._connections.get(address)
        if connection is not None and connection.lost is None:
            return connection
        dialect = Dcp(collections=True)
        connection = AsyncConnection(address, self._source, self._access, _SETTINGS, dialect)
        try:
            await connection.open(streams=False)
        except (UpriverError, OSError):
            self._owners = []
            # another node may know more
            addresses = self._source.addresses
            self._source = Source((*addresses[1:], addresses[0]), self._source.bucket)
            raise
        self._connections[address] = connection
        return connection

    def _address(self, key: bytes) -> Address:
        vbucket = vbucket_of(key, self._vbuckets)
        owner = self._owners[vbucket] if vbucket < len(self._owners) else None
        return owner or self._source.addresses[0]

    def _drop(self, connection: AsyncConnection) -> None:
        connection.close()
        self._connections.pop(connection.address, None)

    def _learn(self, raw: bytes) -> None:
        """Learns which node has which vbucket."""
        try:
            told = json.loads(raw)["vBucketServerMap"]
        except (ValueError, KeyError):
            self._owners = []
            addresses = self._source.addresses
            self._source = Source((*addresses[1:], addresses[0]), self._source.bucket)
            return
        servers = [
            Address("127.0.0.1", int(server.rsplit(":", 1)[1])) for server in told["serverList"]
        ]
        self._owners = [servers[row[0]] if row[0] >= 0 else None for row in told["vBucketMap"]]
