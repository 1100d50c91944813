"""Cluster map watch: decides when to ask for the map, and finds streams at a former owner.

Nodes of 3.0.2 and 4.1.2 push no maps. They accept a stream of a dead vbucket and never send
anything on it. Nodes of 7.0.5 push maps, but do not end the streams of a vbucket that another node
took over. So the client asks for the map at intervals, which are short where no node pushes it.

A stream whose vbucket has another owner is closed once nothing arrives on it. It is not closed at
once, because the new owner may not have every change yet. This module does no I/O; times are on the
event loop's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ...session.consumer_session import ConsumerSession
from ...wire.protocol_enums import Feature
from ..topology.cluster_map import ClusterMap
from ..topology.cluster_view import Backoff, Topology
from ..transport.async_connection import AsyncConnection
from ..transport.connection_string import Address
from .vbucket_fetch_state import VBucketFetchState

#: Factor on the interval where all nodes push maps, or where each request for the map needs a new
#: connection.
_SELDOM: Final = 10
#: Seconds without progress after which a stream at a former owner is closed.
_SILENT_AT_FORMER_OWNER: Final = 1.5


class MapWatch:
    """Schedules requests for the cluster map; finds the readers to move to another node."""

    def __init__(
        self,
        topology: Topology,
        sessions: Mapping[AsyncConnection, ConsumerSession],
        interval: float,
    ) -> None:
        self._topology = topology
        self._sessions = sessions
        self._interval = interval
        self._due_at = topology.clock() + interval
        self._backoff: Backoff = topology.new_backoff()
        self._turn = 0
        self._seen: ClusterMap | None = None
        #: Readers at a former owner, by vbucket: the session's progress, and since when it has not
        #: changed.
        self._strays: dict[int, tuple[int, float]] = {}

    # ---- asking for the map --------------------------------------------------------------

    def left(self, now: float) -> float | None:
        """Seconds until the map is due to be asked for; None if the server has no map."""
        return None if self._topology.map_is_assumed else max(0.0, self._due_at - now)

    def whom_to_ask(self) -> list[Address]:
        """The connected nodes, rotated with each call, because one node may hold an old map."""
        connected = [connection.address for connection in self._sessions]
        self._turn += 1
        first = self._turn % len(connected) if connected else 0
        return connected[first:] + connected[:first]

    def confirmed(self, now: float) -> None:
        """Schedules the next request after a node has sent its map."""
        self._backoff.reset()
        seldom = all(_pushes_maps(c) or not c.dialect.negotiates for c in self._sessions)
        self._due_at = now + self._interval * (_SELDOM if seldom else 1)

    def failed(self, now: float) -> None:
        """Schedules the next request, with back-off, after no node has sent a map."""
        self._due_at = now + self._backoff.next_pause()

    # ---- streams at a former owner -------------------------------------------------------

    def silent_strays(
        self, readers: Iterable[VBucketFetchState], now: float
    ) -> tuple[list[VBucketFetchState], list[float]]:
        """Readers whose former owner sends nothing, and seconds until the others are due."""
        newest = self._topology.map
        if newest is self._seen and not self._strays:
            return [], []
        self._seen = newest
        silent, pauses = [], []
        strays: dict[int, tuple[int, float]] = {}
        for reader in readers:
            node, owner = reader.carrier, self._topology.owner(reader.vbucket)
            if node is None or owner is None or owner == node.address:
                continue
            heard = self._sessions[node].heard(reader.vbucket)
            before, since = self._strays.get(reader.vbucket, (-1, now))
            if heard != before or not node.has_room:
                since = now  # progress, or the window is half full because the application is slow
            left = since + _SILENT_AT_FORMER_OWNER - now
            if left <= 0:
                silent.append(reader)
            else:
                strays[reader.vbucket] = heard, since
                pauses.append(left)
        self._strays = strays
        return silent, pauses


def _pushes_maps(connection: AsyncConnection) -> bool:
    return Feature.CLUSTERMAP_NOTIFICATION in connection.features
