"""Discovery: finds nodes, cluster map, collections and seqno ranges before streams are opened.

It sends requests and never opens a stream. It stores the cluster map and the collections in the
`Topology`, and leaves the connections that it opened in the pool, `AsyncNodes`, for the engine.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Collection, Mapping
from typing import Final

from ...errors import (
    AuthenticationFailed,
    BucketNotFound,
    ConfigError,
    ConnectionFailed,
    RemoteProtocolError,
    StatusError,
    UpriverError,
)
from ...model import StreamOffset
from ...session.conversation import Conversation
from ...session.stream_position import Position
from ...wire.protocol_enums import Feature
from ..checkpoints.checkpoint import Checkpoint
from ..consumer_settings import ConsumerSettings
from ..transport.async_connection import AsyncConnection
from ..transport.async_pool import AsyncNodes
from ..transport.connection_string import Address
from .cluster_view import NODE_TROUBLE
from .questions import UNKNOWN_REQUEST, has_history, high_seqnos
from .request_routing import (
    ask_failover_logs,
    ask_node,
    ask_owners,
    learn_collections,
    refusal_of,
    renew_map,
)

_log = logging.getLogger(__name__)

#: The field of a packet that names a vbucket has 16 bits.
_MAX_VBUCKETS: Final = 2**16
#: Couchbase buckets have this many vbuckets or fewer.
_ASKED_AT_ONCE: Final = 1024


class Discovery:
    """Translates the settings into vbuckets, start positions, end seqnos and collection ids."""

    def __init__(self, nodes: AsyncNodes, settings: ConsumerSettings) -> None:
        self._nodes = nodes
        self._topology = nodes.topology
        self._settings = settings
        #: The collection filter of stream requests (JSON), and the ids of the wanted collections.
        self.filter = b""
        self._chosen: tuple[int, ...] = ()
        self.positions: Mapping[int, Position] = {}
        self.ends: Mapping[int, int] = {}

    async def find(self) -> None:
        """Finds the cluster map, the collections, the start positions and the end seqnos.

        For ``wait_at_start`` seconds it starts over, with back-off, when a node cannot be reached
        or is lost.
        """
        settings, topology = self._settings, self._topology
        deadline = topology.clock() + settings.wait_at_start
        backoff = topology.new_backoff()
        while True:
            first: AsyncConnection | None = None
            try:
                first = await self._nodes.reach_any()
                await self._look_around(first)
                return
            except (AuthenticationFailed, BucketNotFound):
                self._nodes.close()
                raise
            except NODE_TROUBLE as trouble:
                self._nodes.close()
                pause = backoff.next_pause()
                if first is not None and not _passes(trouble):
                    raise
                if topology.clock() + pause > deadline:
                    raise
            except BaseException:
                self._nodes.close()
                raise
            await asyncio.sleep(pause)

    async def _look_around(self, first: AsyncConnection) -> None:
        """Asks ``first``, the first node reached, for map and collections; connects to owners."""
        topology, nodes = self._topology, self._nodes
        self._choose_collections(await self._find_map(first))
        owners = set(topology.by_owner(self._wanted()))
        if first.address not in owners:
            first.close()
            nodes.forget(first)
        # The engine retries nodes that cannot be reached now. Discovery fails only if it has to
        # ask such a node for seqnos.
        await asyncio.gather(*map(nodes.connect, owners), return_exceptions=True)
        await self._decide_range()

    async def look_again(self, settings: ConsumerSettings) -> None:
        """Finds collections and seqno ranges for a second run over the open connections."""
        self._settings = settings
        address = next(iter(self._nodes.connections), None)
        if address is None:
            source = str(self._topology.source)
            raise ConnectionFailed("has closed every connection", "connect again", where=source)
        seconds = settings.connect_timeout
        try:
            async with asyncio.timeout(seconds):
                await self._nodes.run(learn_collections(self._topology, address))
        except TimeoutError:
            raise ConnectionFailed(
                f"did not answer for {seconds:g} s", "connect again", where=str(address)
            ) from None
        self._choose_collections(address)
        await self._decide_range()

    async def _find_map(self, first: AsyncConnection) -> Address:
        """Gets the map and the collections; returns the address of the node that sent them.

        If no map was ever seen, ``first`` is assumed to be the only node where it speaks a draft
        without such a request, or does not know the request. It has the vbuckets to read; if none
        are given, those for which it answers. Where they are given, any refusal is enough.
        """
        topology, wanted = self._topology, self._settings.vbuckets
        if self._settings._one_node and wanted is not None:
            topology.assume_one_node(first.address, wanted)
            return first.address
        try:
            return await self._nodes.run(renew_map(topology, [first.address], names=True))
        except (ConnectionFailed, RemoteProtocolError) as problem:
            refusal = refusal_of(problem)
            if refusal is None:
                may_assume = not first.dialect.negotiates
            elif wanted is None:
                may_assume = refusal.status in UNKNOWN_REQUEST
            else:
                may_assume = not refusal.retriable or not first.dialect.negotiates
            if not may_assume or (topology.has_map and not topology.map_is_assumed):
                raise refusal or problem from None
            if wanted is None:
                wanted = frozenset(await self._answering(first))
            _log.warning(
                "%s is taken for the only node, as it has no map: %s", first.address, problem
            )
            topology.assume_one_node(first.address, wanted)
            return first.address

    async def _answering(self, node: AsyncConnection) -> set[int]:
        """The vbuckets for which a node answers, of those up to the last thousand with any."""
        found: set[int] = set()
        for begin in range(0, _MAX_VBUCKETS, _ASKED_AT_ONCE):
            asked = range(begin, min(begin + _ASKED_AT_ONCE, _MAX_VBUCKETS))
            there = await node.run_all([has_history(vbucket) for vbucket in asked])
            answering = {vb for vb, is_there in zip(asked, there, strict=True) if is_there}
            found |= answering
            if not answering:
                break
        if not found:
            raise RemoteProtocolError(
                f"{node.address} has no cluster map and answers for none of the vbuckets 0 to "
                f"{_ASKED_AT_ONCE - 1}; name those to read (vbuckets)"
            )
        return found

    def _choose_collections(self, address: Address) -> None:
        """Finds the ids of the wanted collections among those that the node has."""
        settings, topology = self._settings, self._topology
        named = settings.collections or settings.scope
        if named and not topology.has_feature(address, Feature.COLLECTIONS):
            raise ConfigError(
                f"{address} does not support collections; leave collections and scope out"
            )
        self._chosen = topology.collections.chosen(settings.collections, settings.scope)
        if settings.scope:
            scope = topology.collections.scope_id(settings.scope)
            self.filter = json.dumps({"scope": f"{scope:x}"}).encode()
        elif settings.collections:
            self.filter = json.dumps({"collections": [f"{id_:x}" for id_ in self._chosen]}).encode()

    # ---- vbuckets and ranges -------------------------------------------------------------

    def _wanted(self) -> list[int]:
        count = len(self._topology.map.vbuckets)
        wanted = self._settings.vbuckets
        end = self._settings.end
        if wanted is None and not isinstance(end, str):
            wanted = frozenset(end)
        elif wanted is None:
            every = frozenset(range(count))
            is_assumed = self._topology.map_is_assumed  # then there is nobody to wait for
            wanted = frozenset(filter(self._is_owned, every)) if is_assumed else every
        elif not isinstance(end, str):
            wanted &= frozenset(end)
        beyond = sorted(vbucket for vbucket in wanted if not 0 <= vbucket < count)
        if beyond:
            raise ConfigError(
                f"there is no vbucket {beyond[0]}: the bucket has the vbuckets 0 to {count - 1}"
            )
        if not wanted:
            raise ConfigError("there is no vbucket to read: vbuckets has none of those in end")
        return sorted(wanted)

    def _is_owned(self, vbucket: int) -> bool:
        return self._topology.owner(vbucket) is not None

    async def _decide_range(self) -> None:
        start, end = self._settings.start, self._settings.end
        wanted = self._wanted()
        highs = await self._high_seqnos_of(wanted) if "now" in (start, end) else {}
        if start == "beginning":
            self.positions = dict.fromkeys(wanted, Position())
        elif start == "now":
            self.positions = await self._positions_now(highs)
        elif isinstance(start, Checkpoint):
            start.require_same_bucket(
                bucket=self._topology.source.bucket,
                bucket_uuid=self._topology.map.bucket_uuid,
                vbuckets=len(self._topology.map.vbuckets),
            )
            self.positions = {vb: start.position(vb) for vb in wanted}
        elif isinstance(start, Mapping):
            self.positions = {vb: start.get(vb, Position()) for vb in wanted}
        else:
            raise ConfigError(
                f"start is {start!r}; give 'beginning', 'now', a Checkpoint, or a Position by "
                "vbucket"
            )
        if end == "now":
            self.ends = highs
        elif isinstance(end, Mapping):
            self.ends = {vb: end[vb] for vb in wanted}
        elif end != "never":
            raise ConfigError(f"end is {end!r}; give 'never', 'now', or a seqno by vbucket")

    async def high_seqnos(self) -> dict[int, int]:
        """The high seqno of each vbucket that has an active copy."""
        return await self._nodes.run(ask_owners(self._topology, None, self._question))

    async def _high_seqnos_of(self, wanted: list[int]) -> dict[int, int]:
        """The high seqnos of all wanted vbuckets.

        Every vbucket must be answered for: one without a high seqno would silently not be read.
        """
        patience = self._settings.answer_timeout
        conversation = ask_owners(
            self._topology, wanted, self._question, patience=patience, whole=True
        )
        return await self._nodes.run(conversation)

    def _question(self, vbuckets: list[int]) -> tuple[Conversation[dict[int, int]], ...]:
        return (high_seqnos(vbuckets, self._chosen),)

    async def hear_out(self) -> None:
        """Has each node answer a request on the connection of its streams.

        What a node had sent by then has been received.
        """
        for address, its in self._topology.by_owner(self.positions).items():
            node = await self._nodes.connect(address)
            await node.run(has_history(its[0]))

    async def active_at(self, address: Address, vbuckets: Collection[int]) -> set[int]:
        """Those of ``vbuckets`` for which the node says that it is active."""
        (active,) = await self._nodes.run(ask_node(address, *self._question(list(vbuckets))))
        return set(active)

    async def _positions_now(self, highs: Mapping[int, int]) -> dict[int, Position]:
        """The positions after the newest change of each vbucket, with the current failover log."""
        positions = dict.fromkeys(highs, Position())
        owners = self._topology.by_owner([vbucket for vbucket, high in highs.items() if high])
        asked = ask_failover_logs(self._topology, owners, streaming=True)
        for logs in (await self._nodes.run(asked)).values():
            if isinstance(logs, UpriverError):
                raise logs
            for vbucket, log in logs.items():
                high = highs[vbucket]
                offset = StreamOffset.at(log.newest.vbuuid, high)
                positions[vbucket] = Position(offset, log, (high,), origin=high)
        return positions


def _passes(trouble: UpriverError) -> bool:
    """Whether the error is temporary: a lost connection, or a node that is still warming up."""
    lost = isinstance(trouble, ConnectionFailed)
    return lost or (isinstance(trouble, StatusError) and trouble.retriable)
