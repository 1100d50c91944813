"""Converts a producer's statistics into the figures of its dashboard.

It is called in the dashboard's thread. Connections belong to the producer's event loop and are read
there; buckets may be read from any thread.
"""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from ..dashboard.figures import (
    STATE_LETTERS,
    BranchFigures,
    BucketFigures,
    ConnectionFigures,
    CopyFigures,
    ReaderFigures,
    RollbackFigures,
    ServerFigures,
    StreamFigures,
    VBucketColumns,
    VBucketDetail,
)
from ..model import NO_END
from ..producer.embedded import Producer
from ..producer.statistics import BucketView, ConnectionView, StreamView, bucket_view
from ..store import Bucket

__all__ = ["ProducerFeed"]

#: Seconds to wait for the producer's event loop.
_PATIENCE: Final = 10.0
#: The most connections, and streams per connection, that are shown; there may be thousands.
_MOST_CONNECTIONS: Final = 200
_MOST_STREAMS: Final = 8

_KIND_ORDER: Final = ("reader", "replica", "client")


class ProducerFeed:
    """Samples one producer."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        #: Of the last sample, so that a request for one vbucket does not need another.
        self._connections: tuple[ConnectionView, ...] = ()

    def sample(self) -> ServerFigures:
        # Buckets first: a reader that is up to date is then never shown as behind.
        views = [bucket_view(bucket) for bucket in self._producer.node.open_buckets()]
        self._connections = self._producer.connection_views(_PATIENCE)
        highs = {view.name: [one.high_seqno for one in view.vbuckets] for view in views}
        traffic = self._producer.traffic
        return ServerFigures(
            version=self._producer.node.version,
            started=traffic.started,
            reads=traffic.reads,
            messages=traffic.messages,
            bytes=traffic.streamed_bytes,
            rollbacks=traffic.rollbacks,
            rolled_back=[
                RollbackFigures(
                    id=one.number,
                    time=one.time,
                    connection=one.connection,
                    bucket=one.bucket,
                    vbucket=one.vbucket,
                    seqno=one.seqno,
                )
                for one in tuple(traffic.rolled_back)
            ],
            buckets=[_bucket(view, self._lags(view.name, highs[view.name])) for view in views],
            connection_count=len(self._connections),
            connections=_shown(self._connections, highs),
        )

    def vbucket(self, bucket: str, vbucket: int) -> VBucketDetail | None:
        """The details of one vbucket; None if it does not exist."""
        found = self._producer.node.bucket(bucket)
        if found is None or not 0 <= vbucket < found.settings.vbuckets:
            return None
        stats = found.vbucket_stats(vbucket)
        highs = {vbucket: stats.high_seqno}
        return VBucketDetail(
            bucket=bucket,
            vbucket=vbucket,
            state=stats.state.name.lower(),
            high=stats.high_seqno,
            persisted=stats.persisted_seqno,
            purged=stats.purge_seqno,
            floor=stats.history_floor,
            items=stats.items,
            tombstones=stats.tombstones,
            history_bytes=stats.history_bytes,
            failover_log=[
                BranchFigures(branch=f"{entry.vbuuid:x}", seqno=entry.seqno)
                for entry in found.failover_log(vbucket)
            ],
            copies=self._copies(found, vbucket),
            readers=[
                ReaderFigures(connection=view.name or view.peer, stream=_stream(stream, highs))
                for view in self._connections
                if view.bucket == bucket
                for stream in view.streams
                if stream.vbucket == vbucket
            ],
        )

    def _lags(self, bucket: str, highs: Sequence[int]) -> list[int]:
        lags = [-1] * len(highs)
        for view in self._connections:
            if view.bucket == bucket:
                for stream in view.streams:
                    at = stream.vbucket
                    lags[at] = max(lags[at], highs[at] - stream.position, 0)
        return lags

    def _copies(self, bucket: Bucket, vbucket: int) -> list[CopyFigures]:
        """The nodes that have the vbucket according to the map; none without a map."""
        config = self._producer.node.config(bucket)
        if config is None:
            return []
        try:
            servers = json.loads(config)["vBucketServerMap"]
            nodes, row = servers["serverList"], servers["vBucketMap"][vbucket]
            return [
                CopyFigures(
                    role="active" if not place else f"replica {place}",
                    node=str(nodes[at]) if at >= 0 else "nowhere",
                )
                for place, at in enumerate(row)
            ]
        except (LookupError, TypeError, ValueError):
            return []  # a map from a manager may lack the vbucket


def _bucket(view: BucketView, lags: list[int]) -> BucketFigures:
    letters = {name.upper(): letter for name, letter in STATE_LETTERS.items()}
    return BucketFigures(
        name=view.name,
        items=view.stats.items,
        tombstones=view.stats.tombstones,
        history_bytes=view.stats.history_bytes,
        disk_bytes=view.stats.disk_bytes,
        backfills=view.stats.readers,
        vbuckets=VBucketColumns(
            state="".join(letters[one.state.name] for one in view.vbuckets),
            high=[one.high_seqno for one in view.vbuckets],
            persisted=[one.persisted_seqno for one in view.vbuckets],
            items=[one.items for one in view.vbuckets],
            lag=lags,
            branch=[f"{one.vbuuid:x}" for one in view.vbuckets],
        ),
    )


def _shown(
    views: Sequence[ConnectionView], highs: Mapping[str, Sequence[int]]
) -> list[ConnectionFigures]:
    """The most active connections, in a stable order."""
    figures = [_connection(view, highs.get(view.bucket or "", ())) for view in views]
    figures.sort(key=lambda one: (_KIND_ORDER.index(one["kind"]), one["name"], one["peer"]))
    return figures[:_MOST_CONNECTIONS]


def _connection(view: ConnectionView, highs: Sequence[int]) -> ConnectionFigures:
    seqnos = dict(enumerate(highs))
    streams = [
        (max(0, seqnos.get(stream.vbucket, 0) - stream.position), stream) for stream in view.streams
    ]
    slowest = heapq.nlargest(_MOST_STREAMS, streams, key=lambda pair: pair[0])
    reads = bool(view.name or view.streams) and not view.consumer
    return ConnectionFigures(
        peer=view.peer,
        agent=view.agent,
        user=view.user,
        bucket=view.bucket,
        dialect=view.dialect,
        name=view.name,
        kind="replica" if view.consumer else "reader" if reads else "client",
        tls=view.tls,
        noop=view.noop,
        window=view.window,
        outstanding=view.outstanding,
        streams=len(streams),
        states=dict(Counter(stream.state for stream in view.streams)),
        receives=len(view.receives),
        lag=sum(lag for lag, _ in streams),
        slowest=[_stream(stream, seqnos) for _, stream in slowest],
    )


def _stream(stream: StreamView, highs: Mapping[int, int]) -> StreamFigures:
    return StreamFigures(
        vbucket=stream.vbucket,
        stream_id=stream.stream_id,
        state=stream.state,
        position=stream.position,
        end=None if stream.end == NO_END else stream.end,
        lag=max(0, highs.get(stream.vbucket, 0) - stream.position),
        messages=stream.messages_sent,
        bytes=stream.bytes_sent,
        takeover=stream.takeover,
    )
