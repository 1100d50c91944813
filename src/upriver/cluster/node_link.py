"""The manager's own connection to a node: the questions and orders it has, in the protocol's words.

It is an ordinary connection of a user who may administer, and is made again when it was lost.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from ..consumer.node import NodeConnection
from ..consumer.settings import ConsumerSettings
from ..consumer.source import Source
from ..errors import ConnectionFailed, RemoteProtocolError, Status, StatusError
from ..model import Datatype, VBucketState
from ..wire import kv
from ..wire import messages as m
from ..wire.dialects import Dcp
from ..wire.names import RequestedState
from .wires import Endpoint

__all__ = ["Copy", "NodeLink"]

#: A node on the same machine answers at once, or is stopped.
_SETTINGS: Final = ConsumerSettings(name="manager", connect_timeout=3.0, answer_timeout=5.0)
#: Orders that are under way at once.
_AT_ONCE: Final = 64
_STATES: Final = {
    VBucketState.ACTIVE: RequestedState.ACTIVE,
    VBucketState.REPLICA: RequestedState.REPLICA,
    VBucketState.PENDING: RequestedState.PENDING,
}


class Copy(NamedTuple):
    """What a node has of a vbucket."""

    state: VBucketState
    seqno: int = 0


class NodeLink:
    """One node, while it is connected."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._connection: NodeConnection | None = None
        #: The version of the map that the node was given, and its manifest of collections.
        self.rev = 0
        self.manifest_uid = 0

    @property
    def connected(self) -> bool:
        return self._connection is not None and self._connection.lost is None

    async def connect(self) -> None:
        """Connects unless it is connected; `ConnectionFailed` if the node is not there."""
        if self.connected:
            return
        endpoint = self._endpoint
        source = Source((endpoint.address,), endpoint.bucket)
        connection = NodeConnection(
            endpoint.address, source, endpoint.access, _SETTINGS, Dcp(collections=True)
        )
        await connection.open(streams=False)
        self._connection, self.rev = connection, 0

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _ask(self, request: m.Request) -> m.Response:
        if self._connection is None:
            raise ConnectionFailed(
                "does not answer", "is the node running?", where=self._endpoint.name
            )
        try:
            answer = await self._connection.ask(request)
        except ConnectionFailed:
            self.close()  # what did not answer in time may answer when nobody waits
            raise
        if answer.status is not Status.SUCCESS:
            raise StatusError(answer.status, request=type(request).__name__)
        return answer

    # ---- vbuckets ------------------------------------------------------------------------

    async def copies(self) -> dict[int, Copy]:
        """What the node has; a vbucket that is not named is dead."""
        told: dict[int, Copy] = {}
        for state, requested in _STATES.items():
            answer = await self._ask(kv.GetAllSeqnos(state=requested))
            assert isinstance(answer, kv.AllSeqnosResponse)
            told |= {vbucket: Copy(state, seqno) for vbucket, seqno in answer.seqnos}
        return told

    async def set_states(self, wanted: Iterable[tuple[int, VBucketState]]) -> None:
        orders = list(wanted)
        for first in range(0, len(orders), _AT_ONCE):
            some = orders[first : first + _AT_ONCE]
            await asyncio.gather(*(self.set_state(*order) for order in some))

    async def set_state(self, vbucket: int, state: VBucketState) -> None:
        await self._ask(kv.SetVBucket(vbucket=vbucket, state=state))

    async def branches(self, vbucket: int) -> list[int]:
        """The names of the branches of a vbucket's history, newest first."""
        answer = await self._ask(kv.GetFailoverLog(vbucket=vbucket))
        assert isinstance(answer, kv.GetFailoverLogResponse)
        return [entry.vbuuid for entry in answer.failover_log]

    async def delete(self, vbucket: int) -> None:
        """Has the node forget a vbucket."""
        await self._ask(kv.DeleteVBucket(vbucket=vbucket))

    # ---- maps and collections ------------------------------------------------------------

    async def give_maps(self, rev: int, bucket: bytes, cluster: bytes) -> None:
        """Gives the node its maps, unless it has those of this version."""
        if self.rev == rev:
            return
        for name, config in ((self._endpoint.bucket, bucket), ("", cluster)):
            request = kv.SetClusterConfig(
                bucket=name, epoch=1, revision=rev, config=config, datatype=Datatype.JSON
            )
            await self._ask(request)
        self.rev = rev

    async def manifest(self) -> tuple[int, bytes]:
        """The node's collections: their version and the JSON."""
        answer = await self._ask(kv.GetManifest())
        raw = answer.value if isinstance(answer, m.PlainResponse) else b""
        try:
            told: dict[str, Any] = json.loads(raw)
            self.manifest_uid = int(told["uid"], 16)
        except (ValueError, KeyError, TypeError) as problem:
            raise RemoteProtocolError(f"a manifest cannot be read: {problem!r}") from None
        return self.manifest_uid, raw

    async def give_manifest(self, uid: int, raw: bytes) -> None:
        await self._ask(kv.SetManifest(manifest=raw))
        self.manifest_uid = uid
